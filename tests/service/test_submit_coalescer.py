"""Single submissions share commits; each keeps its own result."""

from __future__ import annotations

import asyncio
import json
import uuid
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta

import pytest

from helixqueue.engine import calls, tokens
from helixqueue.errors import InvalidIdentity, NotPermitted, Refused, Unavailable
from helixqueue.postgres.tenant_sessions import TenantSessions
from helixqueue.records.submission import SubmissionRow
from helixqueue.service.submit_coalescer import MAX_CHARS, MAX_ROWS, SingleSubmit, SubmitCoalescer
from tests.support.faults import FaultProxy
from tests.support.lab import POOLED, Lab, wait_until


def transactions(database, queue, prefix):
    """The number of transactions that created the batches with this prefix."""
    return database.value(
        "select count(distinct e.position) from helix.event e join helix.batch b on b.id = e.batch "
        "join helix.queue q on q.id = b.queue "
        "where q.name = %s and starts_with(b.identity, %s) and e.version = 1",
        queue,
        prefix,
    )


def waiting(database):
    return database.value(
        "select count(*) from pg_stat_activity "
        "where usename = 'service' and wait_event_type = 'Lock'"
    )


def test_submissions_during_a_commit_share_the_next_one(http, lab, database):
    path = f"/v1/queues/{lab.q}/batches"
    http.post(path, json={"identity": "known", "payload": 1})
    with ThreadPoolExecutor(24) as crowd:
        with lab.store.connection.transaction():
            lab.submit("first", payload=1)  # uncommitted: a submission of it must wait
            first = crowd.submit(http.post, path, json={"identity": "first", "payload": 1})
            wait_until(lambda: waiting(database) == 1)
            sent = [
                crowd.submit(
                    http.post, path, json={"identity": f"then-{n % 10}", "payload": n // 20}
                )
                for n in range(22)
            ]
            wait_until(lambda: "under_way 24" in http.get("/metrics").text)
        found = [item.result().json() for item in sent]
        assert first.result().json()["decision"] == "duplicate"
    assert transactions(database, lab.q, "then-") == 1
    # Each has its own result: ten new, ten duplicates, two conflicts.
    decisions = [item.get("decision") or item["type"].rpartition(":")[2] for item in found]
    assert sorted(decisions) == sorted(["new"] * 10 + ["duplicate"] * 10 + ["conflict"] * 2)


class Sending:
    """A coalescer of a token of tenant a that records its calls."""

    def __init__(self, lab, database):
        self.q = lab.q
        self.dsn = database.dsn("service")
        self.sizes = []  # of each call
        self.token = tokens.new_token()
        with Lab(database, "operator") as operator:
            assert operator.run(
                tokens.create(
                    tenant="a",
                    name=f"gather-{lab.q}",
                    token_hash=self.token.hash,
                    scopes=["submit"],
                    queues=None,
                    expires_at=datetime.now(UTC) + timedelta(days=1),
                )
            )

    @asynccontextmanager
    async def open(self, fault=None):
        """Submit one identity; `fault` is awaited before each call."""
        served = TenantSessions(
            self.dsn, connections=2, connect_seconds=5, statement_seconds=10, wait_seconds=5,
            pooled=POOLED,
        )  # fmt: skip

        async def run(call):
            names = call.args[4]
            self.sizes.append(names.count(",") + 1)
            if fault is not None:
                await fault(names)
            return await served.run(self.token.hash, call)

        gathering = SubmitCoalescer(run)

        async def submit(identity, payload="1"):
            row = SubmissionRow(identity, payload)
            [response] = await gathering.submit(SingleSubmit("a", self.q, "text-v1", row, None))
            return response.decision

        yield submit
        await served.close()

    def together(self, *identities, fault=None, payload="1"):
        """The decision or the error of each."""

        async def work():
            async with self.open(fault) as submit:
                sent = [submit(item, payload) for item in identities]
                return await asyncio.gather(*sent, return_exceptions=True)

        return asyncio.run(work())


@pytest.fixture
def sending(lab, database):
    return Sending(lab, database)


def test_refused_row_does_not_affect_others_of_the_call(sending):
    async def fault(names):
        if "bad" in names:
            raise InvalidIdentity("not this one", code="test")

    first, bad, second = sending.together("a", "bad", "b", fault=fault)
    assert isinstance(bad, Refused)
    assert [first, second] == ["new", "new"]
    assert sending.sizes == [3, 1, 1, 1]


def test_disconnected_client_does_not_cancel_others(sending):
    """One client disconnects during its call, one while it waits for the next."""
    sent, go = asyncio.Event(), asyncio.Event()

    async def hold(_):
        sent.set()
        await go.wait()

    async def work():
        async with sending.open(hold) as submit:
            under_way = asyncio.create_task(submit("under-way"))
            await sent.wait()
            waiting = [asyncio.create_task(submit(item)) for item in ("a", "leaves", "b")]
            await asyncio.sleep(0)  # lets them start
            under_way.cancel()
            waiting[1].cancel()
            go.set()
            return await asyncio.gather(under_way, *waiting, return_exceptions=True)

    under_way, first, left, second = asyncio.run(work())
    assert (first, second) == ("new", "new")
    assert all(isinstance(item, asyncio.CancelledError) for item in (under_way, left))
    assert sending.sizes == [1, 3]
    # The submissions took effect, and repeats are duplicates.
    assert sending.together("under-way", "leaves") == ["duplicate"] * 2


def test_unreachable_database_fails_every_row_of_a_call(sending):
    async def fault(_):
        raise Unavailable("gone", outcome_unknown=True)

    done = sending.together("a", "b", "c", fault=fault)
    assert [type(item) for item in done] == [Unavailable] * 3
    assert all(item.outcome_unknown for item in done)
    assert len({id(item) for item in done}) == 3
    assert sending.sizes == [3]


@pytest.mark.parametrize(
    ("lose", "again"), [(FaultProxy.lose_reply, "duplicate"), (FaultProxy.lose_request, "new")]
)
def test_connection_loss_reports_an_unknown_outcome_to_every_row(sending, tmp_path, lose, again):
    """Whether the commit happened is unknown, and every row reports that."""
    with FaultProxy(sending.dsn, tmp_path) as faults:
        sending.dsn = faults.dsn
        lose(faults, "submit_v1")
        done = sending.together("a", "b", "c")
        assert faults.fired == 1
        assert [type(item) for item in done] == [Unavailable] * 3
        assert all(item.outcome_unknown for item in done)
        assert sending.together("a", "b", "c") == [again] * 3


def test_internal_error_fails_every_waiting_row(sending):
    async def fault(_):
        raise ZeroDivisionError

    done = sending.together("a", "b", fault=fault)
    assert [type(item) for item in done] == [ZeroDivisionError] * 2
    assert sending.together("a", "b") == ["new"] * 2


def test_rows_of_a_call_are_limited(sending):
    done = sending.together(*(f"n{number}" for number in range(MAX_ROWS + 1)))
    assert set(done) == {"new"}
    assert sending.sizes == [MAX_ROWS, 1]


def test_call_size_is_limited(sending):
    heavy = json.dumps("x" * (MAX_CHARS // 3))
    assert sending.together(*"abcde", payload=heavy) == ["new"] * 5
    assert sending.sizes == [3, 2]


def test_token_revoked_while_waiting_submits_nothing(sending, lab):
    with Lab(lab.database, "operator") as operator:
        revoke = tokens.revoke(tenant="a", name=f"gather-{lab.q}", reason="lost")
        assert operator.run(revoke) == 1
    assert all(isinstance(item, NotPermitted) for item in sending.together("a", "b"))
    assert sending.sizes == [2]
    assert (
        lab.run(calls.claim(worker="w", request=uuid.uuid4(), queues=[lab.q], count=2)).leases == ()
    )
