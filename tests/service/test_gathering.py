"""Single submissions travel together, and nobody notices but the disk."""

from __future__ import annotations

import asyncio
import uuid
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta

import pytest

from helixqueue.errors import InvalidIdentity, NotPermitted, Refused, Unavailable
from helixqueue.service.gathering import MAX_ROWS, Gathering, Single
from helixqueue.store import calls, tokens
from helixqueue.store.rows import SubmissionRow
from helixqueue.store.serving import Served
from tests.lab import POOLED, until


def transactions(database, queue, prefix):
    """In how many transactions the batches were made whose identity begins so."""
    return database.value(
        "select count(distinct e.xid) from helix.event e join helix.batch b on b.id = e.batch "
        "where b.queue = %s and starts_with(b.identity, %s) and e.version = 1",
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


@pytest.fixture
def gathered(lab, database):
    """Submits rows together as a token of tenant a, with a fault of the test's choice."""
    token = tokens.fresh()
    assert lab.run(
        tokens.create(
            tenant="a",
            name=f"gather-{lab.q}",
            token_hash=token.hash,
            scopes=["submit"],
            queues=None,
            expires_at=datetime.now(UTC) + timedelta(days=1),
        )
    )

    def gather(identities, fault=None):
        sizes = []

        async def work():
            served = Served(
                database.dsn("service"), connections=2, connect_seconds=5, statement_seconds=10,
                wait_seconds=5, pooled=POOLED,
            )  # fmt: skip

            async def run(call):
                names = call.args[4]
                sizes.append(names.count(",") + 1)
                if fault is not None:
                    fault(names, sizes)
                return await served.run(token.hash, call)

            gathering = Gathering(run)
            done = await asyncio.gather(
                *(
                    gathering.submit(Single("a", lab.q, "text-v1", SubmissionRow(one, "1"), None))
                    for one in identities
                ),
                return_exceptions=True,
            )
            await served.close()
            return done

        return asyncio.run(work()), sizes

    return gather


def test_nobody_pays_for_a_neighbour_that_is_refused(gathered):
    def fault(names, _):
        if "bad" in names:
            raise InvalidIdentity("not this one", code="test")

    done, sizes = gathered(["a", "bad", "b"], fault)
    assert isinstance(done[1], Refused)
    assert [row[0].decision for row in (done[0], done[2])] == ["new", "new"]
    assert sizes == [3, 1, 1, 1]


def test_a_database_that_is_away_is_away_for_all_of_them(gathered):
    def fault(_, sizes):
        if len(sizes) == 1:
            raise Unavailable("gone", outcome_unknown=True)

    done, sizes = gathered(["a", "b", "c"], fault)
    assert [type(one) for one in done] == [Unavailable] * 3
    assert all(one.outcome_unknown for one in done)
    assert len({id(one) for one in done}) == 3
    assert sizes == [3]


def test_a_call_has_a_bound(gathered):
    done, sizes = gathered([f"n{number}" for number in range(MAX_ROWS + 1)])
    assert {row[0].decision for row in done} == {"new"}
    assert sizes == [MAX_ROWS, 1]


def test_a_token_that_is_revoked_meanwhile_submits_nothing(gathered, lab):
    assert lab.run(tokens.revoke(tenant="a", name=f"gather-{lab.q}", reason="lost")) == 1
    done, sizes = gathered(["a", "b"])
    assert all(isinstance(one, NotPermitted) for one in done)
    assert sizes == [2]
    assert (
        lab.run(calls.claim(worker="w", request=uuid.uuid4(), queues=[lab.q], count=2)).leases == ()
    )
