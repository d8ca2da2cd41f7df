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
same arrows, `helix.fence_arrow` those of a fence; a test compares them with this module.

A fence, the guard of one effect:

```
    (new) --> CLAIMED --> EFFECT_STARTED --> SEALED
                 |             |  |   ^         ^
                 +--> RELEASED<+  +-> IN_DOUBT -+  probe or operator
```
"""

from __future__ import annotations

from enum import StrEnum


class State(StrEnum):
    PENDING = "PENDING"  # waits for a worker: claimable, or blocked by a delay, a limit or a pause
    ASSIGNED = "ASSIGNED"  # leased, the handler has not started
    RUNNING = "RUNNING"  # leased, the handler has started
    COMPLETED = "COMPLETED"  # took effect; final
    FAILED = "FAILED"  # out of attempts, or failed permanently; an operator may retry it
    CANCELLED = "CANCELLED"  # cancelled by a person or by its expiry; final


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
    CLAIMED = "CLAIMED"  # a caller holds the fence, the effect has not begun
    EFFECT_STARTED = "EFFECT_STARTED"  # the effect may have taken place
    SEALED = "SEALED"  # the effect took place once; final, but for corrections
    RELEASED = "RELEASED"  # the effect did not take place; the next call may run it
    IN_DOUBT = "IN_DOUBT"  # unknown: a probe or an operator decides


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
# Only to correct an operator's resolution that is the last step of the fence.
FENCE_CORRECTIONS: frozenset[tuple[FenceState | None, FenceState]] = frozenset(
    {
        (FenceState.SEALED, FenceState.SEALED),
        (FenceState.SEALED, FenceState.RELEASED),
        (FenceState.RELEASED, FenceState.SEALED),
    }
)
