"""`Lab`, the kit for engine tests: a client of the engine, and functions that make time pass.

Everything goes through `helixqueue.engine`, so tests exercise the Python calls and the SQL.
Creating a database takes longer than most tests: a module shares one, and each `Lab` has its own
queue, so that no test sees the batches of another.
"""

from __future__ import annotations

import itertools
import os
import time
import uuid
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Self, TypeVar

import psycopg

from helixqueue.engine import calls
from helixqueue.identity import canonical_text, canonicalize
from helixqueue.postgres.database import Database as Store
from helixqueue.records.lease import LeaseRef, Settlement
from helixqueue.records.submission import SubmissionRow
from tests.support.database import copy_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from helixqueue.embedded import Postgres
    from helixqueue.records.batch import ActionResult
    from helixqueue.records.lease import ClaimResult, LeaseRow, WriteResult
    from helixqueue.records.queue import QueueRow
    from helixqueue.records.submission import SubmittedRow
    from tests.support.database import Database
    from tests.support.pooler import Pooler

T = TypeVar("T")
POOLED = bool(os.environ.get("HELIX_TEST_POOLER"))
# Time limit of a condition, generous for a busy machine.
TIMEOUT_S = 60.0
# Number of batches of the queue of this name.
BATCHES = (
    "select count(*) from helix.batch b join helix.queue q on q.id = b.queue where q.name = %s"
)
_numbers = itertools.count(1)

# Whether a row of helix.work w is ready, waiting, active or an outcome.
WORK_LOCATION = (
    "case when w.pending then 'ready' when w.cause is not null then 'waiting'"
    " when w.state in ('ASSIGNED', 'RUNNING') then 'active' else 'outcome' end"
)

# The guards accept only functions of the engine, so this one moves deadlines into the past.
_TIME_PASSES = """
create function helix.test_pass_time(p_batch bigint[]) returns void
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
begin
  perform helix.enter();
  -- `expires_at` never changes in production; the triggers that check it are disabled meanwhile.
  update helix.work set step = false,
    deadline = case when state in ('ASSIGNED', 'RUNNING') then clock_timestamp() - interval '1 s'
                    else deadline end,
    due = case when due is not null then clock_timestamp() - interval '1 s' end,
    expires_at = case when expires_at is not null and state = 'PENDING'
                      then clock_timestamp() - interval '1 s' else expires_at end
  where batch = any (p_batch);
  update helix.batch b set expires_at = w.expires_at from helix.work w
  where w.batch = b.id and b.id = any (p_batch) and w.expires_at is not null;
  update helix.request set due = clock_timestamp() - interval '1 s'
  where number in (select number from helix.work where batch = any (p_batch));
  -- The next claim runs its duties.
  update helix.duty set next_at = '-infinity';
end
$$;
alter function helix.test_pass_time owner to helix_engine;
"""
# Triggers that compare a row with its old version.
_ROW_TRIGGERS = {"next_step": "work", "asked_once": "batch"}


def new_database(server: Postgres, template: str, pooler: Pooler | None) -> Iterator[Database]:
    """A database for a module's fixture `database`, in place of one per test."""
    with (
        copy_of(template, server, f"helix_module_{next(_numbers)}", pooler) as database,
        time_control(database),
    ):
        yield database


@contextmanager
def time_control(database: Database) -> Iterator[Callable[..., None]]:
    """A function that moves deadlines, due times and expiries of batches into the past.

    It is dropped at the end: `check` reports functions that do not belong to the engine.
    """

    def passed(*batches: int) -> None:
        pass_time(database, *batches)

    with database.connect("helix_bootstrap") as connection:
        connection.execute(_TIME_PASSES.encode())
    yield passed
    with database.connect("helix_bootstrap") as connection:
        connection.execute("drop function if exists helix.test_pass_time")


def pass_time(database: Database, *batches: int) -> None:
    """Move deadlines, due times and expiries of these batches into the past."""
    with database.connect("helix_bootstrap") as connection:
        _pass_time(connection, list(batches))


def _pass_time(connection: psycopg.Connection[Any], batches: list[int]) -> None:
    with connection.transaction():
        triggers = _ROW_TRIGGERS if batches else {}
        for trigger, table in triggers.items():
            connection.execute(f"alter table helix.{table} disable trigger {trigger}")
        connection.execute("select helix.test_pass_time(%s)", (batches,))
        for trigger, table in triggers.items():
            connection.execute(f"alter table helix.{table} enable always trigger {trigger}")


_WRONG_FUNCTION = """
create function helix.test_execute(p_statement text) returns void
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
begin
  perform helix.enter();
  execute p_statement;
end
$$;
alter function helix.test_execute owner to helix_engine;
"""


@contextmanager
def engine_function(database: Database) -> Iterator[Callable[[str], str | None]]:
    """Add an engine function that runs any statement, as a faulty one could.

    Calling it returns the SQLSTATE of a refusal, and None if the statement committed.
    """
    with database.connect("helix_bootstrap") as connection:
        connection.execute(_WRONG_FUNCTION.encode())

        def execute(statement: str) -> str | None:
            try:
                connection.execute("select helix.test_execute(%s)", (statement,))
            except psycopg.Error as error:
                return error.sqlstate
            return None

        try:
            yield execute
        finally:
            connection.execute("drop function helix.test_execute")


def end_minute(database: Database) -> None:
    """Make decisions of all counted answers, as the duty does when their minute is over."""
    with engine_function(database) as execute:
        assert execute("update helix.answer_count set minute = minute - interval '1 min'") is None
        assert execute("select helix.fold_answers(1000000)") is None


def wait_until(
    condition: Callable[[], T], what: str = "the condition", seconds: float = TIMEOUT_S
) -> T:
    """Call `condition` until it returns a true value; return that value."""
    deadline = time.monotonic() + seconds
    while not (value := condition()):
        assert time.monotonic() < deadline, f"waited {seconds:g} s for {what}"
        time.sleep(0.005)
    return value


def lease_refs(leases: Sequence[LeaseRow]) -> list[LeaseRef]:
    return [LeaseRef(lease.batch, lease.token) for lease in leases]


def completion(lease: LeaseRow | LeaseRef, result: str | None = '{"reads":7}') -> Settlement:
    return Settlement(lease.batch, lease.token, "completed", result=result)


def failure(lease: LeaseRow | LeaseRef, **options: Any) -> Settlement:
    options.setdefault("failure", "Broken")
    return Settlement(lease.batch, lease.token, "failed", **options)


class Lab:
    """One connection of one role; by default for tenant `a` and the lab's own queue, `q`."""

    def __init__(
        self, database: Database, role: str = "pool", *, worker: str = "w1", q: str | None = None
    ) -> None:
        self.database = database
        self.store = Store.connect(database.dsn(role), pooled=POOLED)
        self.run = self.store.run
        self._superuser: psycopg.Connection[tuple[Any, ...]] | None = None
        self.worker = worker
        self.q = q or f"q{next(_numbers)}"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.store.close()
        if self._superuser is not None:
            self._superuser.close()

    @property
    def superuser(self) -> psycopg.Connection[tuple[Any, ...]]:
        """A second connection, as superuser."""
        if self._superuser is None:
            self._superuser = self.database.connect("helix_bootstrap")
        return self._superuser

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
        """Submit as a client does: canonical identities and payloads, the same options for all."""
        text = canonical_text({} if payload is None else payload)
        rows = []
        for identity in identities:
            name = None if identity is None else canonicalize(identity, profile)
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
        """Call the function directly, without making anything canonical."""
        return self.run(
            calls.submit(tenant=tenant, queue=queue or self.q, profile=profile, rows=rows)
        )

    def submit_many(self, count: int, prefix: str = "s", **options: Any) -> list[SubmittedRow]:
        return self.submit(*[f"{prefix}{n:05}" for n in range(count)], **options)

    def claim_result(self, count: int = 1, **options: Any) -> ClaimResult:
        options.setdefault("worker", self.worker)
        options.setdefault("request", uuid.uuid4())
        options.setdefault("queues", [self.q])
        return self.run(calls.claim(count=count, **options))

    def claim(self, count: int = 1, *, start: bool = True, **options: Any) -> list[LeaseRow]:
        return list(self.claim_result(count, start=start, **options).leases)

    def start(self, *leases: LeaseRow, worker: str | None = None) -> list[WriteResult]:
        return self.run(calls.start(worker=worker or self.worker, leases=lease_refs(leases)))

    def renew(self, *leases: LeaseRow, worker: str | None = None) -> list[WriteResult]:
        return self.run(calls.renew(worker=worker or self.worker, leases=lease_refs(leases)))

    def release(self, *leases: LeaseRow, detail: str | None = None) -> list[WriteResult]:
        return self.run(calls.release(worker=self.worker, leases=lease_refs(leases), detail=detail))

    def settle(self, *settlements: Settlement, worker: str | None = None) -> list[WriteResult]:
        return self.run(calls.settle(worker=worker or self.worker, settlements=settlements))

    def complete(self, *leases: LeaseRow, result: str | None = '{"reads":7}') -> list[WriteResult]:
        return self.settle(*[completion(lease, result) for lease in leases])

    def fail(self, *leases: LeaseRow, **options: Any) -> list[WriteResult]:
        return self.settle(*[failure(lease, **options) for lease in leases])

    def decide(self, verb: str, *ids: uuid.UUID, reason: str = "because") -> list[ActionResult]:
        """cancel, retry or erase."""
        return self.run(getattr(calls, verb)(ids=ids, reason=reason, actor="ann"))

    def rows(self, query: str, *args: Any) -> list[tuple[Any, ...]]:
        """Read tables as the superuser; the lab's login has no privilege on them."""
        return self.superuser.execute(query.encode(), args).fetchall()

    def rows_as_client(self, query: str, *args: Any) -> list[tuple[Any, ...]]:
        """Run a query on the lab's connection: with its privileges, inside its transaction."""
        return self.store.connection.execute(query.encode(), args).fetchall()

    def value(self, query: str, *args: Any) -> Any:
        [(value,)] = self.rows(query, *args)
        return value

    def location(self, batch_id: uuid.UUID) -> tuple[str, int, int, str]:
        """State, version, attempt and `PLACE`."""
        [row] = self.rows(
            f"select w.state::text, w.version, w.attempt, {WORK_LOCATION}"
            " from helix.work w join helix.locate(array[%s::uuid]) l on l.batch = w.batch",
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

    def batch_number(self, batch_id: uuid.UUID | str) -> int:
        """The internal number of a batch, which HTTP clients do not receive."""
        [(number,)] = self.rows(
            "select b.id from helix.batch b where helix.public_id(b.key) = %s", str(batch_id)
        )
        return int(number)

    def pass_time(self, *batches: int) -> None:
        """Move deadlines, due times and expiries of these batches into the past; duties are due."""
        _pass_time(self.superuser, list(batches))

    def set_run(self, run: int, identities: str) -> None:
        """Set the run of the batches whose identities match; no public call does that yet.

        The guards are disabled meanwhile.
        """
        connection = self.superuser
        with connection.transaction():
            connection.execute("set local session_replication_role = replica")
            for trigger in ("a_guard", "asked_once"):
                connection.execute(f"alter table helix.batch disable trigger {trigger}")
            connection.execute(
                "update helix.batch set run = %s where identity ~ %s", (run, identities)
            )
            for trigger in ("a_guard", "asked_once"):
                connection.execute(f"alter table helix.batch enable always trigger {trigger}")

    def number(self, batch_id: uuid.UUID) -> int:
        """The internal id."""
        return self.value("select batch from helix.locate(array[%s::uuid])", batch_id)
