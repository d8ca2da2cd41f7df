"""Exactly-once effect for any HTTP endpoint: pure ASGI, for any application."""

from __future__ import annotations

from typing import TYPE_CHECKING

from helixqueue.fence.http.effect import helix_effect
from helixqueue.fence.http.middleware import IdempotencyMiddleware
from helixqueue.fence.http.openapi import describe
from helixqueue.fence.http.stored import StoredResponse

if TYPE_CHECKING:
    from helixqueue.fence.http.session import helix_session

__all__ = ["IdempotencyMiddleware", "StoredResponse", "describe", "helix_effect", "helix_session"]


def __getattr__(name: str) -> object:
    if name != "helix_session":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    # Loaded when used: it needs Starlette, which a plain ASGI application does not.
    from helixqueue.fence.http.session import helix_session  # noqa: PLC0415

    return helix_session
