"""What an endpoint calls about its request, whose execution the middleware puts into its scope."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any, Final, Protocol

from helixqueue.errors import Refused

SCOPE_KEY: Final = "helixqueue.fence"


class GuardedRequest(Protocol):
    """The execution of the request that an endpoint belongs to."""

    def session(self) -> Any: ...  # noqa: ANN401 - the application's own class

    async def start_effect(self) -> str: ...


@asynccontextmanager
async def helix_effect(request: Mapping[str, Any]) -> AsyncIterator[str | None]:
    """Marks where the effect of a request starts; for routes with `effect: marked`.

    ```python
    async with helix_effect(request) as key:
        await bank.refund(order, idempotency_key=key)
    ```

    An exception before the block releases the key of the request, and a crash frees it when its
    lease ends. Returns the idempotency key for the next system, the same in every attempt; None
    for a request without a key. Takes a request of Starlette or FastAPI, or the scope of ASGI.
    """
    guarded = guarded_request(request)
    yield None if guarded is None else await guarded.start_effect()


def guarded_request(request: Mapping[str, Any]) -> GuardedRequest | None:
    """None where no fence guards the request: it has no key, or the policy passes it."""
    if SCOPE_KEY not in request:
        raise Refused("expected IdempotencyMiddleware in front of this endpoint, got none")
    guarded: GuardedRequest | None = request[SCOPE_KEY]
    return guarded


def wrong_effect(path: str, wanted: str, got: str) -> Refused:
    return Refused(
        f"idempotency policy: expected `effect: {wanted}` for the route {path}, got {got}"
    )
