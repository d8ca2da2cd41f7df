"""Fences: exactly-once effect for any function and any HTTP endpoint.

`guard` is what `helix.fence(...)` gives, `block` one guarded call as steps, `plan` the steps of
claim, seal and doubt, `drive` holds the hands that perform them, `pulse` keeps leases alive.
`receipt` proves what happened, `policy` reads idempotency.yml, `http` is the ASGI middleware.
"""

from __future__ import annotations

from helixqueue.engine.fences import Times
from helixqueue.fence.encoding import NOT_APPLIED, UNKNOWN, Applied, NotApplied
from helixqueue.fence.fence import AsyncFence, AsyncFences, Fence, FenceOptions, Fences, Outcome
from helixqueue.fence.guarded_call import HeldFence, current
from helixqueue.fence.receipt import EffectReceipt, HmacSigner, verify

__all__ = [
    "NOT_APPLIED",
    "UNKNOWN",
    "Applied",
    "AsyncFence",
    "AsyncFences",
    "EffectReceipt",
    "Fence",
    "FenceOptions",
    "Fences",
    "HeldFence",
    "HmacSigner",
    "NotApplied",
    "Outcome",
    "Times",
    "current",
    "verify",
]
