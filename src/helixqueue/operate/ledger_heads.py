"""Signed heads of user ledgers: what a ledger contained, kept outside of the database.

A head covers every event below a position in the order of feeds, as 256 digests over the last event
of each entity, whose hash covers those before it. It names the head before it, so none can be left
out. Everyone who has the public key and an export verifies it without a database.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from helixqueue.engine import ledgers
from helixqueue.errors import Refused
from helixqueue.ledger.event_chain import LedgerReplay, export_line, read_line
from helixqueue.operate.signed_series import SignedSeries, document_id

if TYPE_CHECKING:
    from helixqueue.engine.ledgers import Bucket, LedgerDigest, StoredEvent
    from helixqueue.fence.signing import Signer
    from helixqueue.records.ledger import LedgerDeclaration

HEADS: Final = SignedSeries("head", "helixqueue ledger head 1", "helixq ledger seal")
PAGE_ROWS: Final = 10_000


def sign_head(
    digest: LedgerDigest,
    tenant: str,
    ledger: LedgerDeclaration,
    signer: Signer,
    previous: dict[str, Any] | None,
) -> dict[str, Any]:
    """The next head of a ledger. Its rules are part of it: an auditor replays with them."""
    if previous is not None and _ledger_of(previous) != (tenant, ledger.name):
        raise Refused(
            f"expected heads of ledger {ledger.name} of tenant {tenant}, got heads of "
            f"{previous['ledger']} of {previous['tenant']}; use one file per ledger"
        )
    members = {
        "tenant": tenant,
        "ledger": ledger.name,
        "arrows": {kind: list(after) for kind, after in ledger.machine.arrows.items()},
        "initial": list(ledger.machine.initial),
        "strict": ledger.strict,
        "gaps": ledger.gap_rule,
        "bind_payload": ledger.bind_payload,
        "ignore": list(ledger.ignore),
        "position": str(digest.position),
        "entities": sum(bucket.entities for bucket in digest.buckets.values()),
        "events": sum(bucket.events for bucket in digest.buckets.values()),
        "buckets": {f"{number:02x}": list(b) for number, b in sorted(digest.buckets.items())},
    }
    follows = None if previous is None else (previous["number"], document_id(previous))
    return HEADS.sign(members, follows, signer)


def verify_heads(
    heads: Sequence[dict[str, Any]],
    keys: Sequence[Signer],
    digest_at: Callable[[int], dict[int, Bucket]],
) -> list[str]:
    """What is wrong with a series of heads, or with the ledger at their positions."""
    faults: list[str] = []
    previous: dict[str, Any] | None = None
    for head in heads:
        label = f"head {head.get('number')}"
        wrong = HEADS.faults(head, previous, keys)
        if not wrong and previous is not None and _ledger_of(head) != _ledger_of(previous):
            wrong = ["the head before it is of another ledger"]
        faults += [f"{label}: {fault}" for fault in wrong]
        if not wrong:
            found = digest_at(int(head["position"]))
            faults += [f"{label}: {fault}" for fault in _differences(head, found)]
            previous = head
    return faults


def _ledger_of(head: dict[str, Any]) -> tuple[str, str]:
    return head["tenant"], head["ledger"]


def rule_faults(sealed: LedgerDeclaration, stored: LedgerDeclaration) -> list[str]:
    """A declaration may add kinds and arrows; nothing else of it changes."""
    old, new = sealed.machine, stored.machine
    grown = set(old.initial) <= set(new.initial) and all(
        kind in new.arrows
        and set(after) <= set(new.arrows[kind])
        and (bool(after) or not new.arrows[kind])
        for kind, after in old.arrows.items()
    )
    options = [(d.strict, d.gap_rule, d.bind_payload, d.ignore) for d in (sealed, stored)]
    if grown and options[0] == options[1]:
        return []
    return ["the rules of the ledger are not those that were sealed, nor an extension of them"]


def _differences(head: dict[str, Any], found: dict[int, Bucket]) -> list[str]:
    events = sum(bucket.events for bucket in found.values())
    if {f"{number:02x}": list(bucket) for number, bucket in found.items()} == head["buckets"]:
        return []
    shown = []
    if events < head["events"]:
        shown.append(f"{head['events'] - events} sealed events are missing")
    if events > head["events"]:
        shown.append(f"{events - head['events']} events were added to the sealed ones")
    changed = sorted(
        number
        for number in {f"{n:02x}" for n in found} | set(head["buckets"])
        if head["buckets"].get(number) != list(found.get(int(number, 16), ()))
    )
    shown.append(
        f"entities in bucket {', '.join(changed[:16])}{' ...' if len(changed) > 16 else ''} "
        "(first byte of the SHA-256 of the entity) are not as sealed: history was rewritten"
    )
    return shown


def stored_pages(
    run: Callable[[Any], Any], tenant: str, ledger: str, page_rows: int = PAGE_ROWS
) -> Iterator[StoredEvent]:
    """Every event of a ledger, in the order of (entity, version)."""
    after = ("", 0)
    while True:
        page: list[StoredEvent] = run(
            ledgers.stored_events(tenant=tenant, ledger=ledger, after=after, limit=page_rows)
        )
        if not page:
            return
        yield from page
        after = (page[-1].entity, page[-1].version)


def replay_events(
    tenant: str, ledger: LedgerDeclaration, events: Iterable[StoredEvent]
) -> LedgerReplay:
    replay = LedgerReplay(tenant, ledger)
    for event in events:
        if event.payload is None:
            raise Refused("expected a login that may see payloads, got one that may not")
        replay.add(event)
    return replay.finish()


def write_export(place: Path, events: Iterable[StoredEvent]) -> Iterator[StoredEvent]:
    """Pass events on, and write each as a line of JSON."""
    with place.open("x", encoding="utf-8") as writer:
        for event in events:
            writer.write(json.dumps(export_line(event), ensure_ascii=False) + "\n")
            yield event


def read_export(place: Path) -> list[StoredEvent]:
    """The events of an export, sorted by (entity, version)."""
    try:
        with place.open(encoding="utf-8") as lines:
            events = [read_line(json.loads(line)) for line in lines if line.strip()]
    except (OSError, ValueError, TypeError, KeyError, RecursionError) as error:
        raise Refused(f"{place}: expected events as JSON lines, got {error}") from error
    return sorted(events, key=lambda event: (event.entity, event.version))
