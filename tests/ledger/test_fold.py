"""The fold, on entries made by hand: what is right gives a head, what is wrong has a name."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from helixqueue.ledger.chain import (
    BYTEA,
    INT2,
    INT4,
    INT8,
    LedgerEntry,
    array_of,
    entry_hash,
    integers,
)
from helixqueue.ledger.fold import CLAIMED_AND_STARTED, REASONS, Kind, fold
from helixqueue.states import ARROWS, FINAL, State

LIFE = ["submitted", "claimed", "started", "failed", "claimed", "started", "completed"]
TARGETS = {
    "submitted": "PENDING",
    "claimed": "ASSIGNED",
    "started": "RUNNING",
    "taken": "RUNNING",
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
# `gave_up` is a failure that leaves no attempt, `taken` a claim that starts at once.
REASON_OF = {"gave_up": "failed", "taken": "started"}
BATCHES = (7, 8)


def chained(entries):
    """The same entries with right hashes; each continues the one before it."""
    hashes, out = [], []
    for entry in entries:
        out.append(entry._replace(hash=entry_hash(hashes, entry)))
        hashes = [out[-1].hash]
    return out


def every(kind, value):
    return array_of(kind, [value] * len(BATCHES))


def life(*words):
    """The entries of two batches that do everything together."""
    entries, state, attempt, version = [], None, 0, 0
    for number, word in enumerate(words, 1):
        claims = word in ("claimed", "taken")
        version += 2 if word == "taken" else 1
        attempt = 0 if word == "retried" else attempt + claims - (word == "released")
        epoch = 1 if claims or (entries and entries[-1].epoch) else None
        entries.append(
            LedgerEntry(
                id=number * 10,
                part=1,
                at=number * 1000,
                position=700 + number,
                epoch=epoch,
                from_state=state,
                to_state=TARGETS[word],
                reason=REASON_OF.get(word, word),
                late=False,
                hash=b"",
                actor="w",
                batch=array_of(INT8, BATCHES),
                queue=every(INT4, 1),
                version=every(INT4, version),
                attempt=every(INT2, attempt),
                before=every(INT8, number * 10 - 10) if entries else None,
                content=None,
            )
        )
        state = TARGETS[word]
    return chained(entries)


def kinds(entries):
    return {violation.kind for violation in fold(entries).violations}


def test_fold_of_a_whole_life_gives_its_head():
    folded = fold(life(*LIFE))
    assert folded.violations == []
    assert folded.heads.keys() == set(BATCHES)
    head = folded.heads[7]
    assert (head.state, head.version, head.attempt, head.queue) == ("COMPLETED", 7, 2, 1)
    assert (head.entry, head.number, head.epoch) == (70, 50, 1)
    assert folded.events == 7 * len(BATCHES)


def test_batches_in_the_same_state_share_their_head():
    folded = fold(life(*LIFE))
    assert folded.heads[7] is folded.heads[8]


def test_claim_that_starts_at_once_is_two_events():
    folded = fold(life("submitted", "taken", "completed"))
    assert folded.violations == []
    assert (folded.heads[7].version, folded.events) == (4, 4 * len(BATCHES))
    assert folded.heads[7].number == 20


def legal(state, word):
    if word == "taken":
        return state == "PENDING"
    return (state, TARGETS[word]) in REASONS[REASON_OF.get(word, word)]


@st.composite
def lives(draw):
    """Any walk along the legal arrows."""
    words, state = [], None
    for _ in range(draw(st.integers(1, 30))):
        steps = [word for word in TARGETS if legal(state, word)]
        if not steps:
            break
        words.append(draw(st.sampled_from(sorted(steps))))
        state = TARGETS[words[-1]]
    return words


@given(lives())
def test_every_legal_path_folds_without_violations(words):
    folded = fold(life(*words))
    assert folded.violations == []
    assert folded.heads[7].state == TARGETS[words[-1]]
    assert folded.heads[7].version == len(words) + words.count("taken")


@given(lives(), st.data())
def test_every_edit_of_a_column_is_detected(words, data):
    entries = life(*words)
    at = data.draw(st.integers(0, len(entries) - 1))
    column = data.draw(
        st.sampled_from([n for n in LedgerEntry._fields if n not in ("id", "sound")])
    )
    value = getattr(entries[at], column)
    if column in ("from_state", "to_state"):
        changed = "CANCELLED" if value != "CANCELLED" else "FAILED"
    elif column == "reason":
        changed = "expired" if value != "expired" else "lost"
    elif column in ("batch", "before"):
        changed = array_of(INT8, [7, 9])
    elif column in ("queue", "version"):
        changed = array_of(INT4, [1, 99])
    elif column == "attempt":
        changed = array_of(INT2, [0, 99])
    elif column == "content":
        changed = array_of(BYTEA, [None, b"c" * 32])
    else:
        changed = {int: 99, str: "z", bytes: b"z", type(None): 99, bool: True}[type(value)]
    entries[at] = entries[at]._replace(**{column: changed})
    assert fold(entries).violations


@given(lives(), st.data())
def test_every_lost_entry_before_the_end_is_detected(words, data):
    entries = life(*words, *([] if len(words) > 1 else ["cancelled"]))
    del entries[data.draw(st.integers(0, len(entries) - 2))]
    assert {Kind.GAP, Kind.LINK, Kind.HASH} <= kinds(entries)


def test_plain_tuples_of_the_driver_are_entries():
    assert fold([LedgerEntry._make(tuple(entry)) for entry in life(*LIFE)]).violations == []


def test_gap_names_its_batch_and_step():
    entries = life(*LIFE)
    del entries[3]
    found = [v for v in fold(entries).violations if v.kind is Kind.GAP]
    assert [v.batch for v in found] == list(BATCHES)
    assert "expected version 4" in found[0].message
    assert (found[0].witness.version, found[0].witness.entry) == (5, 50)


def test_entry_that_exists_twice_is_a_gap():
    entries = life(*LIFE)
    assert Kind.GAP in kinds([*entries, entries[-1]._replace(id=80)])


def rewritten(place, words=LIFE, **columns):
    """Entries where one is edited and every hash computed anew: a thorough forger's work."""
    entries = life(*words)
    entries[place] = entries[place]._replace(**columns)
    return chained(entries)


def test_arrow_that_does_not_exist():
    assert Kind.ARROW in kinds(rewritten(1, to_state="COMPLETED"))


def test_reason_that_does_not_explain_its_arrow():
    assert kinds(rewritten(2, reason="lost")) == {Kind.ARROW}


def test_step_from_another_state():
    assert Kind.FROM_STATE in kinds(rewritten(3, from_state="ASSIGNED"))


@pytest.mark.parametrize("end", sorted(FINAL))
def test_nothing_follows_a_final_state(end):
    words = ["submitted", "claimed", "started", "completed" if end == "COMPLETED" else "cancelled"]
    assert Kind.AFTER_FINAL in kinds(life(*words, "retried"))


def test_failed_is_not_final():
    assert kinds(life("submitted", "claimed", "gave_up", "retried")) == set()


def test_attempts_are_counted_by_claims():
    assert kinds(rewritten(6, attempt=every(INT2, 1))) == {Kind.ATTEMPT}


def test_step_under_the_epoch_of_another_claim():
    assert kinds(rewritten(6, epoch=2)) == {Kind.TOKEN}


def test_step_that_is_linked_to_another_entry():
    """The hash is right for the link that the entry has: the fold compares links by itself."""
    entries = life(*LIFE)
    entries[6] = entries[6]._replace(before=array_of(INT8, [60, 50]))
    assert kinds(entries) == {Kind.LINK, Kind.HASH}


def test_batch_does_not_change_its_queue():
    assert kinds(rewritten(6, queue=array_of(INT4, [1, 2]))) == {Kind.QUEUE}


def test_edit_breaks_the_chain_once():
    entries = life(*LIFE)
    entries[1] = entries[1]._replace(actor="eve")
    [violation] = fold(entries).violations
    assert (violation.kind, violation.batch, violation.witness.version) == (Kind.HASH, 7, 2)


@pytest.mark.parametrize("column", ["batch", "queue", "version", "attempt", "before"])
def test_arrays_of_different_lengths_are_reported(column):
    kind = {"batch": INT8, "before": INT8, "attempt": INT2}.get(column, INT4)
    entries = rewritten(1, **{column: array_of(kind, [1, 1, 1])})
    assert Kind.ARRAYS in kinds(entries[:2])


def test_entry_follows_all_parts_of_the_entries_before():
    """Two batches come together: the entry after them covers both parts that they come from."""
    first = life("submitted")[0]
    item = first._replace(batch=array_of(INT8, [7, 8]), actor="ann")
    second = first._replace(batch=array_of(INT8, [9, 10]), actor="bob", part=2)
    item = item._replace(hash=entry_hash([], item))
    second = second._replace(hash=entry_hash([], second))
    claim = life("submitted", "claimed")[1]
    right = claim._replace(hash=entry_hash([item.hash, second.hash], claim))
    assert kinds([item, second, right]) == set()
    wrong = claim._replace(hash=entry_hash([item.hash], claim))
    assert kinds([item, second, wrong]) == {Kind.HASH}


def archived(entry):
    return entry._replace(
        batch=None, queue=None, version=None, attempt=None, before=None, content=None
    )


def test_archived_entry_still_continues_the_chain():
    entries = life(*LIFE)
    entries[3] = archived(entries[3])
    folded = fold(entries)
    assert folded.violations == []
    assert folded.heads[7].archived, "right only for a batch that was retired"
    assert not fold(life(*LIFE)).heads[7].archived


def test_entry_after_an_archived_one_is_verified():
    entries = life(*LIFE)
    entries[3] = archived(entries[3])._replace(hash=b"x" * 32)
    assert kinds(entries) == {Kind.HASH}


def test_verification_by_the_database_replaces_an_unverifiable_hash():
    entries = [entry._replace(hash=None, sound=True) for entry in life(*LIFE)]
    assert fold(entries).violations == []
    entries[2] = entries[2]._replace(sound=False)
    assert kinds(entries) == {Kind.HASH}


def test_hashes_are_kept_only_while_a_head_refers_to_them():
    folded = fold(life(*LIFE))
    assert list(folded._hashes) == [70]


def test_no_entries_is_no_head():
    assert fold([]).heads == {}


def test_reasons_explain_every_arrow_and_no_other():
    assert frozenset().union(*REASONS.values()) == ARROWS
    assert all(isinstance(after, State) for arrows in REASONS.values() for _, after in arrows)
    before, after, _ = CLAIMED_AND_STARTED
    assert {(before, State.ASSIGNED), (State.ASSIGNED, after)} <= ARROWS


def test_database_knows_the_same_arrows_and_reasons(database):
    arrows = database.rows("select from_state::text, to_state::text from helix.arrow")
    assert set(arrows) == ARROWS
    reasons = database.rows("select unnest(enum_range(null::helix.reason))::text")
    assert {reason for (reason,) in reasons} == set(REASONS)


def test_lives_of_this_file_have_plain_arrays():
    for entry in life(*LIFE):
        assert integers(INT8, entry.batch) == BATCHES
