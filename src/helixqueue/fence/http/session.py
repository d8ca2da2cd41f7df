"""`Depends(helix_session)`: the session whose transaction has the fence of the request."""

from __future__ import annotations

from typing import Any

from starlette.requests import HTTPConnection  # noqa: TC002 - FastAPI reads the annotation

from helixqueue.errors import Refused
from helixqueue.fence.http.effect import guarded_request


async def helix_session(request: HTTPConnection) -> Any:  # noqa: ANN401 - the application's class
    """The session of this request; for routes with `effect: session`.

    The middleware commits it when the response is complete, and rolls it back if the endpoint
    raises or answers 5xx. A commit of the endpoint ends a savepoint only.
    """
    guarded = guarded_request(request)
    if guarded is None:
        raise Refused(
            "idempotency policy: expected `effect: session` for the route of this endpoint, got "
            "no route"
        )
    return guarded.session()
