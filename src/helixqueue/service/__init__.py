"""The HTTP service. It decides nothing; the database does.

`admission` has the checks that every request passes, in order. A request with an idempotency key
then passes the idempotency middleware. Its route (`routes/`) makes one call for the tenant of its
token (`principal`). Errors become `problems`; `metrics` counts every request.
"""

from __future__ import annotations

from helixqueue.service.app import create_app
from helixqueue.service.settings import ServiceSettings

__all__ = ["ServiceSettings", "create_app"]
