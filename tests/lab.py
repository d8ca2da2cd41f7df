"""A small laboratory: a client of the engine as the package is one, and a way to let time pass.

Everything goes through `helixqueue.store`, so these tests exercise the calls and the SQL alike.
Making a database takes longer than most tests: a module shares one, and each `Lab` has a queue of
its own, so that no test sees another's work.
"""

from __future__ import annotations

import itertools
import os
import time
import uuid
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Self

from helixqueue.identity import canonical_text, canonicalize
from helixqueue.store import calls
from helixqueue.store.database import Database as Store
from helixqueue.store.rows import Held, Settlement, SubmissionRow
from tests.database import copy_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from helixqueue.embedded import Postgres
    from helixqueue.store.rows import Answer, Claimed, LeaseRow, QueueRow, SubmittedRow, Verdict
    from tests.database import Database
    from tests.pooler import Pooler

POOLED = bool(os.environ.get("HELIX_TEST_POOLER"))
# On a machine that is busy with something else.
PATIENCE_S = 60.0
_numbers = itertools.count(1)

# The engine refuses every hand but its own, so time passes by a function of the engine's.
_TIME_PASSES = """
create function helix.test_pass_time(p_batch bigint[]) returns void
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
begin
  perform helix.enter();
  update helix.active set deadline = clock_timestamp() - interval '1 s'
  where batch = any (p_batch);
  update helix.waiting set due = clock_timestamp() - interval '1 s'
  where batch = any (p_batch) and due is not null;
  update helix.waiting set expires_at = clock_timestamp() - interval '1 s'
  where batch = any (p_batch) and expires_at is not null;
  update helix.ready set expires_at = clock_timestamp() - interval '1 s'
  where batch = any (p_batch) and expires_at is not null;
end
$$;
alter function helix.test_pass_time owner to helix_engine;
"""


def one_database(server: Postgres, template: str, pooler: Pooler | None) -> Iterator[Database]:
    """For a module's fixture `database`, in place of the one a test."""
    with (
        copy_of(template, server, f"helix_module_{next(_numbers)}", pooler) as database,
        passing_time(database),
    ):
        yield database


@contextmanager
def passing_time(database: Database) -> Iterator[Callable[..., None]]:
    """Whatever these batches wait for, or should have done by, lies in the past once it is called.

    Only until the end: `check` finds strangers among the engine's functions.
    """

    def pass_time(*batches: int) -> None:
        database.rows("select helix.test_pass_time(%s)", list(batches))

    with database.connect("helix_bootstrap") as connection:
        connection.execute(_TIME_PASSES.encode())
    yield pass_time
    with database.connect("helix_bootstrap") as connection:
        connection.execute("drop function if exists helix.test_pass_time")


def until(ask: Callable[[], Any], seconds: float = PATIENCE_S) -> Any:
    """Ask until there is an answer, and give it."""
    deadline = time.monotonic() + seconds
    while not (answer := ask()):
        assert time.monotonic() < deadline, f"still not after {seconds} s"
        time.sleep(0.005)
    return answer


def held(leases: Sequence[LeaseRow]) -> list[Held]:
    return [Held(lease.batch, lease.token) for lease in leases]


def completed(lease: LeaseRow, result: str | None = '{"reads":7}') -> Settlement:
    return Settlement(lease.batch, lease.token, "completed", result=result)


def failed(lease: LeaseRow, **options: Any) -> Settlement:
    options.setdefault("failure", "Broken")
    return Settlement(lease.batch, lease.token, "failed", **options)


class Lab:
    """One connection of one role; everything is about tenant a and this lab's queue, `q`."""

    def __init__(
        self, database: Database, role: str = "pool", *, worker: str = "w1", q: str | None = None
    ) -> None:
        self.database = database
        self.store = Store.connect(database.dsn(role), pooled=POOLED)
        self.run = self.store.run
        self.worker = worker
        self.q = q or f"q{next(_numbers)}"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.store.close()

    def queue(self, name: str | None = None, tenant: str = "a", **settings: Any) -> QueueRow:
        return self.run(calls.set_queue(tenant=tenant, queue=name or self.q, **settings))

    def submit(
        self,
        *identities: str | tuple[str, ...] | None,
        payload: Any = None,
        tenant: str = "a",
        queue: str | None = None,
        profile: str = "text-v1",
        **options: Any,
    ) -> list[SubmittedRow]:
        """Submit as a client does: canonical identities, canonical payloads, options for all."""
        text = canonical_text({} if payload is None else payload)
        rows = []
        for one in identities:
            name = None if one is None else canonicalize(one, profile)
            rows.append(
                SubmissionRow(name and name.text, text, raw=name and name.raw_text, **options)
            )
        return self.submit_rows(*rows, tenant=tenant, queue=queue, profile=profile)

    def submit_rows(
        self,
        *rows: SubmissionRow,
        tenant: str = "a",
        queue: str | None = None,
        profile: str = "text-v1",
    ) -> list[SubmittedRow]:
        """Submit as whoever calls the functions directly might: nothing is made canonical."""
        return self.run(
            calls.submit(tenant=tenant, queue=queue or self.q, profile=profile, rows=rows)
        )

    def submit_many(self, count: int, prefix: str = "s", **options: Any) -> list[SubmittedRow]:
        return self.submit(*[f"{prefix}{n:05}" for n in range(count)], **options)

    def call_claim(self, count: int = 1, **options: Any) -> Claimed:
        options.setdefault("worker", self.worker)
        options.setdefault("request", uuid.uuid4())
        options.setdefault("queues", [self.q])
        return self.run(calls.claim(count=count, **options))

    def claim(self, count: int = 1, *, start: bool = True, **options: Any) -> list[LeaseRow]:
        return list(self.call_claim(count, start=start, **options).leases)

    def start(self, *leases: LeaseRow, worker: str | None = None) -> list[Answer]:
        return self.run(calls.start(worker=worker or self.worker, held=held(leases)))

    def renew(self, *leases: LeaseRow, worker: str | None = None) -> list[Answer]:
        return self.run(calls.renew(worker=worker or self.worker, held=held(leases)))

    def release(self, *leases: LeaseRow, detail: str | None = None) -> list[Answer]:
        return self.run(calls.release(worker=self.worker, held=held(leases), detail=detail))

    def settle(self, *settlements: Settlement, worker: str | None = None) -> list[Answer]:
        return self.run(calls.settle(worker=worker or self.worker, settlements=settlements))

    def complete(self, *leases: LeaseRow, result: str | None = '{"reads":7}') -> list[Answer]:
        return self.settle(*[completed(lease, result) for lease in leases])

    def fail(self, *leases: LeaseRow, **options: Any) -> list[Answer]:
        return self.settle(*[failed(lease, **options) for lease in leases])

    def decide(self, verb: str, *ids: uuid.UUID, reason: str = "because") -> list[Verdict]:
        """cancel, retry or erase."""
        return self.run(getattr(calls, verb)(ids=ids, reason=reason, actor="ann"))

    def rows(self, query: str, *args: Any) -> list[tuple[Any, ...]]:
        return self.store.connection.execute(query.encode(), args).fetchall()

    def value(self, query: str, *args: Any) -> Any:
        [(value,)] = self.rows(query, *args)
        return value

    def standing(self, batch_id: uuid.UUID) -> tuple[str, int, int, str]:
        """State, version, attempt, and the table where it stands."""
        [row] = self.rows(
            "select s.state::text, s.version, s.attempt, s.place from helix.standing s "
            "join helix.locate(array[%s::uuid]) l on l.batch = s.batch",
            batch_id,
        )
        return row

    def history(self, batch_id: uuid.UUID) -> list[tuple[str, str]]:
        """The arrows taken, as (to, reason)."""
        return self.rows(
            "select e.to_state::text, e.reason::text from helix.event e "
            "join helix.locate(array[%s::uuid]) l on l.batch = e.batch order by e.version",
            batch_id,
        )

    def pass_time(self, *batches: int) -> None:
        """Deadlines, due times and expiries of these batches lie in the past from now on."""
        self.database.rows("select helix.test_pass_time(%s)", list(batches))

    def belong(self, run: int, identities: str) -> None:
        """Batches whose identities are like this are of this run; nothing public says so yet.

        The guards let nobody change a batch, so that they are away meanwhile.
        """
        with self.database.connect("helix_bootstrap") as connection, connection.transaction():
            connection.execute("set local session_replication_role = replica")
            connection.execute("alter table helix.batch disable trigger a_guard")
            connection.execute(
                "update helix.batch set run = %s where identity ~ %s", (run, identities)
            )
            connection.execute("alter table helix.batch enable always trigger a_guard")

    def number(self, batch_id: uuid.UUID) -> int:
        """The internal id."""
        return self.value("select batch from helix.locate(array[%s::uuid])", batch_id)
