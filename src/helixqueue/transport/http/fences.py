"""Fences, as `helixqueue.engine.fences` has them, over HTTP."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Any

from helixqueue.errors import InvalidPayload
from helixqueue.identity import PART_SEPARATOR, key_bytes, key_text
from helixqueue.records.fence import FenceEventRow, FencePage, FenceRow
from helixqueue.states import FenceState
from helixqueue.transport.http.call import HttpCall, at, get, post, to_json, unless
from helixqueue.transport.http.calls import BODY_BYTES_MAX

if TYPE_CHECKING:
    from collections.abc import Sequence

    from helixqueue.records.fence import FencePreview

_NO_PROOF: dict[str, Any] = {"form": None, "digest": None, "fingerprint": "", "sealed_at": None}


def find_fence(key: bytes) -> HttpCall[FenceRow | None]:
    """Read the fence with this key; None if the tenant has no such fence."""
    call: HttpCall[FenceRow | None] = get(at("fences", key_text(key)), _row)
    return unless("no-such-fence", call, lambda _: None)


def list_fences(
    *,
    tenant: str | None = None,  # noqa: ARG001 - the token's
    name: str | None = None,
    state: FenceState | None = None,
    after: str | None = None,
    limit: int = 50,
) -> HttpCall[FencePage]:
    """Read a page of fences, newest first."""
    parameters = [
        ("fence_name", name),
        ("fence_state", state),
        ("after", after),
        ("limit", str(limit)),
    ]
    return get(
        at("fences"),
        lambda document: FencePage(
            tuple(_row(row) for row in document["fences"]), document["next"]
        ),
        [(word, value) for word, value in parameters if value is not None],
    )


def fence_history(key: bytes) -> HttpCall[list[FenceEventRow]]:
    """Read the events and decisions of one fence, in order."""
    return get(
        at("fences", key_text(key)),
        lambda document: [_step(row) for row in document["history"]],
    )


def resolve(
    key: bytes,
    version: int,
    *,
    reason: str,
    applied: bool,
    effect: str | None,
    result: str | None,
    http_status: int | None,
    correct: bool = False,
) -> HttpCall[bool]:
    """Resolve a fence in doubt; False if it is not in doubt. `result` is JSON text.

    With `correct`, replace an earlier resolution.
    """
    document = {"reason": reason, "version": version, "applied": applied}
    more = {"effect": effect, "http_status": http_status, "correct": correct or None}
    body = to_json(document | {name: value for name, value in more.items() if value is not None})
    if result is not None:
        body = body[:-1] + b',"result":' + result.encode() + b"}"
    call = post(at("fences", key_text(key), "resolve"), body, lambda _: True, needs_key=True)
    return unless("not-in-doubt", call, lambda _: False)


def preview(
    *,
    tenant: str,  # noqa: ARG001 - the token's
    calls: Sequence[FencePreview],
) -> HttpCall[list[tuple[bytes, str]]]:
    """Return the key of each call and the decision its claim would get; claims nothing."""
    body = b'{"calls":[' + b",".join(write_call(call) for call in calls) + b"]}"
    return post(
        at("rehearse"),
        body,
        lambda body: [(key_bytes(call["fence"]), call["decision"]) for call in body["calls"]],
    )


def write_call(preview: FencePreview) -> bytes:
    document = to_json({"name": preview.name, "key": preview.identity.split(PART_SEPARATOR)})
    if preview.request is not None:  # JSON text already
        document = document[:-1] + b',"payload":' + preview.request.encode() + b"}"
    if len(document) > BODY_BYTES_MAX // 2:
        raise InvalidPayload(
            f"payload: expected at most {BODY_BYTES_MAX // 2} bytes over HTTP, "
            f"got {len(document)}; omit it, and no payload is compared",
            code="too_large",
        )
    return document


def _row(document: dict[str, Any]) -> FenceRow:
    identity = document["identity"]
    # Only clients that may read payloads see the proof of the answer.
    proof = document["receipt_document"] or _NO_PROOF
    digest, receipt = proof["digest"], document["receipt"]
    return FenceRow(
        key=key_bytes(document["fence"]),
        tenant=document["tenant"],
        name=document["name"],
        identity=None if identity is None else PART_SEPARATOR.join(identity),
        state=FenceState(document["state"]),
        version=document["version"],
        attempt=document["attempt"],
        actor=document["actor"],
        reason=document["reason"],
        detail=document["detail"],
        first_at=datetime.fromisoformat(document["first_at"]),
        changed_at=datetime.fromisoformat(document["changed_at"]),
        deadline=datetime.fromisoformat(document["deadline"]),
        effect=document["effect"],
        form=proof["form"],
        digest=None if digest is None else bytes.fromhex(digest),
        answer_kept=document["answer_kept"],
        answer_until=_time(document["answer_until"]),
        until=_time(document["until"]),
        quiet_seconds=document["quiet_seconds"],
        fingerprint=bytes.fromhex(proof["fingerprint"]),
        receipt=None if receipt is None else bytes.fromhex(receipt.partition(":")[2]),
        sealed_at=_time(proof["sealed_at"]),
        signature=proof.get("signature"),
    )


def _step(document: dict[str, Any]) -> FenceEventRow:
    members = document | {"at": datetime.fromisoformat(document["at"])}
    for name in ("from_state", "to_state"):
        members[name] = None if document[name] is None else FenceState(document[name])
    return FenceEventRow(**members)


def _time(text: str | None) -> datetime | None:
    return None if text is None else datetime.fromisoformat(text)
