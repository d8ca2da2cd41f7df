"""One claim, one token inside the worker's process; what leaves it is good for one lease alone.

A handler's child process, a log line or an HTTP client has the token of its own lease. Were that
the claim's, it could settle every other lease of the round, also those of other tenants.
"""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from helixqueue.records.lease import lease_nonce
from helixqueue.states import State
from tests.support.lab import Lab, completion, failure

pytestmark = pytest.mark.module_database


@pytest.fixture
def lab(database):
    with Lab(database) as lab:
        lab.queue(backoff_seconds=0)
        lab.queue(tenant="b", backoff_seconds=0)
        yield lab


WRITES = {
    "start": lambda lab, lease: lab.start(lease),
    "renew": lambda lab, lease: lab.renew(lease),
    "complete": lambda lab, lease: lab.complete(lease),
    "fail": lambda lab, lease: lab.fail(lease),
    "release": lambda lab, lease: lab.release(lease),
    "settle and claim": lambda lab, lease: lab.claim_result(0, settle=[completion(lease)]).settled,
    "fail and claim": lambda lab, lease: lab.claim_result(0, settle=[failure(lease)]).settled,
}


def siblings(lab, write):
    """Two leases of one claim, of two tenants."""
    lab.submit("mine")
    lab.submit("theirs", tenant="b")
    leases = {lease.tenant: lease for lease in lab.claim(2, start=write != "start")}
    assert leases["a"].token == leases["b"].token
    return leases["a"], leases["b"]


def row(lab, lease):
    return lab.rows("select to_jsonb(w) from helix.work w where batch = %s", lease.batch)


@pytest.mark.parametrize("write", WRITES)
def test_holder_of_one_leases_token_cannot_touch_its_sibling(lab, write):
    mine, theirs = siblings(lab, write)
    before = row(lab, theirs)
    stolen = theirs._replace(token=mine.own_token)
    [answer] = WRITES[write](lab, stolen)
    assert (answer.answer, answer.owner) == ("refused", "w1")
    assert row(lab, theirs) == before
    assert lab.value("select count(*) from helix.refusal where batch = %s", theirs.batch) == 1
    # Neither the claim's token nor the sibling's own has suffered.
    [answer] = WRITES[write](lab, theirs._replace(token=theirs.own_token))
    assert answer.answer == "ok"
    [answer] = WRITES[write](lab, mine)
    assert answer.answer == "ok"


@pytest.mark.parametrize("write", WRITES)
def test_leases_own_token_does_what_the_claims_token_does(lab, write):
    mine, _ = siblings(lab, write)
    own = mine._replace(token=mine.own_token)
    assert own.token != mine.token
    [answer] = WRITES[write](lab, own)
    assert answer.answer == "ok"
    # A repeat is a repeat by either of them.
    if write not in ("renew", "fail", "fail and claim"):
        assert [write.answer for write in WRITES[write](lab, own)] == ["repeat"]
        assert [write.answer for write in WRITES[write](lab, mine)] == ["repeat"]


def test_stolen_token_does_not_affect_valid_tokens_of_the_call(lab):
    lab.submit_many(4)
    first, second, third, four = lab.claim(4)
    answers = lab.complete(
        first._replace(token=first.own_token),
        second._replace(token=first.own_token),
        third,
        four._replace(token=third.own_token),
    )
    assert {answer.batch: answer.answer for answer in answers} == {
        first.batch: "ok",
        second.batch: "refused",
        third.batch: "ok",
        four.batch: "refused",
    }
    for lease, state in ((first, State.COMPLETED), (second, State.RUNNING), (four, State.RUNNING)):
        assert lab.location(lease.batch_id)[0] == state
    # The result of a refused row is nowhere.
    results = "select count(*) from helix.result where batch = any (%s)"
    assert lab.value(results, [second.batch, four.batch]) == 0


def test_derived_nonce_is_not_derived_again(lab):
    """Else the holder of a lease's token could make further tokens from it."""
    mine, _ = siblings(lab, "complete")
    epoch, nonce, number = mine.own_token
    forged = mine._replace(token=type(mine.token)(epoch, lease_nonce(nonce, mine.batch), number))
    assert [item.answer for item in lab.complete(forged)] == ["refused"]


def test_nonce_of_a_lease_is_the_same_in_python_and_sql(lab):
    whole = st.integers(-(2**63), 2**63 - 1)

    @settings(max_examples=100, deadline=None)
    @given(whole, whole)
    def agree(nonce, batch):
        query = "select helix.lease_nonce(%s::bigint, %s::bigint)"
        assert lab.value(query, nonce, batch) == lease_nonce(nonce, batch)

    agree()


def test_every_claim_has_a_nonce_of_its_own(lab):
    lab.submit_many(20)
    leases = [lease for _ in range(20) for lease in lab.claim(1)]
    assert len({lease.token.nonce for lease in leases}) == 20
    assert len({lease.own_token.nonce for lease in leases}) == 20
