"""Previews of calls: how a call is written in JSON, and what each decision means."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from helixqueue.errors import InvalidIdentity, InvalidPayload, Refused
from helixqueue.fence.encoding import identity_text
from helixqueue.identity import canonical_text
from helixqueue.records.fence import FencePreview

if TYPE_CHECKING:
    from helixqueue.records.fence import DecisionWord

MEANS: Final = {
    "repeats": "the effect happened; the kept answer is returned",
    "done": "the effect happened; only its receipt is kept",
    "runs": "no effect is known for this key: the call executes",
    "in progress": "another call holds this fence",
    "in doubt": "the outcome is unknown: a probe or an operator decides",
    "refused": "the key belongs to another request",
    "unreadable": "the line is not a call",
}
WORDS: Final[dict[DecisionWord, str]] = {
    "granted": "runs", "repeated": "repeats", "expired": "done", "in_progress": "in progress",
    "mismatch": "refused", "in_doubt": "in doubt",
}  # fmt: skip
_MEMBERS: Final = {"name", "key", "payload"}


def call_of(document: object) -> FencePreview:
    """One call, from JSON; raises `Refused`. A call without `payload` compares none."""
    if (
        not isinstance(document, dict)
        or not isinstance(document.get("name"), str)
        or "key" not in document
    ):
        raise Refused('expected {"name": "refund", "key": "order-7", "payload": ...}')
    if document.keys() - _MEMBERS:
        unknown = ", ".join(sorted(document.keys() - _MEMBERS))
        raise Refused(f"expected the members name, key and payload, got {unknown}")
    key = tuple(document["key"]) if isinstance(document["key"], list) else document["key"]
    try:
        identity = identity_text(key, document["name"], "refuse")
    except (InvalidIdentity, InvalidPayload) as error:
        raise Refused(str(error)) from error
    assert identity is not None  # noqa: S101 - refused above
    request = canonical_text(document["payload"]) if "payload" in document else None
    return FencePreview(document["name"], identity, request)
