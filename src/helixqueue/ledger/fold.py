"""From the entries of the ledger to where each batch stands: pure, and it trusts no entry.

The fold is the definition of G4. It takes nothing from the database but the entries themselves:
the arrows come from `helixqueue.states`, the hashes from `helixqueue.ledger.chain`.

It reads entries in the order of their ids and keeps one head per batch, its last step. Batches that
a step leaves alike share one `Head`, so the memory is about 130 bytes per batch where calls are
about hundreds of batches, and 500 where each call is about one: one million batches need 130 to
500 MB. Heads are dropped as they are compared with the tables.
"""

from __future__ import annotations

from enum import StrEnum
from itertools import repeat
from typing import TYPE_CHECKING, NamedTuple
from weakref import WeakValueDictionary

from helixqueue.ledger.chain import INT2, INT4, INT8, LedgerEntry, entry_hash, integers
from helixqueue.states import ARROWS, FINAL, State

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

# Entry before, version, attempt and queue of one step, as the arrays of its entry have them.
Given = tuple[int | None, int, int, int]

_LEASED = (State.ASSIGNED, State.RUNNING)
_ENDS_LEASE = {(held, gone) for held in _LEASED for gone in (State.PENDING, State.FAILED)}

# Which arrows a reason may explain; the comments beside `helix.reason` say the same.
REASONS: dict[str, frozenset[tuple[State | None, State]]] = {
    "submitted": frozenset({(None, State.PENDING)}),
    "claimed": frozenset({(State.PENDING, State.ASSIGNED)}),
    "started": frozenset({(State.ASSIGNED, State.RUNNING)}),
    "completed": frozenset({(State.RUNNING, State.COMPLETED)}),
    "failed": frozenset(_ENDS_LEASE),
    "released": frozenset({(held, State.PENDING) for held in _LEASED}),
    "lost": frozenset(_ENDS_LEASE),
    "recovered": frozenset(_ENDS_LEASE),
    "retried": frozenset({(State.FAILED, State.PENDING)}),
    "cancelled": frozenset({(was, State.CANCELLED) for was in (State.PENDING, *_LEASED)}),
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
    TORN = "torn"  # from_state is not where the step before led
    LINK = "link"  # the step does not name the entry of the step before
    AFTER_FINAL = "after_final"  # the batch had ended for good
    ARROW = "arrow"  # there is no such arrow, or the reason does not explain it
    ATTEMPT = "attempt"  # the count of attempts does not follow
    TOKEN = "token"  # noqa: S105 - the word for a lease's proof, not a password
    QUEUE = "queue"  # the batch changed its queue
    HASH = "hash"  # the chain is broken: this entry or one before it was edited
    UNEVEN = "uneven"  # the arrays of an entry do not run in parallel
    ARCHIVED = "archived"  # an entry was archived though a batch in it is not retired
    STANDING = "standing"  # the tables say otherwise than the fold
    NOWHERE = "nowhere"  # steps, but no row says where the batch stands
    UNTOLD = "untold"  # the batch stands somewhere, but no step says how it came there
    REMAINS = "remains"  # the batch was retired, and still has a row of work


class Step(NamedTuple):
    """One step of one batch; a claim that started at once counts as one, with its last version."""

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
    batch: int  # the first of its entry where the entry is at fault; 0: it cannot be read
    message: str
    witness: Step | None = None  # the step at fault


class Hashes(list[bytes]):
    """The hashes of all parts of an entry; kept as long as it is the last entry of any batch."""

    __slots__ = ("__weakref__",)


class Head:
    """Where a step left batches. Compared by identity: batches that stand alike share one."""

    __slots__ = (
        "archived",
        "attempt",
        "entry",
        "epoch",
        "hashes",
        "number",
        "queue",
        "standing",
        "state",
        "version",
    )

    def __init__(
        self, entry: LedgerEntry, given: Given, hashes: Hashes, before: Head | None
    ) -> None:
        _, self.version, self.attempt, self.queue = given
        self.entry: int | None = entry.id
        self.state: str | None = entry.to_state
        self.epoch = entry.epoch
        self.hashes = hashes
        # The number of a lease is the entry of its claim; 0: there was none.
        self.number: int = entry.id if _claims(entry) else before.number if before else 0
        # A step before it was archived, so it could not be compared with that one.
        self.archived: bool = before is not None and before.archived
        self.standing = (
            entry.id, self.version, self.attempt, self.queue, self.number, self.epoch or 0,
        )  # fmt: skip


def _unborn() -> Head:
    """The head of batches that have no step yet."""
    nothing = LedgerEntry(
        id=0, part=0, at=0, xid=0, epoch=None, from_state=None, to_state="", reason="", late=False,
        hash=b"", actor="", batch=None, queue=None, version=None, attempt=None, before=None,
        content=None,
    )  # fmt: skip
    head = Head(nothing, (None, 0, 0, 0), Hashes(), None)
    head.entry = head.state = None
    return head


class Fold:
    """Folds entries, in the order of their ids and parts.

    Violations are collected, not raised: a replay reports all of them. After a violation the fold
    continues from what the entry says.
    """

    def __init__(self) -> None:
        self.heads: dict[int, Head] = {}
        self.archived: dict[int, Hashes] = {}  # entries whose arrays are empty
        self.violations: list[Violation] = []
        self.events = 0
        self._unborn = _unborn()
        self._hashes: WeakValueDictionary[int, Hashes] = WeakValueDictionary()
        self._last: tuple[int, Hashes] = (0, Hashes())  # keeps the hashes of the entry at hand

    def add(self, entry: LedgerEntry) -> None:
        hashes = self._note_hash(entry)
        if entry.batch is None:
            self.archived[entry.id] = hashes
            return
        try:
            batches, given = _steps(entry)
        except ValueError:
            message = f"entry {entry.id}: its arrays do not run in parallel"
            self.violations.append(Violation(Kind.UNEVEN, 0, message))
            return
        self.events += len(batches) * _count(entry)
        if not self._follows(entry, given):
            message = "the hash of its ledger entry does not follow from it and the hashes before"
            self._report(Kind.HASH, _step(entry, batches[0], given[0]), message)
        heads, unborn = self.heads, self._unborn
        # Batches that stood alike and take the same step stand alike again.
        changes: dict[Head, tuple[Given | None, Head]] = {}
        for batch, own in zip(batches, given, strict=True):
            head = heads.get(batch, unborn)
            change = changes.get(head)
            if change is None:
                right = _right_step(head, entry, own)
                change = changes[head] = right, Head(entry, right or own, hashes, head)
            if change[0] == own:
                heads[batch] = change[1]
            else:
                heads[batch] = self._examine(head, entry, batch, own, hashes)

    def _note_hash(self, entry: LedgerEntry) -> Hashes:
        number, hashes = self._last
        if number != entry.id:
            hashes = Hashes()
            self._last = entry.id, hashes
            self._hashes[entry.id] = hashes
        hashes.append(entry.hash or b"")
        return hashes

    def _follows(self, entry: LedgerEntry, given: list[Given]) -> bool:
        """Whether the hash of the entry is right."""
        if entry.sound is not None:
            return entry.sound
        before: list[bytes] = []
        if entry.before is not None:
            for number in sorted({step[0] or 0 for step in given}):
                hashes = self._hashes.get(number) or self.archived.get(number)
                if hashes is None:
                    return False
                before += hashes
        return entry_hash(before, entry) == entry.hash

    def _examine(
        self, head: Head, entry: LedgerEntry, batch: int, given: Given, hashes: Hashes
    ) -> Head:
        """Name everything that is wrong with one step; the loop only knows that something is."""
        after = Head(entry, given, hashes, head)
        if given[0] in self.archived and head.entry != given[0]:
            after.archived = True  # right for a retired batch, and that is known in the end
            return after
        step = _step(entry, batch, given)
        for kind, message in _faults(head, entry, given):
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


def _right_step(head: Head, entry: LedgerEntry, given: Given) -> Given | None:
    """What an entry says of batches at this head when it is right; none: it cannot be right."""
    if (
        _arrow(entry) not in _STEPS
        or entry.from_state != head.state
        or (entry.epoch != head.epoch and not _claims(entry))
    ):
        return None
    queue = given[3] if head.entry is None else head.queue
    return head.entry, head.version + _count(entry), _attempt(head, entry), queue


def _faults(head: Head, entry: LedgerEntry, given: Given) -> Iterator[tuple[Kind, str]]:
    before, version, attempt, queue = given
    arrow = f"{entry.from_state or '(new)'} -> {entry.to_state}"
    follows = head.version + _count(entry)
    if version != follows:
        yield Kind.GAP, f"expected version {follows}"
    if entry.from_state != head.state:
        yield Kind.TORN, f"{arrow}, but the step before led to {head.state or '(new)'}"
    if before != head.entry:
        yield Kind.LINK, "the step does not name the entry of the step before"
    if head.state in FINAL:
        yield Kind.AFTER_FINAL, f"{head.state} is final, yet {arrow} follows"
    if _arrow(entry) not in _STEPS:
        yield Kind.ARROW, f"no arrow {arrow} by reason {entry.reason}"
    if attempt != _attempt(head, entry):
        yield Kind.ATTEMPT, f"expected attempt {_attempt(head, entry)}, got {attempt}"
    if head.entry is not None and queue != head.queue:
        yield Kind.QUEUE, f"expected queue {head.queue}, got {queue}"
    if entry.epoch != head.epoch and not _claims(entry):
        yield Kind.TOKEN, f"expected the epoch of its claim, {head.epoch}, got {entry.epoch}"


def _steps(entry: LedgerEntry) -> tuple[tuple[int, ...], list[Given]]:
    """The batches of an entry, and what its arrays say of each; ValueError if they are uneven."""
    if entry.batch is None or not (entry.queue and entry.version and entry.attempt):
        raise ValueError("an array is missing")
    batches = integers(INT8, entry.batch)
    before: Iterable[int | None] = (
        repeat(None, len(batches)) if entry.before is None else integers(INT8, entry.before)
    )
    versions, attempts = integers(INT4, entry.version), integers(INT2, entry.attempt)
    given = list(zip(before, versions, attempts, integers(INT4, entry.queue), strict=True))
    if len(given) != len(batches):
        raise ValueError("the arrays have different lengths")
    return batches, given


def _step(entry: LedgerEntry, batch: int, given: Given) -> Step:
    before, version, attempt, queue = given
    return Step(
        batch, version, queue, entry.from_state, entry.to_state, entry.at, attempt, entry.epoch,
        entry.actor, entry.reason, entry.late, entry.id, entry.part, before,
    )  # fmt: skip


def _arrow(entry: LedgerEntry) -> tuple[str | None, str, str]:
    return entry.from_state, entry.to_state, entry.reason


def _count(entry: LedgerEntry) -> int:
    """How many steps each batch of this entry takes."""
    return 2 if _arrow(entry) == CLAIMED_AND_STARTED else 1


def _claims(entry: LedgerEntry) -> bool:
    return entry.reason == "claimed" or _arrow(entry) == CLAIMED_AND_STARTED


def _attempt(head: Head, entry: LedgerEntry) -> int:
    """What the count of attempts is after this entry."""
    if entry.reason == "retried":
        return 0
    return head.attempt + (1 if _claims(entry) else -1 if entry.reason == "released" else 0)
