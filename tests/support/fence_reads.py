"""What tests look at: a fence, its counts, and the rows of a local effect."""

from __future__ import annotations

from pydantic import BaseModel

from helixqueue.engine import fences as calls
from helixqueue.postgres.database import Database as Store
from tests.support.lab import POOLED


class Refund(BaseModel):
    id: str
    cents: int


def fence_of(database, name, identity=None):
    """The one fence of a name, or of a name and an identity."""
    with Store.connect(database.dsn(), pooled=POOLED) as store:
        rows = store.run(calls.list_fences(name=name)).rows
    [row] = [row for row in rows if identity is None or row.identity == (identity,)]
    return row


def counted(helix, name):
    """This name's decisions and how often each was taken."""
    decisions = helix.fences.counters.snapshot().decisions
    return {word: n for (_, fence, word), n in decisions.items() if fence == name}


def effects(database, table):
    return database.value(f"select count(*) from public.{table}")


def transactions(database, name):
    """How many transactions wrote the steps of a name's fences."""
    return database.value(
        "select count(distinct e.position) from helix.fence_event e"
        f" join helix.fence f on f.life = e.life where f.name = '{name}'"
    )
