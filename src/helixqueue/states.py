"""The states of a batch and of a fence, and the arrows between them.

This is the only place outside SQL that lists them. First a batch:

```
             submit                claim              start             settle
    (new) ------------> PENDING ----------> ASSIGNED --------> RUNNING ---------> COMPLETED
                         ^  ^ |                |   |              | |
                         |  | +--- cancel -----|---|--> CANCELLED <-+ cancel
                         |  +-- release, lost -+   +--> FAILED <----+ out of tries, permanent
                         |      fail with tries left  (from RUNNING too)  |
                         +------------------------ retry (operator) ------+
```

COMPLETED and CANCELLED are final: new work is a new revision. The table `helix.arrow` holds the
same arrows, and a test compares the two; so it does with `helix.fence_arrow`.

A fence, the guard of one effect:

```
    (new) --> CLAIMED --> EFFECT_STARTED --> SEALED
                 |             |  |   ^         ^
                 +--> RELEASED<+  +-> IN_DOUBT -+  probe or person
```
"""

from __future__ import annotations

from enum import StrEnum


class State(StrEnum):
    PENDING = "PENDING"  # waits for a worker: in `ready` (claimable) or `waiting` (not yet)
    ASSIGNED = "ASSIGNED"  # leased to a worker that has not begun
    RUNNING = "RUNNING"  # leased to a worker that has begun
    COMPLETED = "COMPLETED"  # took effect; final
    FAILED = "FAILED"  # out of tries, or failed for good; an operator may retry
    CANCELLED = "CANCELLED"  # given up by a person or by its expiry; final


ARROWS: frozenset[tuple[State | None, State]] = frozenset(
    {
        (None, State.PENDING),
        (State.PENDING, State.ASSIGNED),
        (State.ASSIGNED, State.RUNNING),
        (State.RUNNING, State.COMPLETED),
        (State.ASSIGNED, State.PENDING),
        (State.RUNNING, State.PENDING),
        (State.ASSIGNED, State.FAILED),
        (State.RUNNING, State.FAILED),
        (State.FAILED, State.PENDING),
        (State.PENDING, State.CANCELLED),
        (State.ASSIGNED, State.CANCELLED),
        (State.RUNNING, State.CANCELLED),
    }
)

FINAL: frozenset[State] = frozenset({State.COMPLETED, State.CANCELLED})
FINISHED: frozenset[State] = FINAL | {State.FAILED}


class FenceState(StrEnum):
    CLAIMED = "CLAIMED"  # somebody is at it and has not begun
    EFFECT_STARTED = "EFFECT_STARTED"  # it may have happened
    SEALED = "SEALED"  # it happened, once; final
    RELEASED = "RELEASED"  # it did not happen, and may be done
    IN_DOUBT = "IN_DOUBT"  # only a probe or a person knows


FENCE_ARROWS: frozenset[tuple[FenceState | None, FenceState]] = frozenset(
    {
        (None, FenceState.CLAIMED),
        (None, FenceState.EFFECT_STARTED),
        (FenceState.CLAIMED, FenceState.CLAIMED),
        (FenceState.CLAIMED, FenceState.EFFECT_STARTED),
        (FenceState.CLAIMED, FenceState.SEALED),
        (FenceState.CLAIMED, FenceState.RELEASED),
        (FenceState.EFFECT_STARTED, FenceState.SEALED),
        (FenceState.EFFECT_STARTED, FenceState.RELEASED),
        (FenceState.EFFECT_STARTED, FenceState.IN_DOUBT),
        (FenceState.IN_DOUBT, FenceState.SEALED),
        (FenceState.IN_DOUBT, FenceState.RELEASED),
        (FenceState.IN_DOUBT, FenceState.EFFECT_STARTED),
        (FenceState.RELEASED, FenceState.CLAIMED),
        (FenceState.RELEASED, FenceState.EFFECT_STARTED),
    }
)
