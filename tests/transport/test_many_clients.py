"""Many clients of one service at a time, and a database that goes away behind it."""

from __future__ import annotations

import asyncio
import os
import random
import threading
import time

import pytest

from helixqueue import AsyncHelixClient, HelixClient, Submission, Unavailable
from helixqueue.client.backend import backend_of
from helixqueue.service import ServiceSettings
from tests.support.faults import FaultProxy
from tests.support.lab import BATCHES, wait_until
from tests.support.service import Site, serving, settings_for

CLIENTS = 200
IDENTITIES = 1_000
# A thousand rows cost a fifth of a second of Python at both ends. `make proof` has that time.
EACH = IDENTITIES if os.environ.get("HELIX_PROOF") else 50
SPELT = ("Sämple-{}", "Sa\u0308mple-{}")


def some(seed):
    """Identities in an order of its own, spelt one way or the other."""
    chance = random.Random(seed)
    # Evenly spread, so that all are there: each is submitted by as many clients.
    mine = [n % IDENTITIES for n in range(seed * EACH, (seed + 1) * EACH)]
    chance.shuffle(mine)
    return [Submission(chance.choice(SPELT).format(n), {"n": n}) for n in mine]


@pytest.mark.timeout(600)
def test_200_clients_submitting_the_same_1000_identities_make_1000_batches(database, lab):
    async def submit_all(url, token, seed, together):
        mine = some(seed)
        async with AsyncHelixClient(url, token=token, answer_seconds=600) as helix:
            await backend_of(helix).declare(lab.q)
            await together.wait()
            answers = await helix.submit_many(lab.q, mine)
        return [(row.payload["n"], answer) for row, answer in zip(mine, answers, strict=True)]

    async def crowd(url, token):
        together = asyncio.Barrier(CLIENTS)
        ids = [submit_all(url, token, seed, together) for seed in range(CLIENTS)]
        return [pair for operation in await asyncio.gather(*ids) for pair in operation]

    with serving(settings_for(database, wait_seconds=600, statement_seconds=600)) as url:
        found = asyncio.run(crowd(url, Site(database, url).token()))
    by_identity = {}
    for n, answer in found:
        by_identity.setdefault(n, []).append(answer)
    assert len(by_identity) == IDENTITIES
    for answers in by_identity.values():
        decisions = sorted(answer.decision for answer in answers)
        assert decisions == ["duplicate"] * (CLIENTS * EACH // IDENTITIES - 1) + ["new"]
        assert len({answer.receipt for answer in answers}) == 1
    assert lab.value(BATCHES, lab.q) == IDENTITIES


@pytest.fixture
def behind(database, tmp_path_factory):
    """A service whose database can be taken away, and a client of it."""
    with (
        FaultProxy(database.dsn("service"), tmp_path_factory.mktemp("f")) as faults,
        serving(
            ServiceSettings(faults.dsn, connect_seconds=1, statement_seconds=1, wait_seconds=1)
        ) as url,
    ):
        yield faults, Site(database, url)


def test_client_retries_for_its_retry_seconds_during_an_outage(behind, lab):
    faults, site = behind
    with HelixClient(site.url, token=site.token(), retry_seconds=2) as helix:
        receipt = helix.submit(lab.q, identity="s1", payload={}).receipt
        faults.freeze()
        with site.client() as http:
            response = http.get(f"/v1/batches/{receipt.batch_id}/outcome")
        assert (response.status_code, response.headers["retry-after"]) == (503, "1")
        begun = time.monotonic()
        with pytest.raises(Unavailable, match="database is unreachable") as trouble:
            helix.submit(lab.q, identity="s2", payload={})
        assert trouble.value.retry_after == 1
        assert 1 < time.monotonic() - begun < 15
        faults.thaw()
        # The same client and the same service, without a restart.
        assert wait_until(lambda: _accepted(helix, lab.q)) in {"new", "duplicate"}


def test_call_succeeds_after_a_database_outage(behind, lab):
    faults, site = behind
    with HelixClient(site.url, token=site.token(), retry_seconds=60) as helix:
        backend_of(helix).declare(lab.q)
        faults.freeze()
        answers = []
        caller = threading.Thread(
            target=lambda: answers.append(helix.submit(lab.q, identity="s", payload={}))
        )
        caller.start()
        caller.join(3)
        assert caller.is_alive()
        faults.thaw()
        caller.join(60)
        assert answers[0].receipt
    assert lab.value(BATCHES, lab.q) == 1


def _accepted(helix, queue):
    try:
        return helix.submit(queue, identity="s2", payload={}).decision
    except Unavailable:
        return None
