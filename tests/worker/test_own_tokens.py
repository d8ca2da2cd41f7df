"""A token that leaves the worker process proves one lease, and no other lease of the same claim."""

from __future__ import annotations

import itertools
import json
import random

import pytest

from helixqueue import Queue
from helixqueue.records.lease import lease_nonce
from tests.support.lab import Lab
from tests.support.shift import proven


@pytest.fixture
def lab(database, name):
    with Lab(database, q=name) as lab:
        lab.queue(backoff_seconds=0)
        yield lab


def test_derived_nonces_of_python_and_sql_agree(database):
    chance = random.Random(7)
    edges = [-(2**63), -1, 0, 1, 2**63 - 1]
    pairs = [*itertools.product(edges, edges)]
    pairs += [(chance.randrange(-(2**63), 2**63), chance.randrange(2**40)) for _ in range(200)]
    rows = database.rows(
        "select helix.lease_nonce(nonce, batch) from unnest(%s::bigint[], %s::bigint[])"
        " with ordinality as u (nonce, batch, place) order by place",
        [nonce for nonce, _ in pairs],
        [batch for _, batch in pairs],
    )
    assert [nonce for (nonce,) in rows] == [lease_nonce(*pair) for pair in pairs]


WRITES = {
    "settle": {
        "complete": lambda lab, lease: lab.complete(lease),
        "fail": lambda lab, lease: lab.fail(lease),
    },
    "renew": {"renew": lambda lab, lease: lab.renew(lease)},
    "release": {"release": lambda lab, lease: lab.release(lease)},
    "start": {"start": lambda lab, lease: lab.start(lease)},
}
OPERATIONS = [(kind, write) for kind, writes in WRITES.items() for write in writes]


@pytest.mark.parametrize(("kind", "write"), OPERATIONS)
def test_token_of_a_child_cannot_write_to_a_sibling_of_its_claim(lab, kind, write):
    lab.submit("mine", "sibling")
    mine, sibling = lab.claim(2, start=kind != "start")
    assert mine.token == sibling.token  # inside of the worker process
    assert mine.own_token != sibling.own_token
    assert mine.own_token.nonce != mine.token.nonce
    before = lab.location(sibling.batch_id)

    forged = sibling._replace(token=mine.own_token)
    [answer] = WRITES[kind][write](lab, forged)
    assert (answer.answer, answer.owner) == ("refused", lab.worker)
    assert lab.location(sibling.batch_id) == before
    [kept] = lab.rows(
        "select r.operation, r.worker, r.owner, r.number, r.times from helix.refusal r"
        " where r.batch = %s",
        sibling.batch,
    )
    assert kept == (kind, lab.worker, lab.worker, mine.token.number, 1)

    own = sibling._replace(token=sibling.own_token)
    if kind == "start":
        assert [item.answer for item in lab.start(own)] == ["ok"]
    assert [item.answer for item in lab.renew(own)] == ["ok"]
    assert [item.answer for item in lab.complete(own)] == ["ok"]
    proven(lab.database)


def test_token_of_a_child_is_refused_after_the_end_of_its_sibling(lab):
    """A repeat is answered only to a token that may have made the first call."""
    lab.submit("mine", "sibling")
    mine, sibling = lab.claim(2)
    assert [item.answer for item in lab.complete(sibling)] == ["ok"]
    [answer] = lab.complete(sibling._replace(token=mine.own_token))
    assert answer.answer == "refused"
    for token in (sibling.token, sibling.own_token):
        [answer] = lab.complete(sibling._replace(token=token))
        assert (answer.answer, answer.mismatch) == ("repeat", False)


def test_handler_process_cannot_write_to_other_leases(helix, database, name, process, tmp_path):
    """Each handler tries to settle, release and renew the leases of the others."""
    count = 6
    queue = Queue(name, max_attempts=1)
    made = helix.submit_many(
        queue,
        [
            {"identity": f"s{n}", "payload": {"meddle": count, "directory": str(tmp_path)}}
            for n in range(count)
        ],
    )
    options = {"slots": count, "prefetch": count, "until_idle": True}
    with process(name, options=options, HELIX_APP_RUN_IN="process") as worker:
        assert worker.wait() == 0, worker.err
    assert json.loads(worker.out)["completed"] == count, worker.err
    found = [helix.result(item.receipt) for item in made]
    numbers = [item["number"] for item in found]
    assert len(set(numbers)) < count, "no two of them were leased by one claim"
    assert {answer for item in found for answer in item["answers"]} == {"refused"}
    tried = sum(numbers.count(number) - 1 for number in numbers)
    assert sum(len(item["answers"]) for item in found) >= tried
    stored = dict(
        database.rows(
            "select w.batch, helix.lease_nonce(w.nonce, w.batch) from helix.work w"
            " join helix.queue q on q.id = w.queue where q.name = %s",
            name,
        )
    )
    assert {item["batch"]: int(item["nonce"]) for item in found} == stored
    refused = database.rows(
        "select distinct r.operation from helix.refusal r join helix.work w on w.batch = r.batch"
        " join helix.queue q on q.id = w.queue where q.name = %s",
        name,
    )
    assert sorted(refused) == [("release",), ("renew",), ("settle",)]
    proven(database)
