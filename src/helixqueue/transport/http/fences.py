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


def find_fence(key: bytes) -> HttpCall[FenceRow | None]:
    """The fence with this key; None when the tenant has none such."""
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
    """A page of fences, newest first."""
    asked = [
        ("fence_name", name),
        ("fence_state", state),
        ("after", after),
        ("limit", str(limit)),
    ]
    return get(
        at("fences"),
        lambda told: FencePage(tuple(_row(row) for row in told["fences"]), told["next"]),
        [(word, value) for word, value in asked if value is not None],
    )


def fence_history(key: bytes) -> HttpCall[list[FenceEventRow]]:
    """Steps and decisions of one fence, in their order."""
    return get(
        at("fences", key_text(key)),
        lambda told: [_step(row) for row in told["story"]],
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
) -> HttpCall[bool]:
    """Decide a doubt; False when it is none (any more). `result` is JSON text."""
    told = {"reason": reason, "version": version, "applied": applied}
    more = {"effect": effect, "http_status": http_status}
    body = to_json(told | {name: value for name, value in more.items() if value is not None})
    if result is not None:
        body = body[:-1] + b',"result":' + result.encode() + b"}"
    call = post(at("fences", key_text(key), "resolve"), body, lambda _: True, keyed=True)
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
    told = to_json({"name": preview.name, "key": preview.identity.split(PART_SEPARATOR)})
    if preview.request is not None:  # JSON text already
        told = told[:-1] + b',"payload":' + preview.request.encode() + b"}"
    if len(told) > BODY_BYTES_MAX // 2:
        raise InvalidPayload(
            f"payload: expected at most {BODY_BYTES_MAX // 2} bytes over HTTP, got {len(told)}; "
            "leave it out, and none is compared",
            code="too_large",
        )
    return told


def _row(told: dict[str, Any]) -> FenceRow:
    identity = told["identity"]
    # Only whoever may read payloads is told what proves the answer.
    proof = told["receipt_document"] or {"form": None, "digest": None, "fingerprint": ""}
    digest, receipt = proof["digest"], told["receipt"]
    return FenceRow(
        key=key_bytes(told["fence"]),
        tenant=told["tenant"],
        name=told["name"],
        identity=None if identity is None else PART_SEPARATOR.join(identity),
        state=FenceState(told["state"]),
        version=told["version"],
        attempt=told["attempt"],
        actor=told["actor"],
        reason=told["reason"],
        detail=told["detail"],
        first_at=datetime.fromisoformat(told["first_at"]),
        changed_at=datetime.fromisoformat(told["changed_at"]),
        deadline=datetime.fromisoformat(told["deadline"]),
        effect=told["effect"],
        form=proof["form"],
        digest=None if digest is None else bytes.fromhex(digest),
        answer_kept=told["answer_kept"],
        answer_until=_time(told["answer_until"]),
        until=_time(told["until"]),
        quiet_seconds=told["quiet_seconds"],
        fingerprint=bytes.fromhex(proof["fingerprint"]),
        receipt=None if receipt is None else bytes.fromhex(receipt.partition(":")[2]),
    )


def _step(told: dict[str, Any]) -> FenceEventRow:
    return FenceEventRow(
        datetime.fromisoformat(told["at"]),
        *(told[name] for name in ("what", "from_state", "to_state", "attempt", "actor", "detail")),
    )


def _time(text: str | None) -> datetime | None:
    return None if text is None else datetime.fromisoformat(text)
