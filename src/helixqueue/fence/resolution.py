"""The answer that repeats get after an operator resolved a doubt."""

from __future__ import annotations

from helixqueue.engine.fences import FenceResult
from helixqueue.errors import Refused
from helixqueue.fence.encoding import JSON
from helixqueue.fence.http.stored import FORM, StoredResponse
from helixqueue.fence.policy import HTTP_PREFIX


def resolved_result(
    name: str, *, effect: str | None, result: str | None, http_status: int | None
) -> FenceResult:
    """For an effect that happened; `result` is canonical JSON, None where it is not known.

    Without a result, repeats get the receipt. A fenced request without a status answers 200.
    """
    is_http = name.startswith(HTTP_PREFIX)
    if http_status is not None and not is_http:
        raise Refused(
            f"fence {name}: expected an HTTP status for a fenced request only, got {http_status} "
            "for a function; leave it out"
        )
    if is_http and (result is not None or http_status is not None):
        headers = [(b"content-type", b"application/json")]
        body = None if result is None else result.encode()
        stored = StoredResponse.of(http_status or 200, headers, body)
        return FenceResult(FORM, stored.write(), effect=effect)
    if result is None:
        return FenceResult("omitted", b"", omitted=True, effect=effect)
    return FenceResult(JSON, result.encode(), effect=effect)
