"""Fences: exactly-once effect for any function and any HTTP endpoint.

`guard` is what `helix.fence(...)` gives, `block` one guarded call as steps, `plan` the steps of
claim, seal and doubt, `drive` holds the hands that perform them, `pulse` keeps leases alive.
`receipt` proves what happened, `policy` reads idempotency.yml, `http` is the ASGI middleware.
"""

from __future__ import annotations

from helixqueue.fence.block import Held, current
from helixqueue.fence.call import NOT_APPLIED, UNKNOWN, Applied, NotApplied
from helixqueue.fence.guard import AsyncFence, AsyncFences, Fence, Fences, Options, Outcome
from helixqueue.fence.receipt import EffectReceipt, HmacSigner, verify
from helixqueue.store.fences import Times

__all__ = [
    "NOT_APPLIED",
    "UNKNOWN",
    "Applied",
    "AsyncFence",
    "AsyncFences",
    "EffectReceipt",
    "Fence",
    "Fences",
    "Held",
    "HmacSigner",
    "NotApplied",
    "Options",
    "Outcome",
    "Times",
    "current",
    "verify",
]
