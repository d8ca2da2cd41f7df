"""Tables of a program on the embedded database need no grant, and the engine never uses them."""

from __future__ import annotations

import psycopg
import pytest
from sqlalchemy import create_engine, text
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column

from helixqueue import HelixQueue, Lease, Queue
from helixqueue.errors import BadSignature

pytestmark = pytest.mark.xdist_group("client outages")  # its servers are in that process

# Raises in every call, under the name and the argument types of a built-in function.
SHADOW_FUNCTIONS = r"""
do $do$
declare
  v_function record;
  v_made     integer := 0;
begin
  for v_function in
    select quote_ident(p.proname) as name, pg_get_function_identity_arguments(p.oid) as arguments,
           format_type(p.prorettype, null) as result
    from pg_proc p
    where p.pronamespace = 'pg_catalog'::regnamespace and p.prokind = 'f' and not p.proretset
      and exists (select from pg_proc e where e.pronamespace = 'helix'::regnamespace
                  and position(p.proname || '(' in e.prosrc) > 0)
  loop
    begin
      execute format($f$create function helix_local.%s(%s) returns %s language plpgsql as
                        $$begin raise 'shadowed'; end$$ $f$,
                     v_function.name, v_function.arguments, v_function.result);
      v_made := v_made + 1;
    exception when others then null;  -- pseudo-types
    end;
  end loop;
  if v_made < 100 then
    raise 'only % functions were shadowed', v_made;
  end if;
end
$do$
"""
SHADOW_OPERATORS = """
create function helix_local.never(text, text) returns boolean language plpgsql as
  $$begin raise 'shadowed'; end$$;
create operator helix_local.= (leftarg = text, rightarg = text, function = helix_local.never);
create operator helix_local.<> (leftarg = text, rightarg = text, function = helix_local.never);
create table helix_local.batch (id int);
create table helix_local.work (id int);
create table helix_local.entry (id int);
create table helix_local.queue (id int);
create type helix_local.state as enum ('shadowed');
"""
HOSTILE_PATH = "options=-csearch_path%3Dhelix_local%2Cpg_catalog"


class Base(DeclarativeBase):
    pass


class Reads(Base):
    __tablename__ = "reads"
    sample: Mapped[str] = mapped_column(primary_key=True)
    count: Mapped[int]


@pytest.fixture(scope="module")
def helix(tmp_path_factory):
    with HelixQueue.embedded(tmp_path_factory.mktemp("embedded") / "data") as client:
        yield client


def test_handlers_write_to_tables_of_the_program_without_a_grant(helix):
    engine = create_engine(helix.dsn.replace("postgresql:", "postgresql+psycopg:"))
    Base.metadata.create_all(engine)
    count, report = Queue("count"), Queue("report")

    @count.handler
    def write_rows(lease: Lease):
        with lease.transaction() as tx:
            tx.execute("insert into reads values (%s, 7)", (lease.identity,))
            return tx.complete({"reads": 7})

    @report.handler
    def write_with_orm(lease: Lease):
        with Session(engine) as session, session.begin():
            session.add(Reads(sample=lease.identity, count=8))
            lease.within(session).complete({"reads": 8})

    helix.submit(count, identity="s-1", payload={})
    helix.submit(report, identity="s-2", payload={})
    assert helix.work([count, report], until_idle=True).completed == 2
    with engine.connect() as connection:
        rows = connection.execute(text("select sample, count from reads order by 1")).all()
        where = connection.execute(text("select 'reads'::regclass::oid::regclass::text")).scalar()
        schema = connection.execute(text("select current_schema()")).scalar()
    engine.dispose()
    assert rows == [("s-1", 7), ("s-2", 8)]
    assert (where, schema) == ("reads", "helix_local")


def test_shadowing_objects_of_the_program_are_never_called_by_the_engine(helix):
    with psycopg.connect(helix.dsn, autocommit=True) as connection:
        connection.execute(SHADOW_FUNCTIONS)
        connection.execute(SHADOW_OPERATORS)
        connection.execute("set search_path = helix_local, pg_catalog")
        with pytest.raises(psycopg.errors.RaiseException, match="shadowed"):
            connection.execute("select clock_timestamp()")
        with pytest.raises(psycopg.errors.RaiseException, match="shadowed"):
            connection.execute("select 'a'::text = 'a'::text")

    queue = Queue("shadowed", max_attempts=1)

    @queue.handler
    def run(lease: Lease):
        if lease.identity == "bad":
            raise ValueError(lease.identity)
        return {"ok": True}

    with HelixQueue(f"{helix.dsn}&{HOSTILE_PATH}") as hostile:
        good = hostile.submit(queue, identity="good", payload={})
        again = hostile.submit(queue, identity="good", payload={})
        hostile.submit(queue, identity="bad", payload={})
        hostile.submit(queue, identity="unwanted", payload={}, priority=9)
        [unwanted] = hostile.batches(queue=queue, identity="unwanted")
        hostile.cancel(unwanted.batch_id, reason="a test")
        done = hostile.work(queue, until_idle=True)
        assert (again.decision, done.completed, done.failed) == ("duplicate", 1, 1)
        assert hostile.result(good.receipt) == {"ok": True}
        assert len(hostile.history(good.receipt)) == 4
        assert [answer.answer for answer in hostile.retry(queue=queue, reason="a test")] == ["ok"]


def test_functions_that_logins_call_pin_their_search_path(helix):
    with psycopg.connect(helix.dsn) as connection:
        open_to_callers = connection.execute(
            """
            select p.oid::regprocedure::text from pg_proc p
            where p.pronamespace = 'helix'::regnamespace
              and p.proname like '%\\_v1' and p.prosecdef
              and not exists (select from unnest(p.proconfig) c
                              where c in ('search_path=pg_catalog, pg_temp'))
            """
        ).fetchall()
    assert open_to_callers == []


def test_program_on_embedded_servers_may_receive_webhooks(helix):
    with pytest.raises(BadSignature):
        helix.webhooks.receive("unknown", [], b"{}")
