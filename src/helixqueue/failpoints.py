"""Named places where a test can make this process die, stop, fail or lose its link.

    HELIX_FAILPOINTS="claim.after=kill, effect.inside=stop@3"

Each fires once, at the named arrival (the first unless `@` says otherwise). Unset, as in every real
run, a failpoint is a comparison with None. Actions:

- `kill`: SIGKILL, this process;
- `stop`: SIGSTOP, until somebody sends SIGCONT;
- `raise`: a `RuntimeError`;
- `hold`: make the file that HELIX_FAILPOINT_FILE names and wait until somebody removes it, who can
  meanwhile do what this process cannot do to itself, such as cutting its links.

Whatever fires leaves a file of that name with `.fired` behind: a test in which nothing did
has shown nothing.
"""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

POINTS = (
    "claim.before",  # nothing was asked yet
    "claim.after",  # leases are granted, and this worker does not know what to do with them yet
    "start",  # the handler is about to be called
    "effect.inside",  # in a transaction of the caller's: the effect is written, the settle is not
    "effect.settled",  # the settle too, the commit not yet
    "effect.after",  # committed
    "settle.before",  # the handler is done, nothing was said yet
    "settle.after",  # committed, and nobody took note
    "renew.before",
    "renew.after",
    "release.before",
    "release.after",
)
# The same of a fenced call, whichever door it came through.
FENCE_POINTS = (
    "fence.claim.before",  # nothing was asked yet
    "fence.claim.after",  # the mark is committed, the effect has not begun
    "fence.seal.before",  # the effect took place, and nobody was told
    "fence.seal.after",  # sealed (in a caller's transaction: not committed yet), nobody took note
    "fence.release.before",  # it did not happen, and nobody was told
    "fence.release.after",
    "fence.doubt.before",  # it failed on the way
    "fence.doubt.after",
)
_HOLD_POLL_S = 0.01


def _read(text: str | None) -> dict[str, tuple[str, int]] | None:
    if not text:
        return None
    armed = {}
    for part in text.split(","):
        name, _, rest = part.strip().partition("=")
        action, _, arrival = rest.partition("@")
        if name not in POINTS + FENCE_POINTS or action not in {"kill", "stop", "raise", "hold"}:
            raise ValueError(f"HELIX_FAILPOINTS: expected POINT=ACTION[@N], got {part!r}")
        armed[name] = (action, int(arrival or 1))
    return armed


_armed = _read(os.environ.get("HELIX_FAILPOINTS"))


def failpoint(name: str) -> None:
    if _armed is not None:
        _arrive(name)


def _arrive(name: str) -> None:
    if _armed is None or name not in _armed:
        return
    action, arrival = _armed.pop(name)
    if arrival > 1:
        _armed[name] = (action, arrival - 1)
        return
    file = Path(os.environ.get("HELIX_FAILPOINT_FILE", os.devnull))
    if file.name != "null":
        file.with_suffix(".fired").touch()
    if action == "raise":
        raise RuntimeError(f"failpoint {name}")
    if action == "hold":
        file.touch()
        while file.exists():
            time.sleep(_HOLD_POLL_S)
    else:
        os.kill(os.getpid(), signal.SIGKILL if action == "kill" else signal.SIGSTOP)
