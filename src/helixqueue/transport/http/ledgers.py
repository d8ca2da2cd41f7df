"""The calls of `helixqueue.engine.ledgers` that clients make, over HTTP."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Any

from helixqueue.identity import PART_SEPARATOR
from helixqueue.records.ledger import (
    START,
    AppendedRow,
    EntityState,
    FeedEvent,
    FeedRow,
    LedgerEvent,
    LedgerRow,
)
from helixqueue.transport.http.call import HttpCall, at, get, post, to_json, unless

if TYPE_CHECKING:
    from collections.abc import Sequence

    from helixqueue.records.ledger import EntityName, LedgerDeclaration, NewEventRow


def declare_ledger(
    *,
    tenant: str,  # noqa: ARG001 - the token determines it
    ledger: LedgerDeclaration,
    actor: str | None = None,  # noqa: ARG001
) -> HttpCall[LedgerRow]:
    body = {
        "arrows": {kind: list(after) for kind, after in ledger.machine.arrows.items()},
        "initial": list(ledger.machine.initial),
        "strict": ledger.strict,
        "bind_payload": ledger.bind_payload,
        "ignore": list(ledger.ignore),
    }
    return post(at("ledgers", ledger.name), body, _read_ledger, method="PUT", needs_key=True)


def ledgers(*, tenant: str, name: str | None = None) -> HttpCall[list[LedgerRow]]:  # noqa: ARG001
    if name is None:
        return get(
            at("ledgers"), lambda document: [_read_ledger(row) for row in document["ledgers"]]
        )
    call = get(at("ledgers", name), lambda document: [_read_ledger(document)])
    return unless("no-such-ledger", call, lambda _: [])


def append(
    *,
    tenant: str,  # noqa: ARG001
    ledger: str,
    rows: Sequence[NewEventRow],
    actor: str | None = None,  # noqa: ARG001
) -> HttpCall[list[AppendedRow]]:
    """Append up to 1,000 events. The engine recognises repeats: no request key is needed."""
    pieces = b",".join(_event(row) for row in rows)
    return post(
        at("ledgers", ledger, "chunks"),
        b'{"events":[' + pieces + b"]}",
        lambda document: [_read_appended(item) for item in document["appended"]],
        needs_key=False,
    )


def _event(row: NewEventRow) -> bytes:
    document = {"entity": _entity(row.entity), "seq": row.seq, "kind": row.kind, "node": row.node}
    # The payload is JSON text already.
    return to_json(document)[:-1] + b',"payload":' + row.payload.encode() + b"}"


def entity(*, tenant: str, ledger: str, entity: str) -> HttpCall[EntityState | None]:  # noqa: ARG001
    call: HttpCall[EntityState | None] = get(
        at("ledgers", ledger, "state"), _read_state, _entity_query(entity)
    )
    return unless("no-such-entity", call, lambda _: None)


def events(
    *,
    tenant: str,  # noqa: ARG001
    ledger: str,
    entity: str,
    after: int = 0,
    limit: int = 500,
) -> HttpCall[list[LedgerEvent]]:
    return get(
        at("ledgers", ledger, "events"),
        lambda document: [_read_event(item) for item in document["events"]],
        [*_entity_query(entity), ("after", str(after)), ("limit", str(limit))],
    )


def declare_feed(
    *,
    tenant: str,  # noqa: ARG001
    feed: str,
    ledger: str | None,
    queue: str | None,
    now: bool,
    actor: str | None = None,  # noqa: ARG001
) -> HttpCall[None]:
    body = {"ledger": ledger, "queue": queue, "start": "now" if now else "beginning"}
    return post(at("feeds", feed), body, lambda _: None, method="PUT", needs_key=True)


def read_feed(*, tenant: str, feed: str, limit: int) -> HttpCall[list[FeedEvent]]:  # noqa: ARG001
    return get(at("feeds", feed, "events"), _read_page, [("limit", str(limit))])


def advance_feed(*, tenant: str, feed: str, events: Sequence[FeedEvent]) -> HttpCall[bool]:  # noqa: ARG001
    """Confirm events; a repeat with the request key returns the first answer."""
    body = {"after": events[0].after, "to": events[-1].position, "count": len(events)}
    return post(
        at("feeds", feed, "confirm"), body, lambda found: bool(found["moved"]), needs_key=True
    )


def set_feed(
    *,
    tenant: str,  # noqa: ARG001
    feed: str,
    reason: str,
    paused: bool | None = None,
    rewind: bool = False,
    since: datetime | None = None,
    actor: str | None = None,  # noqa: ARG001
) -> HttpCall[None]:
    body: dict[str, Any] = {"reason": reason}
    verb = "pause" if paused else "resume"
    if rewind:
        verb = "rewind"
        body["since"] = None if since is None else since.isoformat()
    return post(at("feeds", feed, verb), body, lambda _: None, needs_key=True)


def feeds(*, tenant: str, name: str | None = None) -> HttpCall[list[FeedRow]]:  # noqa: ARG001
    if name is None:
        return get(at("feeds"), lambda document: [_read_feed(row) for row in document["feeds"]])
    call = get(at("feeds", name), lambda document: [_read_feed(document)])
    return unless("no-such-feed", call, lambda _: [])


def _entity(text: str) -> str | list[str]:
    parts = text.split(PART_SEPARATOR)
    return parts if len(parts) > 1 else text


def _entity_query(text: str) -> list[tuple[str, str]]:
    return [("entity", part) for part in text.split(PART_SEPARATOR)]


def _read_ledger(document: dict[str, Any]) -> LedgerRow:
    return LedgerRow(**document | {"created_at": _time(document["created_at"])})


def _read_appended(document: dict[str, Any]) -> AppendedRow:
    members = {"rules": tuple(document["rules"]), "diff": tuple(document["diff"])}
    return AppendedRow(**document | members)


def _read_state(document: dict[str, Any]) -> EntityState:
    members = {"entity": _name(document["entity"]), "changed_at": _time(document["changed_at"])}
    return EntityState(**document | members)


def _read_event(document: dict[str, Any]) -> LedgerEvent:
    return LedgerEvent(**_event_members(document))


def _read_page(document: dict[str, Any]) -> list[FeedEvent]:
    events: list[FeedEvent] = []
    after = document["position"]
    for item in document["events"]:
        events.append(FeedEvent(**_event_members(item), after=after))
        after = item["position"]
    return events


def _event_members(document: dict[str, Any]) -> dict[str, Any]:
    return document | {
        "entity": _name(document["entity"]),
        "at": _time(document["at"]),
        "violations": tuple(document["violations"]),
    }


def _name(entity: str | list[str]) -> EntityName:
    return entity if isinstance(entity, str) else tuple(entity)


def _read_feed(document: dict[str, Any]) -> FeedRow:
    times = {name: _time(document[name]) for name in ("oldest_at", "moved_at")}
    return FeedRow(**document | times, position=START)


def _time(text: str | None) -> Any:
    return None if text is None else datetime.fromisoformat(text)
