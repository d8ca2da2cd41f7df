"""Traffic through the engine's SQL functions: every reason of the ledger, in two tenants."""

from __future__ import annotations

import hashlib
import json
import uuid
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from psycopg import sql

from helixqueue.states import FenceState
from tests.support.lab import end_minute, time_control, wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import psycopg

    from tests.support.database import Database

FAR = "8999-01-01Z"
# Arguments whose type PostgreSQL cannot infer from a Python value.
TYPES = {
    "run_at": "timestamptz[]",
    "expires_at": "timestamptz[]",
    "priority": "smallint[]",
    "batch": "bigint[]",
    "epoch": "int[]",
    "nonce": "bigint[]",
    "number": "bigint[]",
    "lease_seconds": "real",
    "backoff_seconds": "real",
    "max_attempts": "smallint",
    "requires": "jsonb",
    "free": "jsonb",
    "done_batch": "bigint[]",
    "done_epoch": "int[]",
    "done_nonce": "bigint[]",
    "done_number": "bigint[]",
    "state": "helix.state",
    "before": "timestamptz",
    "to": "helix.fence_state",
    "quiet_seconds": "real",
    "answer_seconds": "float8",
    "tombstone_seconds": "float8",
}


@dataclass(frozen=True)
class SqlLease:
    """A lease as the SQL functions take it."""

    batch: int
    public_id: uuid.UUID
    epoch: int
    nonce: int
    number: int
    worker: str


class SqlClient:
    """A client of the engine on one connection."""

    def __init__(
        self, connection: psycopg.Connection[Any], database: Database | None = None
    ) -> None:
        self.connection = connection
        self.database = database

    def rows(self, query: str, *args: Any) -> list[tuple[Any, ...]]:
        return self.connection.execute(query, args).fetchall()

    def stored(self, query: str, *args: Any) -> list[tuple[Any, ...]]:
        """Read tables as the superuser; clients have no privilege on them."""
        assert self.database is not None, "a lab without a database reads no tables"
        return self.database.rows(query, *args)

    def call(self, function: str, columns: str = "*", **arguments: Any) -> list[tuple[Any, ...]]:
        """Call a function of the engine with named arguments, without their prefix p_."""
        query = sql.SQL("select {} from {}({}) as answer").format(
            sql.SQL(columns),
            sql.Identifier("helix", function),
            sql.SQL(", ").join(
                sql.SQL("{} => {}{}").format(
                    sql.Identifier(f"p_{name}"),
                    sql.Placeholder(name),
                    sql.SQL(_cast(name, value)),
                )
                for name, value in arguments.items()
            ),
        )
        return self.connection.execute(query, arguments).fetchall()

    def queue(self, tenant: str = "a", name: str = "q", **settings: Any) -> None:
        self.call("set_queue_v1", tenant=tenant, queue=name, actor="lab", **settings)

    def submit(
        self,
        *identities: str,
        tenant: str = "a",
        queue: str = "q",
        payload: str = '{"tube":1}',
        **options: Any,
    ) -> list[uuid.UUID]:
        """Submit all identities with the same payload and options."""
        answers = self.call(
            "submit_v1",
            "place, decision, helix.public_id(key)",
            tenant=tenant,
            queue=queue,
            actor="lab",
            profile="text-v1",
            identity=list(identities),
            payload=[payload] * len(identities),
            **{name: [value] * len(identities) for name, value in options.items()},
        )
        assert {answer[1] for answer in answers} <= {"new", "duplicate", "conflict"}, answers
        return [answer[2] for answer in sorted(answers)]

    def claim(
        self,
        count: int = 1,
        *,
        worker: str = "w1",
        queue: str = "q",
        start: bool = True,
        seconds: float | None = None,
    ) -> list[SqlLease]:
        rows = self.call(
            "claim_v1",
            "batch, helix.public_id(key), payload",
            worker=worker,
            request=uuid.uuid4(),
            queues=[queue],
            count=count,
            start=start,
            lease_seconds=seconds,
        )
        if not rows:
            return []
        # The first row is the header of all leases.
        [(_, _, header), *leases] = rows
        shared = json.loads(header)
        token = shared["epoch"], shared["nonce"], shared["number"]
        return [SqlLease(batch, public_id, *token, worker) for batch, public_id, _ in leases]

    def act(self, verb: str, held: Sequence[SqlLease], **options: Any) -> list[str]:
        """start, renew, settle or release; `options` are further arguments of the function."""
        answers = self.call(
            f"{verb}_v1",
            "answer.answer",
            worker=held[0].worker,
            batch=[lease.batch for lease in held],
            epoch=[lease.epoch for lease in held],
            nonce=[lease.nonce for lease in held],
            number=[lease.number for lease in held],
            **options,
        )
        return [answer for (answer,) in answers]

    def complete(self, held: Sequence[SqlLease]) -> list[str]:
        return self.act(
            "settle",
            held,
            outcome=["completed"] * len(held),
            result=['{"reads":7}'] * len(held),
        )

    def fail(self, held: Sequence[SqlLease], *, permanent: bool = False) -> list[str]:
        return self.act(
            "settle",
            held,
            outcome=["failed"] * len(held),
            failure=["Broken"] * len(held),
            detail=["pipette 🧪 broke"] * len(held),
            permanent=[permanent] * len(held),
        )

    def number(self, batch_id: uuid.UUID) -> int:
        """The internal id."""
        [(batch,)] = self.stored("select batch from helix.locate(array[%s::uuid])", batch_id)
        return batch

    def decide(self, verb: str, ids: Sequence[uuid.UUID]) -> list[str]:
        """cancel, retry or erase."""
        answers = self.call(
            f"{verb}_v1", "answer.answer", ids=list(ids), actor="ann", detail="because"
        )
        return [answer for (answer,) in answers]


def _cast(name: str, value: object) -> str:
    kind = TYPES.get(name, "")
    if name == "to" and isinstance(value, int):  # a transaction, not the state of a fence
        return "::bigint"
    if isinstance(value, list) and not kind.endswith("[]"):
        return ""
    return kind and "::" + (kind if isinstance(value, list) else kind.removesuffix("[]"))


@contextmanager
def sql_client(database: Database, role: str = "pool") -> Iterator[SqlClient]:
    with database.connect(role) as connection:
        yield SqlClient(connection, database)


def run_traffic(database: Database) -> None:
    """Create at least one batch for each reason, each kind of work row and each table."""
    with sql_client(database) as a, sql_client(database, "operator") as operator:
        # No lease expires and no batch is stalled before the database is copied.
        late = {"stalled_after_seconds": 86_400}
        late_ends = {"lease_seconds": 86_400, **late}
        for tenant in ("a", "b"):
            a.queue(tenant, backoff_seconds=0, max_attempts=2, **late_ends)
        a.queue(name="limited", key_limit=1, **late_ends)
        a.queue(name="brief", **late)
        a.queue(name="old", **late)
        a.queue(name="still", paused=True, **late)

        a.submit("Sämple-1", "s2", "s3", "s4", "s5", "s6", "s7", "s8")
        a.submit("s1", "s2", "s3", tenant="b", payload='{"tube":"Ω"}')
        a.submit("s2")
        a.submit("s3", payload='{"tube":2}')

        completed = settle_every_way(a, operator)
        lose_every_way(a, operator)
        wait_every_way(a, database)
        # Erased, once with the identity; retired, with entries of retired batches alone, which are
        # archived, and one that has a live batch as well.
        assert operator.decide("erase", [completed.public_id]) == ["ok"]
        [named] = a.submit("named", queue="limited", limit_key="sequencer-8")
        a.complete(a.claim(1, queue="limited"))
        operator.call("erase_v1", ids=[named], actor="ann", detail="because", identity=True)
        a.submit("o1", "o2", "o3", queue="old")
        a.complete(a.claim(2, queue="old"))
        assert a.rows("select helix.retire_v1('a', 'old', 'COMPLETED', 'infinity')") == [(2,)]
        archive_all(operator)
        fence_every_way(a)
        append_events(a)
        deliver_every_way(a)
        publish_output(a, operator)
        # left as they are: ASSIGNED, RUNNING and ready
        a.submit("t1", "t2", "t3", "t4")
        a.claim(1, start=False)
        a.claim(1)
        end_minute(database)
        a.submit("t1")


def publish_output(a: SqlClient, operator: SqlClient) -> None:
    """A batch with one output file, whose manifest is sealed."""
    uri = "memory://lab"
    operator.call("set_output_root_v1", tenant="a", uri=uri, actor="ann", reason="new store")
    a.queue(name="outputs", lease_seconds=86_400, stalled_after_seconds=86_400, outputs=uri)
    a.submit("f1", queue="outputs")
    [lease] = a.claim(1, queue="outputs")
    token = {name: getattr(lease, name) for name in ("batch", "epoch", "nonce", "number")}
    a.call("open_outputs_v1", worker="w1", **token)
    a.call(
        "register_outputs_v1", worker="w1", **token, first=0, path=["reads/a.fastq"], size=[4],
        sha256=[b"h" * 32], files=1,
    )  # fmt: skip
    a.complete([lease])
    [(manifest,)] = a.call("take_outputs_v1", "manifest", limit=1)
    a.call("end_outputs_v1", manifest=manifest, outcome="sealed", files=1)


def append_events(a: SqlClient) -> None:
    """Two events of an entity in a user ledger, and a feed of it."""
    a.call(
        "declare_ledger_v1", tenant="a", ledger="dispatch", actor="w1",
        machine='{"ASKED": ["DONE"], "DONE": []}', initial=["ASKED"], strict=True, bound=False,
        ignored=[],
    )  # fmt: skip
    for seq, kind in ((1, "ASKED"), (2, "DONE")):
        a.call(
            "append_v1", tenant="a", ledger="dispatch", actor="w1", entity=["e1"], seq=[seq],
            kind=[kind], payload=[f'{{"n":{seq}}}'], node=[None],
        )  # fmt: skip
    a.call(
        "declare_feed_v1", tenant="a", feed="mail", actor="w1", ledger="dispatch", queue=None,
        now=False,
    )  # fmt: skip


def deliver_every_way(a: SqlClient) -> None:
    """Submissions with sources; a dead letter, one that is redriven and an intake's report."""
    a.call(
        "submit_from_v1", tenant="a", queue="still", actor="intake", profile="text-v1",
        kind=["stream"] * 2, name=["in"] * 2, id=["1-1", "2-1"], identity=["d1", "d1"],
        payload=["{}", "{}"],
    )  # fmt: skip
    a.call("write_letters_v1", **letters("in", "x", "3-1", "4-1"))
    redriven = a.rows(
        "select id from helix.read_letters_v1('a', 'open', null, null, 1000, 9, 9)"
        " as r (edge, letter), lateral (select (r.letter).id) as n (id) limit 1"
    )
    a.call(
        "redrive_letter_v1", letter=redriven[0][0], actor="ann", reason="fixed", queue="still",
        profile="text-v1", identity="d2", payload="{}", raw=None, revision=None, priority=None,
    )  # fmt: skip
    a.call("count_try_v1", tenant="a", kind="stream", name="in", source="5-1")
    a.call(
        "report_stream_v1", tenant="a", stream="in", group="g", consumer="c",
        started_at="2026-01-01Z", problem=None, figures="{}",
    )  # fmt: skip
    a.call("look_stream_v1", tenant="a", stream="in", group="g", seconds=0, figures="{}")


def letters(name: str, body: str, *sources: str, tenant: str = "a") -> dict[str, Any]:
    """Arguments of `write_letters_v1`."""
    count = len(sources)
    return {
        "tenant": tenant, "actor": "intake", "kind": "stream", "name": name,
        "source": list(sources), "queue": [None] * count, "reason": ["json"] * count,
        "detail": [body] * count, "body": [body.encode()] * count, "size": [len(body)] * count,
        "digest": [hashlib.sha256(body.encode()).digest()] * count, "key": [None] * count,
    }  # fmt: skip


def settle_every_way(a: SqlClient, operator: SqlClient) -> SqlLease:
    """Completed; failed with attempts left, then without; failed permanently and retried."""
    held = a.claim(4)
    a.complete(held[:1])
    assert a.complete(held[:1]) == ["repeat"]
    a.fail(held[1:2])
    a.fail(held[2:4], permanent=True)
    a.fail(a.claim(1), permanent=True)
    operator.decide("retry", [held[2].public_id])
    state = "select state from helix.work where batch = %s"
    assert a.stored(state, held[2].batch) == [("PENDING",)]
    return held[0]


def lose_every_way(a: SqlClient, operator: SqlClient) -> None:
    """Released, lost, recovered, and cancelled while pending and while running."""
    given_back = a.claim(2, worker="w2")
    a.act("release", given_back)
    assert a.complete(given_back) == ["refused"] * 2  # the token ended with the lease
    assert len(a.claim(2, worker="w3", seconds=0.05)) == 2
    leased = "select 1 from helix.work where state in ('ASSIGNED', 'RUNNING')"
    wait_until(lambda: a.rows("select helix.reap_v1('reaper')") and not a.stored(leased))
    assert len(a.claim(1, worker="w4", start=False)) == 1
    assert operator.rows("select ended from helix.recover_v1('ann', 'restored')") == [(1,)]
    running = a.claim(1, worker="w5")
    operator.decide("cancel", [running[0].public_id, *a.submit("s9")])


def wait_every_way(a: SqlClient, database: Database) -> None:
    """Blocked for each of the three causes, unblocked again, and one expired."""
    a.submit("later", run_at=FAR)
    a.submit("p1", "p2", queue="still")
    a.submit("l1", "l2", "l3", queue="limited", limit_key="sequencer-7")
    a.complete(a.claim(3, queue="limited"))
    a.claim(3, queue="limited")
    [(tomorrow,)] = a.rows("select clock_timestamp() + interval '1 day'")
    [soon] = a.submit("soon", run_at=tomorrow)
    [expiring] = a.submit("x", queue="brief", run_at=FAR, expires_at=tomorrow)
    with time_control(database) as pass_time, sql_client(database, "app_a") as own:
        pass_time(a.number(soon))
        assert a.rows("select helix.promote_v1()") == [(1,)]
        # A role bound to its tenant runs this duty in every claim.
        pass_time(a.number(expiring))
        assert own.claim(queue="brief") == []
        ended = "select e.ending from helix.ended e join helix.queue q on q.id = e.queue"
        assert a.stored(f"{ended} where q.name = 'brief'") == [(3,)]


def archive_all(operator: SqlClient) -> None:
    """Run every duty; one of them archives the last entries of the ledger."""
    # More than one round: the first run of the metrics ends with the epoch before the recovery.
    while not operator.stored("select 1 from helix.entry where batch is null"):
        operator.call("set_duty_v1", duty="archive", every_seconds=30)
        while operator.rows("select helix.run_duty_v1('ann')"):
            pass


def fence_every_way(a: SqlClient, tenant: str = "a", word: str = "order") -> dict[str, bytes]:
    """Create a fence in every state and a refused seal; return the keys by state."""

    def claim(identity: str, *, start: bool = True, tube: int = 1) -> tuple[Any, ...]:
        [row] = a.call(
            "claim_fence_v1", "decision, key, epoch, number",
            tenant=tenant, name=f"{word}-name", identity=f"{word}-{identity}",
            request=f'{{"tube":{tube}}}', actor=f"{word}-w1", nonce=7, start=start,
            lease_seconds=3600, quiet_seconds=3600,
        )  # fmt: skip
        return row

    def token(claimed: tuple[Any, ...]) -> dict[str, Any]:
        return {"key": claimed[1], "epoch": claimed[2], "nonce": 7, "number": claimed[3]}

    def seal(token: dict[str, Any]) -> list[tuple[Any, ...]]:
        return a.call(
            "seal_fence_v1", "decision", **token, actor=word, effect=f"{word}-1", form="json",
            answer=word.encode(), omitted=False, answer_seconds=3600, tombstone_seconds=3600,
        )  # fmt: skip

    claims = {state: claim(state.lower(), start=state != "CLAIMED") for state in FenceState}
    assert seal(token(claims["SEALED"])) == [("sealed",)]
    assert seal(token(claims["SEALED"]) | {"nonce": 8}) == [("fenced_out",)]
    for state in ("RELEASED", "IN_DOUBT"):
        a.call("step_fence_v1", **token(claims[state]), to=state, actor=word, detail=word)
    assert claim("sealed")[0] == "repeated"
    assert claim("in_doubt", tube=2)[0] == "mismatch"
    return {state: row[1] for state, row in claims.items()}
