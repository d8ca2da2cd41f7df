"""User ledgers and feeds: declarations, events and answers."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple

from helixqueue.identity import PART_SEPARATOR
from helixqueue.records.parameter import Param, Payload

if TYPE_CHECKING:
    from helixqueue.records.machine import Machine

# Of an entity with one part, or with several.
EntityName = str | tuple[str, ...]
AppendDecision = Literal[
    "written",  # the event is new and stored
    "duplicate_suppressed_by_db",  # the same event was stored before
    "conflict",  # the identity is stored with another payload (.diff)
    "illegal",  # the machine or the order of a strict ledger forbids it (.rules)
    "refused",  # invalid input, in `append_many` (.rules)
    "undecided",  # the constraints are not in place; nothing was written
    "stale_hint",  # the cache knows a later event of the entity; the database was not asked
]


GapRule = Literal["refuse", "warn", "allow"]


@dataclass(frozen=True, slots=True)
class LedgerDeclaration:
    name: str
    machine: Machine
    strict: bool = True
    bind_payload: bool = False
    ignore: tuple[str, ...] = ()  # JSON Pointers
    gaps: GapRule | None = None  # None: refuse if strict, else warn

    @property
    def gap_rule(self) -> GapRule:
        return self.gaps or ("refuse" if self.strict else "warn")


@dataclass(frozen=True, slots=True)
class LedgerRow:
    """A stored ledger."""

    tenant: str
    name: str
    arrows: dict[str, list[str]]
    initial: list[str]
    strict: bool
    gaps: GapRule
    bind_payload: bool
    ignore: list[str]
    created_at: datetime
    created_by: str


class NewEvent(NamedTuple):
    """One row of `append_many`."""

    entity: EntityName
    seq: int
    kind: str
    payload: Any = None
    node: str | None = None


class NewEventRow(NamedTuple):
    """A prepared event: `entity` is canonical, `payload` RFC 8785 text."""

    entity: str
    seq: int
    kind: str
    payload: str
    node: str | None = None


class AppendedRow(NamedTuple):
    """The engine's answer to one event."""

    decision: AppendDecision
    key: str | None
    version: int | None
    state: str | None
    seq: int | None
    rules: tuple[str, ...] = ()
    stored_payload: str | None = None  # of a conflict, from the database
    diff: tuple[dict[str, Any], ...] = ()  # of a conflict, from a service


class Appended(NamedTuple):
    """The answer to one event."""

    decision: AppendDecision
    key: str | None = None
    version: int | None = None  # of the event within its entity; None: it is not stored
    state: str | None = None  # of the entity now
    seq: int | None = None  # the greatest of the entity
    rules: tuple[str, ...] = ()  # violated rules: kind, gap, seq, initial, arrow, terminal
    diff: tuple[dict[str, Any], ...] = ()  # of a conflict: from the stored payload to this one

    @property
    def is_new(self) -> bool:
        """Whether this call wrote the event: notify once, on this answer alone."""
        return self.decision == "written"


def entity_name(text: str) -> EntityName:
    """Read an entity from its stored text."""
    parts = tuple(text.split(PART_SEPARATOR))
    return text if len(parts) == 1 else parts


@dataclass(frozen=True, slots=True)
class LedgerEvent:
    """A stored event."""

    entity: EntityName
    seq: int
    kind: str
    version: int
    payload: Annotated[Any, Payload]
    node: str | None
    actor: str
    at: datetime
    violations: tuple[str, ...]
    key: str


@dataclass(frozen=True, slots=True)
class EntityState:
    """The state of an entity: the kind of its event with the greatest seq."""

    entity: EntityName
    state: str
    seq: int
    events: int
    hash: str
    changed_at: datetime


Position = Annotated[str, Param("Position between two events of a feed.", length=300, sealed=True)]


@dataclass(frozen=True, slots=True)
class FeedEvent:
    """An event of a ledger, or a step of a batch, with its position in the feed."""

    key: str  # equal for equal events: the key of a fence around the effect
    entity: EntityName  # of a step: the batch id
    seq: int  # of a step: its version
    kind: str  # of a step: the state reached
    payload: Any
    node: str | None
    actor: str
    at: datetime
    violations: tuple[str, ...]
    position: Position  # after the event
    after: Position  # before it


@dataclass(frozen=True, slots=True)
class FeedRow:
    """A feed and how far it is behind."""

    tenant: str
    name: str
    ledger: str | None
    queue: str | None
    paused: bool
    delivered: int
    lag: int  # events after its position; at most 10,000 are counted
    oldest_at: datetime | None  # of those events
    moved_at: datetime | None
    holder: str | None  # the process that executes a program for it


@dataclass(frozen=True, slots=True)
class FeedMoved:
    moved: bool  # False: the feed is not at `after` any more, or paused
