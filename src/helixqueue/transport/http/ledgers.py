"""Appending to user ledgers over HTTP; payloads are sent as the JSON text that they are."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from helixqueue.identity import PART_SEPARATOR
from helixqueue.records.ledger import AppendedRow
from helixqueue.transport.http.call import HttpCall, at, post, to_json

if TYPE_CHECKING:
    from collections.abc import Sequence

    from helixqueue.records.ledger import NewEventRow


def append(
    *,
    tenant: str,  # noqa: ARG001 - the token determines it
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
    parts = row.entity.split(PART_SEPARATOR)
    entity = parts if len(parts) > 1 else row.entity
    document = {"entity": entity, "seq": row.seq, "kind": row.kind, "node": row.node}
    # The payload is JSON text already.
    return to_json(document)[:-1] + b',"payload":' + row.payload.encode() + b"}"


def _read_appended(document: dict[str, Any]) -> AppendedRow:
    members = {"rules": tuple(document["rules"]), "diff": tuple(document["diff"])}
    return AppendedRow(**document | members)
