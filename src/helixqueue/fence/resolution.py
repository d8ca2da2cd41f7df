"""What a person who decides a doubt lets repeats have."""

from __future__ import annotations

from helixqueue.engine.fences import FenceResult
from helixqueue.fence.answer import JSON
from helixqueue.fence.http.stored import FORM, Stored


def answer_of(*, effect: str | None, result: str | None, http_status: int | None) -> FenceResult:
    """Of an effect that happened; `result` is canonical JSON, None when nobody has it any more."""
    if http_status is not None:
        headers = [(b"content-type", b"application/json")]
        stored = Stored.of(http_status, headers, None if result is None else result.encode())
        return FenceResult(FORM, stored.write(), effect=effect)
    if result is None:
        return FenceResult("omitted", b"", omitted=True, effect=effect)
    return FenceResult(JSON, result.encode(), effect=effect)
