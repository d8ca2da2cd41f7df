"""Folds ledger entries into the state of each batch: pure, and it trusts no entry.

The fold is the definition of G4. It takes nothing from the database but the entries: the arrows
come from `helixqueue.states`, the hashes from `helixqueue.ledger.chain`.

It reads entries in the order of their ids and keeps one head per batch, its last step. Batches that
a step leaves in the same state share one `Head`, so the memory is about 130 bytes per batch if
calls have hundreds of batches, and 500 if each call has one: one million batches need 130 to
500 MB. Heads are dropped as they are compared with the tables.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from enum import StrEnum
from itertools import repeat
from typing import NamedTuple
from weakref import WeakValueDictionary

from helixqueue.ledger.chain import INT2, INT4, INT8, LedgerEntry, entry_hash, integers
from helixqueue.states import ARROWS, FINAL, State

# Previous entry, version, attempt and queue of one step, from the arrays of its entry.
StepColumns = tuple[int | None, int, int, int]

_LEASED = (State.ASSIGNED, State.RUNNING)
_ENDS_LEASE = {(leased, ended) for leased in _LEASED for ended in (State.PENDING, State.FAILED)}

# The arrows of each reason, as in the comments of the SQL type `helix.reason`.
REASONS: dict[str, frozenset[tuple[State | None, State]]] = {
    "submitted": frozenset({(None, State.PENDING)}),
    "claimed": frozenset({(State.PENDING, State.ASSIGNED)}),
    "started": frozenset({(State.ASSIGNED, State.RUNNING)}),
    "completed": frozenset({(State.RUNNING, State.COMPLETED)}),
    "failed": frozenset(_ENDS_LEASE),
    "released": frozenset({(leased, State.PENDING) for leased in _LEASED}),
    "lost": frozenset(_ENDS_LEASE),
    "recovered": frozenset(_ENDS_LEASE),
    "retried": frozenset({(State.FAILED, State.PENDING)}),
    "cancelled": frozenset({(open_, State.CANCELLED) for open_ in (State.PENDING, *_LEASED)}),
    "expired": frozenset({(State.PENDING, State.CANCELLED)}),
}
# A claim that starts at once is one entry with two steps.
CLAIMED_AND_STARTED = (State.PENDING, State.RUNNING, "started")
_STEPS = frozenset(
    (before, after, reason)
    for reason, arrows in REASONS.items()
    for before, after in arrows
    if (before, after) in ARROWS
) | {CLAIMED_AND_STARTED}


class Kind(StrEnum):
    GAP = "gap"  # a version is missing, or exists twice
    FROM_STATE = "from_state"  # from_state is not the state after the previous step
    LINK = "link"  # the step does not link to the entry of the previous step
    AFTER_FINAL = "after_final"  # the previous state is final
    ARROW = "arrow"  # there is no such arrow, or the reason does not explain it
    ATTEMPT = "attempt"  # the attempt number is wrong
    TOKEN = "token"  # noqa: S105 - the epoch of a lease is wrong; not a password
    QUEUE = "queue"  # the batch changed its queue
    HASH = "hash"  # the chain is broken: this entry or one before it was edited
    ARRAYS = "arrays"  # the arrays of an entry have different lengths or are malformed
    ARCHIVED = "archived"  # an entry was archived though a batch in it is not retired
    STATE = "state"  # the tables differ from the fold
    NO_WORK_ROW = "no_work_row"  # the batch has steps but no row of work
    NO_STEPS = "no_steps"  # the batch has a row of work but no step
    RETIRED_WORK = "retired_work"  # the batch was retired but still has a row of work


class Step(NamedTuple):
    """One step of one batch; a claim with immediate start counts as one, with its last version."""

    batch: int
    version: int
    queue: int
    from_state: str | None
    to_state: str
    at: int  # microseconds since 2000-01-01 UTC
    attempt: int
    epoch: int | None
    actor: str
    reason: str
    late: bool
    entry: int
    part: int
    before: int | None


class Violation(NamedTuple):
    kind: Kind
    batch: int  # the first of its entry if the entry is at fault; 0: unreadable
    message: str
    witness: Step | None = None  # the step at fault


class Hashes(list[bytes]):
    """The hashes of all parts of an entry; kept while it is the last entry of any batch."""

    __slots__ = ("__weakref__",)


class Head:
    """The state after a step. Compared by identity: batches in the same state share one."""

    __slots__ = (
        "archived",
        "attempt",
        "entry",
        "epoch",
        "hashes",
        "number",
        "position",
        "queue",
        "state",
        "version",
    )

    def __init__(
        self, entry: LedgerEntry, columns: StepColumns, hashes: Hashes, before: Head | None
    ) -> None:
        _, self.version, self.attempt, self.queue = columns
        self.entry: int | None = entry.id
        self.state: str | None = entry.to_state
        self.epoch = entry.epoch
        self.hashes = hashes
        # The number of a lease is the entry of its claim; 0: there was none.
        self.number: int = entry.id if _claims(entry) else before.number if before else 0
        # An earlier step is archived, so this one could not be compared with it.
        self.archived: bool = before is not None and before.archived
        self.position = (
            entry.id, self.version, self.attempt, self.queue, self.number, self.epoch or 0,
        )  # fmt: skip


def _no_steps() -> Head:
    """The head of batches that have no step yet."""
    empty = LedgerEntry(
        id=0, part=0, at=0, position=0, epoch=None, from_state=None, to_state="", reason="",
        late=False, hash=b"", actor="", batch=None, queue=None, version=None, attempt=None,
        before=None, content=None,
    )  # fmt: skip
    head = Head(empty, (None, 0, 0, 0), Hashes(), None)
    head.entry = head.state = None
    return head


class Fold:
    """Folds entries, in the order of their ids and parts.

    Violations are collected, not raised: a replay reports all of them. After a violation the fold
    continues from the state in the entry.
    """

    def __init__(self) -> None:
        self.heads: dict[int, Head] = {}
        self.archived: dict[int, Hashes] = {}  # entries whose arrays are empty
        self.violations: list[Violation] = []
        self.events = 0
        self._no_steps = _no_steps()
        self._hashes: WeakValueDictionary[int, Hashes] = WeakValueDictionary()
        self._last: tuple[int, Hashes] = (0, Hashes())  # keeps the hashes of the current entry

    def add(self, entry: LedgerEntry) -> None:
        hashes = self._note_hash(entry)
        if entry.batch is None:
            self.archived[entry.id] = hashes
            if not _is_archived(entry):
                message = f"entry {entry.id}: some of its arrays are empty"
                self.violations.append(Violation(Kind.ARRAYS, 0, message))
            return
        try:
            batches, rows = _steps(entry)
        except ValueError:
            message = f"entry {entry.id}: its arrays have different lengths"
            self.violations.append(Violation(Kind.ARRAYS, 0, message))
            return
        self.events += len(batches) * _count(entry)
        if not self._is_hash_right(entry, rows):
            message = "the hash of its ledger entry does not follow from it and the hashes before"
            self._report(Kind.HASH, _step(entry, batches[0], rows[0]), message)
        heads, no_steps = self.heads, self._no_steps
        # Batches that were in the same state and take the same step share the next head.
        changes: dict[Head, tuple[StepColumns | None, Head]] = {}
        for batch, columns in zip(batches, rows, strict=True):
            head = heads.get(batch, no_steps)
            change = changes.get(head)
            if change is None:
                expected = _expected_step(head, entry, columns)
                change = changes[head] = expected, Head(entry, expected or columns, hashes, head)
            if change[0] == columns:
                heads[batch] = change[1]
            else:
                heads[batch] = self._examine(head, entry, batch, columns, hashes)

    def _note_hash(self, entry: LedgerEntry) -> Hashes:
        number, hashes = self._last
        if number != entry.id:
            hashes = Hashes()
            self._last = entry.id, hashes
            self._hashes[entry.id] = hashes
        hashes.append(entry.hash or b"")
        return hashes

    def _is_hash_right(self, entry: LedgerEntry, rows: list[StepColumns]) -> bool:
        if entry.sound is not None:
            return entry.sound
        before: list[bytes] = []
        if entry.before is not None:
            for number in sorted({row[0] or 0 for row in rows}):
                hashes = self._hashes.get(number) or self.archived.get(number)
                if hashes is None:
                    return False
                before += hashes
        return entry_hash(before, entry) == entry.hash

    def _examine(
        self, head: Head, entry: LedgerEntry, batch: int, columns: StepColumns, hashes: Hashes
    ) -> Head:
        """Report everything that is wrong with one step; `add` only knows that something is."""
        after = Head(entry, columns, hashes, head)
        if columns[0] in self.archived and head.entry != columns[0]:
            after.archived = True  # correct for a retired batch, which is known at the end only
            return after
        step = _step(entry, batch, columns)
        for kind, message in _faults(head, entry, columns):
            self._report(kind, step, message)
        return after

    def _report(self, kind: Kind, step: Step, message: str) -> None:
        where = f"batch {step.batch}, version {step.version}"
        self.violations.append(Violation(kind, step.batch, f"{where}: {message}", step))


def fold(entries: Iterable[LedgerEntry]) -> Fold:
    folded = Fold()
    for entry in entries:
        folded.add(entry)
    return folded


def _expected_step(head: Head, entry: LedgerEntry, columns: StepColumns) -> StepColumns | None:
    """Return the columns that a correct step from this head has; None if no step is correct."""
    if (
        _arrow(entry) not in _STEPS
        or entry.from_state != head.state
        or (entry.epoch != head.epoch and not _claims(entry))
    ):
        return None
    queue = columns[3] if head.entry is None else head.queue
    return head.entry, head.version + _count(entry), _attempt(head, entry), queue


def _faults(head: Head, entry: LedgerEntry, columns: StepColumns) -> Iterator[tuple[Kind, str]]:
    before, version, attempt, queue = columns
    arrow = f"{entry.from_state or '(new)'} -> {entry.to_state}"
    follows = head.version + _count(entry)
    if version != follows:
        yield Kind.GAP, f"expected version {follows}"
    if entry.from_state != head.state:
        yield Kind.FROM_STATE, f"{arrow}, but the state before is {head.state or '(new)'}"
    if before != head.entry:
        yield Kind.LINK, "the step does not link to the entry of the previous step"
    if head.state in FINAL:
        yield Kind.AFTER_FINAL, f"{head.state} is final, but {arrow} follows"
    if _arrow(entry) not in _STEPS:
        yield Kind.ARROW, f"no arrow {arrow} by reason {entry.reason}"
    if attempt != _attempt(head, entry):
        yield Kind.ATTEMPT, f"expected attempt {_attempt(head, entry)}, got {attempt}"
    if head.entry is not None and queue != head.queue:
        yield Kind.QUEUE, f"expected queue {head.queue}, got {queue}"
    if entry.epoch != head.epoch and not _claims(entry):
        yield Kind.TOKEN, f"expected the epoch of its claim, {head.epoch}, got {entry.epoch}"


def _steps(entry: LedgerEntry) -> tuple[tuple[int, ...], list[StepColumns]]:
    """Return the batches and columns of an entry; raises ValueError if its arrays do not match."""
    if entry.batch is None or not (entry.queue and entry.version and entry.attempt):
        raise ValueError("an array is missing")
    batches = integers(INT8, entry.batch)
    before: Iterable[int | None] = (
        repeat(None, len(batches)) if entry.before is None else integers(INT8, entry.before)
    )
    versions, attempts = integers(INT4, entry.version), integers(INT2, entry.attempt)
    rows = list(zip(before, versions, attempts, integers(INT4, entry.queue), strict=True))
    if len(rows) != len(batches):
        raise ValueError("the arrays have different lengths")
    return batches, rows


def _is_archived(entry: LedgerEntry) -> bool:
    arrays = (entry.batch, entry.queue, entry.version, entry.attempt, entry.before, entry.content)
    return all(array is None for array in arrays)


def step_of(entry: LedgerEntry, batch: int) -> Step | None:
    """Return the step that a batch takes in an entry; None if it takes none or is archived."""
    if entry.batch is None or batch not in integers(INT8, entry.batch):
        return None
    batches, rows = _steps(entry)
    return _step(entry, batch, rows[batches.index(batch)])


def _step(entry: LedgerEntry, batch: int, columns: StepColumns) -> Step:
    before, version, attempt, queue = columns
    return Step(
        batch, version, queue, entry.from_state, entry.to_state, entry.at, attempt, entry.epoch,
        entry.actor, entry.reason, entry.late, entry.id, entry.part, before,
    )  # fmt: skip


def _arrow(entry: LedgerEntry) -> tuple[str | None, str, str]:
    return entry.from_state, entry.to_state, entry.reason


def _count(entry: LedgerEntry) -> int:
    """Return the number of steps that each batch of this entry takes."""
    return 2 if _arrow(entry) == CLAIMED_AND_STARTED else 1


def _claims(entry: LedgerEntry) -> bool:
    return entry.reason == "claimed" or _arrow(entry) == CLAIMED_AND_STARTED


def _attempt(head: Head, entry: LedgerEntry) -> int:
    """Return the expected attempt number after this entry."""
    if entry.reason == "retried":
        return 0
    return head.attempt + (1 if _claims(entry) else -1 if entry.reason == "released" else 0)
