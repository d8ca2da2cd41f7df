"""Named points in the code at which a test can kill, stop, break or disconnect this process.

    HELIX_FAILPOINTS="claim.after=kill, effect.inside=stop@3"

Each failpoint fires once, at the N-th arrival given by `@N` (default 1). Without the variable, as
in production, a failpoint costs one comparison with None. Actions:

- `kill`: send SIGKILL to this process;
- `stop`: send SIGSTOP; the process continues after SIGCONT;
- `raise`: raise a `RuntimeError`;
- `hold`: create the file named by HELIX_FAILPOINT_FILE and wait until the test removes it. The test
  can meanwhile do what this process cannot do to itself, such as cutting its connections.

A failpoint that fires creates that file name with the suffix `.fired`. A test asserts that the
file exists; otherwise it has tested nothing.
"""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

POINTS = (
    "claim.before",  # no request was sent
    "claim.after",  # the leases are committed; the worker has not read them
    "start",  # the handler is about to be called
    "effect.inside",  # in the handler's transaction: effect written, batch not settled
    "effect.settled",  # settled, not committed
    "effect.after",  # committed
    "settle.before",  # the handler has returned; no request was sent
    "settle.after",  # committed; the worker has not read the answer
    "renew.before",
    "renew.after",
    "release.before",
    "release.after",
)
# The points of a fenced call: function, context manager or HTTP request.
FENCE_POINTS = (
    "fence.claim.before",  # no request was sent
    "fence.claim.after",  # EFFECT_STARTED is committed, the effect has not begun
    "fence.start.before",  # CLAIMED is committed; the endpoint is about to mark its effect
    "fence.start.after",  # EFFECT_STARTED is committed, the effect has not begun
    "fence.seal.before",  # the effect took place; it is not recorded
    "fence.seal.after",  # sealed (in a caller's transaction: not committed); the answer is not read
    "fence.release.before",  # the effect did not take place; that is not recorded
    "fence.release.after",
    "fence.doubt.before",  # the effect raised an error; its outcome is unknown
    "fence.doubt.after",
)
# The points of a delivery of a webhook.
WEBHOOK_POINTS = ("webhook.committed",)  # the effect is committed; the provider has no answer
# The points of a consumer of a feed.
FEED_POINTS = (
    "feed.taken",  # the transaction has taken events; the consumer has not seen them
    "feed.effect",  # the effect is written, not committed
    "feed.committed",
)
# The points of `feed run`, besides those of its fences.
FEED_RUN_POINTS = (
    "feed.run.sealed",  # the effect took place and is sealed; the position has not moved
    "feed.run.confirmed",
)
# The points of an intake.
INTAKE_POINTS = (
    "intake.read",  # entries are read from the stream and pending
    "intake.write",  # parsed; no transaction has begun
    "intake.commit",  # everything is written, nothing is committed
    "intake.committed",  # committed, not acknowledged
    "intake.ack",  # about to acknowledge
    "intake.acked",
)
# The points of output files.
OUTPUT_POINTS = (
    "outputs.stage",  # the copy of a file is complete
    "outputs.register",  # everything is staged; no file is registered
    "outputs.registered",  # the manifest is complete, the batch is not settled
    "outputs.publish",  # a file has its final name
    "outputs.seal",  # every file has its final name; the manifest is not sealed
    "outputs.sealed",
)
# The points of the start of a run.
RUN_POINTS = (
    "run.spooled",  # the datums are in their file; no request was sent
    "run.started",  # the run is stored, without a datum
    "run.appended",  # a page of datums is committed
)
_ALL_POINTS = frozenset(
    POINTS
    + FENCE_POINTS
    + FEED_POINTS
    + FEED_RUN_POINTS
    + INTAKE_POINTS
    + OUTPUT_POINTS
    + RUN_POINTS
    + WEBHOOK_POINTS
)
_HOLD_POLL_SECONDS = 0.01


def _parse(text: str | None) -> dict[str, tuple[str, int]] | None:
    if not text:
        return None
    armed = {}
    for part in text.split(","):
        name, _, rest = part.strip().partition("=")
        action, _, nth = rest.partition("@")
        if name not in _ALL_POINTS or action not in {"kill", "stop", "raise", "hold"}:
            raise ValueError(f"HELIX_FAILPOINTS: expected POINT=ACTION[@N], got {part!r}")
        armed[name] = (action, int(nth or 1))
    return armed


_armed = _parse(os.environ.get("HELIX_FAILPOINTS"))


def failpoint(name: str) -> None:
    if _armed is not None:
        _reach(name)


def _reach(name: str) -> None:
    if _armed is None or name not in _armed:
        return
    action, nth = _armed.pop(name)
    if nth > 1:
        _armed[name] = (action, nth - 1)
        return
    file = Path(os.environ.get("HELIX_FAILPOINT_FILE", os.devnull))
    if file.name != "null":
        file.with_suffix(".fired").touch()
    if action == "raise":
        raise RuntimeError(f"failpoint {name}")
    if action == "hold":
        file.touch()
        while file.exists():
            time.sleep(_HOLD_POLL_SECONDS)
    else:
        os.kill(os.getpid(), signal.SIGKILL if action == "kill" else signal.SIGSTOP)
