"""An application on SQLAlchemy: orders and their work are one commit, or none."""

import sys

from sqlalchemy import create_engine, select
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column

from helixqueue import HelixQueue, Queue


class Base(DeclarativeBase):
    pass


class Order(Base):
    __tablename__ = "program_order"
    __table_args__ = {"prefixes": ["temporary"]}
    id: Mapped[int] = mapped_column(primary_key=True)
    sample: Mapped[str]


sequencing = Queue("alchemy.sequencing")


def place(session: Session, helix: HelixQueue, number: int, sample: str) -> str:
    session.add(Order(id=number, sample=sample))
    return helix.submit(
        sequencing, identity=("order", str(number)), payload={"sample": sample}, within=session
    ).decision


engine = create_engine(sys.argv[1].replace("postgresql:", "postgresql+psycopg:"))
with HelixQueue(sys.argv[1], tenant="a") as helix, Session(engine) as session:
    Base.metadata.create_all(session.connection())
    session.commit()
    print(place(session, helix, 1, "s1"))
    session.commit()
    print(place(session, helix, 2, "s2"))
    session.rollback()
    print(list(session.scalars(select(Order.sample))))
    print([batch.identity for batch in helix.batches(queue=sequencing)])
engine.dispose()
