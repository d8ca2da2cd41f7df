"""The HTTP service: the engine for whoever speaks HTTP. It decides nothing; the database does.

A request comes in through `gate` (who is it, may it, how much), passes the idempotency middleware
if it has a key, and reaches a route, which makes one call for the tenant of its token. `principal`
is who asks, `problems` how it is told no, `journal` and `metrics` what is remembered of it.
"""

from __future__ import annotations

from helixqueue.service.app import create_app
from helixqueue.service.settings import ServiceSettings

__all__ = ["ServiceSettings", "create_app"]
