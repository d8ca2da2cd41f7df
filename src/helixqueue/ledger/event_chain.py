"""Keys, hashes and states of user ledgers, computed in Python from stored or exported events.

Independent of the SQL that wrote them (engine/sql/65_user_ledger.sql): an auditor needs this file,
the events and nothing else.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

from helixqueue.engine.ledgers import Bucket, StoredEvent
from helixqueue.identity import PART_SEPARATOR, key_text
from helixqueue.ledger.chain import microseconds

if TYPE_CHECKING:
    from helixqueue.records.ledger import LedgerDeclaration

FAULTS_SHOWN: Final = 100


def event_key(tenant: str, ledger: LedgerDeclaration, event: StoredEvent) -> bytes:
    """The key of an event: version 2, or version 3 where the payload is part of the identity."""
    bound = b""
    if ledger.bind_payload:
        bound = hashlib.sha256((event.payload or "").encode()).digest()
    parts = event.entity.split(PART_SEPARATOR)
    framed = b"".join(
        (
            _framed(tenant),
            _framed(ledger.name),
            struct.pack(">i", len(parts)),
            *(_framed(part) for part in parts),
            struct.pack(">q", event.seq),
            _framed(event.kind),
            bound,
        )
    )
    return (b"\x03" if bound else b"\x02") + hashlib.sha256(framed).digest()


def event_hash(before: bytes, event: StoredEvent) -> bytes:
    """The hash of an event, over the hash of the event before it in its entity."""
    return hashlib.sha256(
        b"".join(
            (
                before,
                event.key,
                struct.pack(
                    ">iqqq",
                    event.version,
                    microseconds(event.at),
                    event.position,
                    event.feed_position,
                ),
                event.fingerprint,
                _framed(event.node or ""),
                _framed(event.actor),
                _framed(",".join(event.violations or ())),
                hashlib.sha256((event.payload or "").encode()).digest(),
            )
        )
    ).digest()


def _framed(text: str) -> bytes:
    data = text.encode()
    return struct.pack(">i", len(data)) + data


@dataclass(slots=True)
class LedgerFault:
    """What is wrong with a stored event."""

    entity: str
    version: int
    rule: str  # key, hash, version, order, or a rule of the machine
    detail: str


@dataclass(slots=True)
class LedgerReplay:
    """The fold of a ledger: feed it every event in the order of (entity, version)."""

    tenant: str
    ledger: LedgerDeclaration
    entities: int = 0
    events: int = 0
    fault_count: int = 0
    faults: list[LedgerFault] = field(default_factory=list)
    states: dict[str, int] = field(default_factory=dict)  # entities by state
    _last: StoredEvent | None = None
    _top: StoredEvent | None = None  # the event with the greatest seq of the entity

    def add(self, event: StoredEvent) -> None:
        last = self._last
        if last is None or last.entity != event.entity:
            self._end_entity()
            last = self._top = None
            self.entities += 1
        self.events += 1
        if event.version != (last.version if last else 0) + 1:
            self._fault(event, "version", f"expected {(last.version if last else 0) + 1}")
        if event.key != event_key(self.tenant, self.ledger, event):
            self._fault(event, "key", f"{key_text(event.key)} is not the key of its identity")
        if event.hash != event_hash(last.hash if last else b"", event):
            self._fault(event, "hash", "the event, or the one before it, is not the one written")
        if event.feed_position < max(event.position, last.feed_position if last else 0):
            self._fault(event, "order", "feeds would deliver it before the event before it")
        if not event.violations:
            for rule in self._rules(event):
                self._fault(event, rule, f"{event.kind} at seq {event.seq} violates the machine")
        self._last = event
        if self._top is None or event.seq >= self._top.seq:
            self._top = event

    def finish(self) -> LedgerReplay:
        self._end_entity()
        self._last = self._top = None
        return self

    def _end_entity(self) -> None:
        if self._top is not None:
            self.states[self._top.kind] = self.states.get(self._top.kind, 0) + 1

    def _rules(self, event: StoredEvent) -> list[str]:
        """The rules that an event violates which was written as legal."""
        arrows, top = self.ledger.machine.arrows, self._top
        if event.kind not in arrows:
            return ["kind"]
        reached = 0 if top is None else top.seq
        if event.seq > reached + 1 and self.ledger.gap_rule != "allow":
            return ["gap"]
        if event.seq <= reached:
            return ["seq"]
        if top is None:
            return [] if event.kind in self.ledger.machine.initial else ["initial"]
        if event.kind in arrows.get(top.kind, ()):
            return []
        return ["arrow" if arrows.get(top.kind) else "terminal"]

    def _fault(self, event: StoredEvent, rule: str, detail: str) -> None:
        self.fault_count += 1
        if len(self.faults) < FAULTS_SHOWN:
            self.faults.append(LedgerFault(event.entity, event.version, rule, detail))


def digest_events(events: Iterable[StoredEvent], position: int) -> dict[int, Bucket]:
    """Compute what `helix.read_ledger_head_v1` returns; events come by (entity, version)."""
    parts: dict[int, list[bytes]] = {}
    counts: dict[int, list[int]] = {}
    heads: dict[str, StoredEvent] = {}
    for event in events:
        if event.feed_position < position:
            heads[event.entity] = event
    for entity in sorted(heads, key=str.encode):
        head = heads[entity]
        bucket = hashlib.sha256(entity.encode()).digest()[0]
        parts.setdefault(bucket, []).append(
            _framed(entity) + struct.pack(">i", head.version) + head.hash
        )
        count = counts.setdefault(bucket, [0, 0])
        count[0] += 1
        count[1] += head.version
    return {
        bucket: Bucket(
            counts[bucket][0], counts[bucket][1], hashlib.sha256(b"".join(lines)).hexdigest()
        )
        for bucket, lines in parts.items()
    }


def export_line(event: StoredEvent) -> dict[str, Any]:
    """An event as one line of an export, with everything that its hash covers."""
    return event._asdict() | {
        "at": event.at.astimezone(UTC).isoformat(),
        "key": event.key.hex(),
        "fingerprint": event.fingerprint.hex(),
        "hash": event.hash.hex(),
    }


def read_line(document: dict[str, Any]) -> StoredEvent:
    """Read a line of an export."""
    times = {"at": datetime.fromisoformat(document["at"])}
    hashes = {name: bytes.fromhex(document[name]) for name in ("key", "fingerprint", "hash")}
    return StoredEvent(**document | times | hashes)
