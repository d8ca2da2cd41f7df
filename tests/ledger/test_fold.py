"""The fold, on events made by hand: what is right gives a state, what is wrong has a name."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from helixqueue.ledger.chain import Event, event_hash
from helixqueue.ledger.fold import REASONS, Kind, fold
from helixqueue.states import ARROWS, FINAL, State

LIFE = ["submitted", "claimed", "started", "failed", "claimed", "started", "completed"]
TARGETS = {
    "submitted": "PENDING",
    "claimed": "ASSIGNED",
    "started": "RUNNING",
    "completed": "COMPLETED",
    "failed": "PENDING",
    "gave_up": "FAILED",
    "released": "PENDING",
    "lost": "PENDING",
    "recovered": "PENDING",
    "retried": "PENDING",
    "cancelled": "CANCELLED",
    "expired": "CANCELLED",
}


def chained(events):
    """The same events under right hashes."""
    before, out = b"", []
    for event in events:
        before = event_hash(before, event)
        out.append(event._replace(hash=before))
    return out


def life(*words):
    """A batch's events from words; `gave_up` is a failure that leaves no try."""
    events, state, attempt, number = [], None, 0, 0
    for version, word in enumerate(words, 1):
        reason = "failed" if word == "gave_up" else word
        number += reason == "claimed"
        attempt = (
            0 if reason == "retried" else attempt + {"claimed": 1, "released": -1}.get(reason, 0)
        )
        events.append(
            Event(
                batch=7,
                version=version,
                tenant="a",
                from_state=state,
                to_state=TARGETS[word],
                at=version * 1000,
                xid=700 + version,
                attempt=attempt,
                epoch=1 if number else None,
                number=number or None,
                actor="w",
                reason=reason,
                detail=None,
                late=False,
                hash=b"",
            )
        )
        state = TARGETS[word]
    return chained(events)


def kinds(events):
    return {violation.kind for violation in fold(events).violations}


def test_a_whole_life():
    folded = fold(life(*LIFE))
    assert (folded.batch, folded.tenant, folded.state) == (7, "a", "COMPLETED")
    assert (folded.version, folded.attempt, folded.events) == (7, 2, 7)
    assert folded.violations == []


@st.composite
def lives(draw):
    """Any walk along the legal arrows."""
    words, state = [], None
    for _ in range(draw(st.integers(1, 30))):
        steps = [
            word
            for word, target in TARGETS.items()
            if (state, target) in REASONS["failed" if word == "gave_up" else word]
        ]
        if not steps:
            break
        words.append(draw(st.sampled_from(sorted(steps))))
        state = TARGETS[words[-1]]
    return words


@given(lives())
def test_every_legal_walk_folds_without_complaint(words):
    folded = fold(life(*words))
    assert folded.violations == []
    assert folded.state == TARGETS[words[-1]]
    assert folded.version == len(words)


@given(lives(), st.data())
def test_no_edit_of_a_column_goes_unseen(words, data):
    events = life(*words)
    at = data.draw(st.integers(0, len(events) - 1))
    column = data.draw(st.sampled_from(Event._fields))
    value = getattr(events[at], column)
    other = {int: 99, str: "z", bytes: b"z", type(None): "z" if column == "detail" else 99}
    if column == "from_state":
        changed = "CANCELLED"
    elif column == "late":
        changed = True
    else:
        changed = other[type(value)]
    events[at] = events[at]._replace(**{column: changed})
    assert fold(events).violations


@given(lives(), st.data())
def test_no_loss_before_the_end_goes_unseen(words, data):
    events = life(*words, *([] if len(words) > 1 else ["cancelled"]))
    del events[data.draw(st.integers(0, len(events) - 2))]
    assert Kind.GAP in kinds(events)


def test_plain_tuples_are_events():
    assert fold([tuple(event) for event in life(*LIFE)]).violations == []


def test_a_gap_is_named_with_its_neighbours():
    events = life(*LIFE)
    gone = events.pop(3)
    [violation] = [v for v in fold(events).violations if v.kind is Kind.GAP]
    assert violation.batch == 7
    assert "expected version 4" in violation.message
    assert [event.version for event in violation.witnesses] == [gone.version - 1, gone.version + 1]


def test_a_version_that_stands_twice_is_a_gap():
    events = life(*LIFE)
    assert Kind.GAP in kinds([*events, events[-1]])


def rewritten(place, words=LIFE, **columns):
    """Events where one is edited and every hash made anew: a thorough forger's work."""
    events = life(*words)
    events[place] = events[place]._replace(**columns)
    return chained(events)


def test_an_arrow_that_does_not_exist():
    assert Kind.ARROW in kinds(rewritten(1, to_state="COMPLETED"))


def test_a_reason_that_does_not_explain_its_arrow():
    assert kinds(rewritten(2, reason="submitted")) == {Kind.ARROW}


def test_a_step_from_elsewhere():
    assert Kind.TORN in kinds(rewritten(3, from_state="ASSIGNED"))


@pytest.mark.parametrize("end", sorted(FINAL))
def test_nothing_follows_a_final_state(end):
    words = ["submitted", "claimed", "started", "completed" if end == "COMPLETED" else "cancelled"]
    events = life(*words, "retried")
    assert Kind.AFTER_FINAL in kinds(events)


def test_failed_is_not_final():
    assert kinds(life("submitted", "claimed", "gave_up", "retried")) == set()


def test_attempts_are_counted_by_claims():
    assert Kind.ATTEMPT in kinds(rewritten(4, attempt=1))


def test_a_step_under_a_dead_token():
    """The worker of the first attempt completes the second: the very thing tokens prevent."""
    assert kinds(rewritten(6, number=1)) == {Kind.TOKEN}


def test_a_batch_does_not_change_hands():
    assert kinds(rewritten(6, tenant="b")) == {Kind.TENANT}


def test_an_edit_breaks_the_chain_once():
    events = life(*LIFE)
    events[1] = events[1]._replace(actor="eve")
    assert [(v.kind, v.witnesses[-1].version) for v in fold(events).violations] == [(Kind.HASH, 2)]


def test_no_events_is_no_state():
    with pytest.raises(ValueError, match="at least one event"):
        fold([])


def test_reasons_explain_every_arrow_and_no_other():
    assert frozenset().union(*REASONS.values()) == ARROWS
    assert all(isinstance(after, State) for arrows in REASONS.values() for _, after in arrows)


def test_the_database_knows_the_same_arrows_and_reasons(database):
    arrows = database.rows("select from_state::text, to_state::text from helix.arrow")
    assert set(arrows) == ARROWS
    reasons = database.rows("select unnest(enum_range(null::helix.reason))::text")
    assert {reason for (reason,) in reasons} == set(REASONS)
