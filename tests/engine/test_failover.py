"""After a failover that lost the tail of the log, sequences have gone back: nothing is used twice.

PostgreSQL logs a sequence 32 numbers ahead, so after a longer loss it counts on from below what
clients have seen. Here the sequences are set back by hand, and the timeline that the epoch notes
is not the server's any more. tests/crash/test_tail_lost.py does the same with a real standby.
"""

from __future__ import annotations

import pytest

from helixqueue.engine import calls
from helixqueue.states import State
from tests.support.lab import Lab, completion, engine_function, failure

SEQUENCES = ("batch_id", "entry_id", "fence_number")
FENCE = """
select (f).number, (f).epoch from (select helix.claim_fence_v1(
  p_tenant => 'a', p_name => 'refund', p_identity => %s, p_request => '{}', p_actor => 'w1',
  p_nonce => 7, p_start => true, p_lease_seconds => 60, p_quiet_seconds => 60) as f) one
"""


@pytest.fixture
def lab(database):
    with Lab(database, q="q") as lab:
        lab.queue(backoff_seconds=0)
        yield lab


class Before:
    """A ledger with numbers of every kind, and leases under way."""

    def __init__(self, lab):
        self.lab = lab
        self.submitted = lab.submit_many(12)
        leases = lab.claim(5)
        lab.complete(leases[0])
        self.failed = leases[1]
        lab.fail(leases[1], permanent=True)
        self.leases = leases[2:]
        [self.assigned] = lab.claim(1, start=False)
        for number in range(3):
            lab.rows_as_client(FENCE, f"order-{number}")
        self.epoch = leases[0].token.epoch
        self.highest = self.numbers()

    def numbers(self):
        """The highest number of each sequence that clients can know."""
        [row] = self.lab.rows(
            "select (select max(id) from helix.batch),"
            " greatest((select max(id) from helix.entry), (select max(number) from helix.work)),"
            " (select max(number) from helix.fence)"
        )
        return dict(zip(SEQUENCES, row, strict=True))


@pytest.fixture
def before(lab):
    return Before(lab)


def fail_over(lab):
    """Another timeline than the epoch noted, and sequences as they were long ago."""
    for name in SEQUENCES:
        lab.value("select setval(%s, 1, false)", f"helix.{name}")
    with engine_function(lab.database) as execute:
        assert execute("update helix.epoch set timeline = '00000000'") is None


def submitted(lab, _before):
    [answer] = lab.submit("new")
    assert answer.decision == "new"


def submitted_many(lab, _before):
    answers = lab.submit_many(40, "many")
    assert {answer.decision for answer in answers} == {"new"}


def submitted_with_options(lab, _before):
    answers = lab.submit("p1", "p2", priority=3, limit_key="k")
    assert {answer.decision for answer in answers} == {"new"}


def claimed(lab, _before):
    assert len(lab.claim(3)) == 3


def claimed_one(lab, _before):
    assert len(lab.claim(1)) == 1


def settled(lab, before):
    """What both sides know goes on under its old token."""
    assert [item.answer for item in lab.complete(before.leases[0])] == ["ok"]


def settled_many(lab, before):
    first, second, third = before.leases
    answers = lab.settle(completion(first), completion(second), failure(third))
    assert [answer.answer for answer in answers] == ["ok"] * 3


def settled_and_claimed(lab, before):
    answer = lab.claim_result(2, settle=[completion(before.leases[0])], start=True)
    assert [item.answer for item in answer.settled] == ["ok"]
    assert len(answer.leases) == 2


def cancelled(lab, before):
    ids = [answer.receipt.batch_id for answer in before.submitted[8:]]
    assert [item.answer for item in lab.decide("cancel", *ids)] == ["ok"] * 4


def started(lab, before):
    assert [item.answer for item in lab.start(before.assigned)] == ["ok"]


def released(lab, before):
    assert [item.answer for item in lab.release(*before.leases)] == ["ok"] * 3


def retried(lab, before):
    assert [item.answer for item in lab.decide("retry", before.failed.batch_id)] == ["ok"]


def fenced(lab, _before):
    assert len(lab.rows_as_client(FENCE, "order-new")) == 1


def recovered(lab, before):
    with Lab(lab.database, "operator") as operator:
        epoch, ended, _ = operator.run(calls.recover(actor="ann", reason="failed over"))
    assert epoch > before.epoch
    assert ended == 4


FIRST = {
    verb.__name__: verb
    for verb in (
        submitted, submitted_many, submitted_with_options, claimed, claimed_one, settled,
        settled_many, settled_and_claimed, cancelled, started, released, retried, fenced, recovered,
    )
}  # fmt: skip


@pytest.mark.parametrize("first", FIRST)
def test_no_number_is_reused_after_failover_by_any_first_call(lab, before, first):
    entries = {entry for (entry,) in lab.rows("select id from helix.entry")}
    fail_over(lab)

    FIRST[first](lab, before)

    # A new epoch is in force, and every sequence is ahead of what was seen.
    assert lab.value("select max(number) from helix.epoch") > before.epoch
    for name in SEQUENCES:
        ahead = lab.value(f"select last_value from helix.{name}")
        assert ahead > before.highest[name], name
    # So is all that is drawn from here on, by this call and the next.
    lab.submit("next", "and next")
    leases = lab.claim(20)
    assert {lease.token.epoch for lease in leases} == {
        lab.value("select max(number) from helix.epoch")
    }
    assert min(lease.token.number for lease in leases) > before.highest["entry_id"]
    assert lab.decide("cancel", leases[0].batch_id)[0].answer == "ok"
    lab.complete(*leases[1:])
    [(number, epoch)] = lab.rows_as_client(FENCE, "order-next")
    assert number > before.highest["fence_number"]
    assert epoch > before.epoch
    fresh = {entry for (entry,) in lab.rows("select id from helix.entry")} - entries
    assert min(fresh) > before.highest["entry_id"]
    identities = ("new", "next", "and next")
    for (batch,) in lab.rows(
        "select id from helix.batch where identity = any (%s)", list(identities)
    ):
        assert batch > before.highest["batch_id"]
    lost = lab.rows("select batch, version from helix.event group by 1, 2 having count(*) > 1")
    assert lost == []


def test_call_that_is_rolled_back_leaves_the_jump_to_the_next(lab, before):
    fail_over(lab)
    with lab.store.connection.transaction(force_rollback=True):
        submitted_many(lab, before)
    submitted_many(lab, before)
    assert (
        lab.value("select min(id) from helix.batch where identity like 'many%%'")
        > (before.highest["batch_id"])
    )
    assert lab.value("select count(*) from helix.epoch where number > %s", before.epoch) == 1


def test_unchanged_timeline_keeps_the_epoch(lab, before):
    """The jump costs numbers, so it happens once per failover."""
    fail_over(lab)
    submitted(lab, before)
    ahead = {name: lab.value(f"select last_value from helix.{name}") for name in SEQUENCES}
    for verb in (submitted_many, claimed, settled, fenced):
        verb(lab, before)
    for name, last in ahead.items():
        assert lab.value(f"select last_value from helix.{name}") < last + 1000
    assert lab.value("select count(*) from helix.epoch where number > %s", before.epoch) == 1


def test_stale_token_from_before_failover_is_refused_under_the_new_epoch(lab, before):
    fail_over(lab)
    [lease] = lab.claim(1)
    zombie = lease._replace(token=lease.token._replace(epoch=before.epoch))
    [answer] = lab.complete(zombie)
    assert (answer.answer, answer.state) == ("refused", State.RUNNING)
    assert [item.answer for item in lab.complete(lease)] == ["ok"]
