"""The states of a batch and the arrows between them: the only place outside SQL that lists them.

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
same arrows, and a test compares the two.
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
