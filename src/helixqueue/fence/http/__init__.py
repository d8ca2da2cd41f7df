"""Exactly-once effect for any HTTP endpoint: pure ASGI, for any application."""

from __future__ import annotations

from helixqueue.fence.http.middleware import IdempotencyMiddleware
from helixqueue.fence.http.openapi import describe
from helixqueue.fence.http.stored import StoredResponse

__all__ = ["IdempotencyMiddleware", "StoredResponse", "describe"]
