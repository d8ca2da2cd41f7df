"""Fences: exactly-once effect for any function and any HTTP endpoint.

`fence` is what `helix.fence(...)` returns, `guarded_call` one call from claim to seal, `protocol`
the instructions of claim, seal and doubt without I/O, `runner` performs them, `heartbeat` renews
leases, `encoding` turns keys, arguments and results into text and bytes. `receipt` proves an
effect, `policy` and `policy_file` are idempotency.yml, `http` is the ASGI middleware.
"""

from __future__ import annotations

from helixqueue.engine.fences import Times
from helixqueue.fence.base_fence import FenceOptions, Outcome
from helixqueue.fence.encoding import NOT_APPLIED, UNKNOWN, Applied, NotApplied
from helixqueue.fence.fence import Fence, Fences
from helixqueue.fence.fence_async import AsyncFence, AsyncFences
from helixqueue.fence.guarded_call import HeldFence, current
from helixqueue.fence.receipt import EffectReceipt, verify
from helixqueue.fence.signing import HmacSigner

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
