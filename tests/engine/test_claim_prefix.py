"""Large payloads: a claim gives as much as one answer carries, whatever was asked for."""

from __future__ import annotations

import uuid

import pytest

from helixqueue.records.claim_hints import Hints
from tests.support.lab import Lab, completion

pytestmark = pytest.mark.module_database

# The seventeenth is the one that makes 16 MiB full. Such payloads are compressed to a hundredth: it
# is their size in the answer that counts, not that on disk.
LARGE = {"reads": "A" * 1000 * 1024}
PORTION = 17


@pytest.fixture
def lab(database):
    with Lab(database) as lab:
        lab.queue()
        yield lab


def test_claim_of_large_payloads_returns_a_prefix(lab):
    lab.submit_many(20, payload=LARGE)
    first, second, third = (lab.claim_result(1000, start=True) for _ in range(3))
    assert [len(item.leases) for item in (first, second, third)] == [PORTION, 3, 0]
    assert [item.more for item in (first, second, third)] == [True, False, False]
    found = [lease.identity for lease in first.leases + second.leases]
    assert sorted(found) == [f"s{n:05}" for n in range(20)]
    assert sorted(found[:PORTION]) == [f"s{n:05}" for n in range(PORTION)]  # from the first


def test_small_claims_are_not_truncated(lab):
    lab.submit_many(16, payload=LARGE)
    claimed = lab.claim_result(16)
    assert (len(claimed.leases), claimed.more) == (16, False)


def test_repeat_of_a_truncated_claim_returns_the_same_prefix(lab):
    lab.submit_many(20, payload=LARGE)
    request = uuid.uuid4()
    first, again = (lab.claim_result(20, request=request) for _ in range(2))
    assert {lease.batch for lease in again.leases} == {lease.batch for lease in first.leases}
    assert len(first.leases) == PORTION


def test_truncated_claim_still_answers_its_settlements(lab):
    lab.submit_many(20, payload=LARGE)
    claimed = lab.claim_result(20, start=True)
    lab.submit_many(20, "t", payload=LARGE)
    claimed = lab.claim_result(20, settle=[completion(lease) for lease in claimed.leases])
    assert [item.answer for item in claimed.settled] == ["ok"] * PORTION
    assert (len(claimed.leases), claimed.more) == (PORTION, True)


def test_hints_do_not_skip_batches_after_a_prefix(lab):
    hints, value = Hints(), []
    lab.submit_many(40, payload=LARGE)
    for clock in range(3):
        claimed = lab.claim_result(30, start=True, hints=hints.now(clock * 0.01))
        hints.learn(claimed.hints, short=len(claimed.leases) < 30 and not claimed.more)
        value += [lease.batch for lease in claimed.leases]
    assert len(value) == len(set(value)) == 40
