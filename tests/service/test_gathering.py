"""Single submissions travel together, and nobody notices but the disk."""

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
from helixqueue.service.submit_coalescer import MAX_CHARS, MAX_ROWS, Single, SubmitCoalescer
from tests.support.faults import Faults
from tests.support.lab import POOLED, Lab, until


def transactions(database, queue, prefix):
    """In how many transactions the batches were made whose identity begins so."""
    return database.value(
        "select count(distinct e.xid) from helix.event e join helix.batch b on b.id = e.batch "
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


def test_what_comes_during_a_commit_goes_together_in_the_next_one(http, lab, database):
    path = f"/v1/queues/{lab.q}/batches"
    http.post(path, json={"identity": "known", "payload": 1})
    with ThreadPoolExecutor(24) as crowd:
        with lab.store.connection.transaction():
            lab.submit("first", payload=1)  # not committed: whoever submits it must wait
            first = crowd.submit(http.post, path, json={"identity": "first", "payload": 1})
            until(lambda: waiting(database) == 1)
            asked = [
                crowd.submit(
                    http.post, path, json={"identity": f"then-{n % 10}", "payload": n // 20}
                )
                for n in range(22)
            ]
            until(lambda: "under_way 24" in http.get("/metrics").text)
        told = [one.result().json() for one in asked]
        assert first.result().json()["decision"] == "duplicate"
    assert transactions(database, lab.q, "then-") == 1
    # Each has its own answer: ten are new, ten came again, two with something else.
    decisions = [one.get("decision") or one["type"].rpartition(":")[2] for one in told]
    assert sorted(decisions) == sorted(["new"] * 10 + ["duplicate"] * 10 + ["conflict"] * 2)


class Sending:
    """Gathers the submissions of a token of tenant a, and shows what is sent."""

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
        """Submits one identity; `fault` is awaited before each call."""
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
            [told] = await gathering.submit(Single("a", self.q, "text-v1", row, None))
            return told.decision

        yield submit
        await served.close()

    def together(self, *identities, fault=None, payload="1"):
        """Their decisions, or what each was told instead."""

        async def work():
            async with self.open(fault) as submit:
                asked = [submit(one, payload) for one in identities]
                return await asyncio.gather(*asked, return_exceptions=True)

        return asyncio.run(work())


@pytest.fixture
def sending(lab, database):
    return Sending(lab, database)


def test_nobody_pays_for_a_neighbour_that_is_refused(sending):
    async def fault(names):
        if "bad" in names:
            raise InvalidIdentity("not this one", code="test")

    first, bad, second = sending.together("a", "bad", "b", fault=fault)
    assert isinstance(bad, Refused)
    assert [first, second] == ["new", "new"]
    assert sending.sizes == [3, 1, 1, 1]


def test_whoever_leaves_takes_nobody_along(sending):
    """One left while its call was under way, one while it waited for the next."""
    sent, go = asyncio.Event(), asyncio.Event()

    async def hold(_):
        sent.set()
        await go.wait()

    async def work():
        async with sending.open(hold) as submit:
            under_way = asyncio.create_task(submit("under-way"))
            await sent.wait()
            waiting = [asyncio.create_task(submit(one)) for one in ("a", "leaves", "b")]
            await asyncio.sleep(0)  # they begin
            under_way.cancel()
            waiting[1].cancel()
            go.set()
            return await asyncio.gather(under_way, *waiting, return_exceptions=True)

    under_way, first, left, second = asyncio.run(work())
    assert (first, second) == ("new", "new")
    assert all(isinstance(one, asyncio.CancelledError) for one in (under_way, left))
    assert sending.sizes == [1, 3]
    # What was asked was done all the same, and whoever comes again is told so.
    assert sending.together("under-way", "leaves") == ["duplicate"] * 2


def test_a_database_that_is_away_is_away_for_all_of_them(sending):
    async def fault(_):
        raise Unavailable("gone", outcome_unknown=True)

    done = sending.together("a", "b", "c", fault=fault)
    assert [type(one) for one in done] == [Unavailable] * 3
    assert all(one.outcome_unknown for one in done)
    assert len({id(one) for one in done}) == 3
    assert sending.sizes == [3]


@pytest.mark.parametrize(
    ("lose", "again"), [(Faults.lose_reply, "duplicate"), (Faults.lose_request, "new")]
)
def test_a_link_cut_in_the_middle_leaves_everybody_an_honest_doubt(sending, tmp_path, lose, again):
    """Committed or never heard of: nobody here can know, nobody is told otherwise."""
    with Faults(sending.dsn, tmp_path) as faults:
        sending.dsn = faults.dsn
        lose(faults, "submit_v1")
        done = sending.together("a", "b", "c")
        assert faults.fired == 1
        assert [type(one) for one in done] == [Unavailable] * 3
        assert all(one.outcome_unknown for one in done)
        assert sending.together("a", "b", "c") == [again] * 3


def test_a_mistake_of_ours_leaves_nobody_waiting(sending):
    async def fault(_):
        raise ZeroDivisionError

    done = sending.together("a", "b", fault=fault)
    assert [type(one) for one in done] == [ZeroDivisionError] * 2
    assert sending.together("a", "b") == ["new"] * 2


def test_a_call_has_a_bound(sending):
    done = sending.together(*(f"n{number}" for number in range(MAX_ROWS + 1)))
    assert set(done) == {"new"}
    assert sending.sizes == [MAX_ROWS, 1]


def test_a_call_has_a_bound_in_bytes(sending):
    heavy = json.dumps("x" * (MAX_CHARS // 3))
    assert sending.together(*"abcde", payload=heavy) == ["new"] * 5
    assert sending.sizes == [3, 2]


def test_a_token_that_is_revoked_meanwhile_submits_nothing(sending, lab):
    with Lab(lab.database, "operator") as operator:
        revoke = tokens.revoke(tenant="a", name=f"gather-{lab.q}", reason="lost")
        assert operator.run(revoke) == 1
    assert all(isinstance(one, NotPermitted) for one in sending.together("a", "b"))
    assert sending.sizes == [2]
    assert (
        lab.run(calls.claim(worker="w", request=uuid.uuid4(), queues=[lab.q], count=2)).leases == ()
    )
