"""What would happen if calls came again: how a call is told of, and what the answers mean."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from helixqueue.errors import InvalidIdentity, InvalidPayload, Refused
from helixqueue.fence.encoding import identity_text
from helixqueue.identity import canonical_text
from helixqueue.records.fence import FencePreview

if TYPE_CHECKING:
    from helixqueue.engine.fences import DecisionWord

MEANS: Final = {
    "repeats": "it was done, and its kept answer is given again",
    "done": "it was done; its answer is no longer kept, its receipt is",
    "runs": "nothing is known of it: it takes effect",
    "in progress": "somebody is at it",
    "in doubt": "nobody knows whether it was done: a probe or a person decides",
    "refused": "the key stands for another request",
    "unreadable": "the line is no call",
}
WORDS: Final[dict[DecisionWord, str]] = {
    "granted": "runs", "repeated": "repeats", "expired": "done", "in_progress": "in progress",
    "mismatch": "refused", "in_doubt": "in doubt",
}  # fmt: skip
_MEMBERS: Final = {"name", "key", "payload"}


def call_of(told: object) -> FencePreview:
    """One call, from JSON; raises `Refused`. Without `payload`, none is compared."""
    if not isinstance(told, dict) or not isinstance(told.get("name"), str) or "key" not in told:
        raise Refused('expected {"name": "refund", "key": "order-7", "payload": ...}')
    if told.keys() - _MEMBERS:
        unknown = ", ".join(sorted(told.keys() - _MEMBERS))
        raise Refused(f"expected the members name, key and payload, got {unknown}")
    key = tuple(told["key"]) if isinstance(told["key"], list) else told["key"]
    try:
        identity = identity_text(key, told["name"], "refuse")
    except (InvalidIdentity, InvalidPayload) as error:
        raise Refused(str(error)) from error
    assert identity is not None  # noqa: S101 - refused above
    request = canonical_text(told["payload"]) if "payload" in told else None
    return FencePreview(told["name"], identity, request)
