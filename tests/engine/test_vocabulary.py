"""The words of the schema and of the package are the same words."""

from __future__ import annotations

import pytest

from helixqueue.ledger.fold import REASONS
from helixqueue.states import ARROWS, FINAL, FINISHED, State
from tests.support.lab import Lab

pytestmark = pytest.mark.module_database

# Tables store how a batch ended as a number.
ENDINGS = {State.COMPLETED: 1, State.FAILED: 2, State.CANCELLED: 3}


def enum(database, name):
    return [
        word
        for (word,) in database.rows(
            "select e.enumlabel from pg_enum e where e.enumtypid = %s::regtype order by 1", name
        )
    ]


def test_states_are_the_same(database):
    assert enum(database, "helix.state") == sorted(State)


def test_arrows_are_the_same(database):
    arrows = database.rows("select from_state::text, to_state::text from helix.arrow")
    assert {(before and State(before), State(after)) for before, after in arrows} == ARROWS
    assert len(arrows) == len(ARROWS)


def test_endings_have_the_same_numbers(database):
    numbered = database.rows(
        "select s::text, helix.ending(s) from unnest(enum_range(null::helix.state)) s"
    )
    assert {State(state): number for state, number in numbered if number} == ENDINGS
    assert set(ENDINGS) == FINISHED


def test_finished_batch_has_one_outcome(database):
    """Lists and retention go by the number in helix.ended, people by the state in helix.work."""
    listed = (
        "select w.state::text, e.ending, e.queue = w.queue and e.at = w.changed_at"
        " from helix.work w left join helix.ended e on e.batch = w.batch where w.batch = any (%s)"
    )
    with Lab(database) as lab:
        lab.queue(backoff_seconds=0)
        ids = [submitted.receipt.batch_id for submitted in lab.submit("s1", "s2", "s3")]
        batches = [lab.number(item) for item in ids]
        unlisted = [("PENDING", None, None)] * 3
        assert lab.rows(listed, batches) == unlisted
        lab.decide("cancel", ids[2])
        first, second = lab.claim(2)
        lab.complete(first)
        lab.fail(second, permanent=True)
        finished = lab.rows(listed, batches)
        assert sorted(finished) == sorted((str(s), n, True) for s, n in ENDINGS.items())
        # A retry takes it off the list, and its next end puts it there again, once.
        lab.decide("retry", second.batch_id)
        assert lab.rows(listed, [second.batch]) == [("PENDING", None, None)]
        lab.complete(*lab.claim())
        assert lab.rows(listed, [second.batch]) == [("COMPLETED", ENDINGS[State.COMPLETED], True)]


def test_reasons_are_the_same(database):
    assert enum(database, "helix.reason") == sorted(REASONS)


def test_every_arrow_has_a_reason_and_every_reason_an_arrow():
    explained = set().union(*REASONS.values())
    assert explained == ARROWS
    assert all(REASONS.values())


@pytest.mark.parametrize("state", sorted(FINAL))
def test_no_arrow_leaves_a_final_state(state):
    assert [arrow for arrow in ARROWS if arrow[0] == state] == []


def test_every_state_can_be_reached_and_every_other_left():
    assert {after for _, after in ARROWS} == set(State)
    assert {before for before, _ in ARROWS} - {None} == set(State) - FINAL
    assert {State.FAILED} == FINISHED - FINAL
