"""A model of the engine in plain Python: no SQL, no clock, no randomness.

The model predicts the answer of every call and the state of every batch afterwards. It leaves open
only what the engine may choose: which of several batches of equal priority a claim takes.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from helixqueue.states import FINISHED, State

LEASED = (State.ASSIGNED, State.RUNNING)
MAX_ATTEMPTS = 3
KEY_LIMIT = 2


@dataclass(eq=False)
class Batch:
    identity: str
    payload: int
    priority: int
    limit_key: str | None
    delayed: bool = False  # its due time is in the future
    expires: bool = False
    state: State = State.PENDING
    version: int = 1
    attempt: int = 0
    token: tuple[int, int, int] | None = None
    worker: str | None = None
    overdue: bool = False  # its lease's deadline has passed
    expired: bool = False  # its expiry has passed, no call has processed it
    erased: bool = False
    retired: bool = False
    reasons: list[str] = field(default_factory=lambda: ["submitted"])
    done: set[tuple[int, str]] = field(default_factory=set)  # (token number, reason)
    refusals: Counter[tuple[int, str]] = field(default_factory=Counter)  # (token number, operation)
    result: str | None = None
    # Internal id, read from the database by the state machine.
    number: int = 0

    def move(self, state: State, reason: str) -> None:
        self.state = state
        self.version += 1
        self.reasons.append(reason)

    def end_lease(self, state: State, reason: str) -> None:
        if reason == "released":
            self.attempt -= 1
        self.move(state, reason)
        self.token = self.worker = None
        self.overdue = False


class Model:
    def __init__(self) -> None:
        self.batches: dict[str, Batch] = {}
        self.paused = False

    # --- submit --------------------------------------------------------------------------------

    def submit(
        self,
        identity: str,
        payload: int,
        priority: int,
        limit_key: str | None,
        *,
        delayed: bool,
        expires: bool,
    ) -> tuple[str, Batch]:
        known = self.batches.get(identity)
        if known is None:
            known = Batch(identity, payload, priority, limit_key, delayed, expires)
            self.batches[identity] = known
            return "new", known
        return ("duplicate" if known.payload == payload else "conflict"), known

    # --- claim ---------------------------------------------------------------------------------

    def tend(self) -> None:
        """The duties that every claim runs first: reap, promote, expire."""
        self.reap()
        for batch in self.pending():
            if batch.expired:
                batch.move(State.CANCELLED, "expired")

    def reap(self) -> int:
        lost = [batch for batch in self.batches.values() if batch.overdue]
        for batch in lost:
            out = batch.attempt >= MAX_ATTEMPTS
            batch.end_lease(State.FAILED if out else State.PENDING, "lost")
        return len(lost)

    def pending(self) -> list[Batch]:
        return [batch for batch in self.batches.values() if batch.state is State.PENDING]

    def held(self, key: str) -> int:
        return sum(
            batch.limit_key == key for batch in self.batches.values() if batch.state in LEASED
        )

    def claimable(self) -> list[Batch]:
        if self.paused:
            return []
        return [batch for batch in self.pending() if not batch.delayed]

    def claim_count(self, wanted: int) -> int:
        """The number of batches that a claim must return."""
        keys = Counter(batch.limit_key for batch in self.claimable())
        free = keys.pop(None, 0)
        return min(wanted, free + sum(min(n, KEY_LIMIT - self.held(k)) for k, n in keys.items()))

    def claim(self, batch: Batch, worker: str, token: tuple[int, int, int], *, start: bool) -> None:
        batch.move(State.ASSIGNED, "claimed")
        batch.attempt += 1
        batch.worker, batch.token, batch.expired = worker, token, False
        if start:
            batch.move(State.RUNNING, "started")
            batch.done.add((token[2], "started"))

    def unjust(self, taken: list[Batch], could: list[Batch]) -> list[tuple[Batch, Batch]]:
        """Pairs of a batch that was not taken and a taken batch of lower priority.

        A free slot of a limit key goes to the batch that has waited longest, whatever its priority.
        """
        left = [batch for batch in could if batch not in taken and batch.limit_key is None]
        return [(kept, other) for kept in left for other in taken if kept.priority < other.priority]

    # --- worker calls with a token --------------------------------------------------------------

    def start(self, batch: Batch, token: tuple[int, int, int]) -> tuple[str, bool]:
        late = batch.overdue
        if batch.token == token and batch.state is State.ASSIGNED:
            batch.move(State.RUNNING, "started")
            batch.done.add((token[2], "started"))
            return "ok", late
        return self.judge(batch, token, "start", "started"), False

    def renew(self, batch: Batch, token: tuple[int, int, int]) -> tuple[str, bool]:
        late = batch.overdue
        if batch.token == token:
            batch.overdue = False
            return "ok", late
        return self.judge(batch, token, "renew", None), False

    def complete(self, batch: Batch, token: tuple[int, int, int], result: str) -> tuple[str, bool]:
        late = batch.overdue
        if batch.token == token and batch.state is State.RUNNING:
            batch.end_lease(State.COMPLETED, "completed")
            batch.done.add((token[2], "completed"))
            batch.result = result
            return "ok", late
        return self.judge(batch, token, "settle", "completed"), False

    def fail(
        self, batch: Batch, token: tuple[int, int, int], *, permanent: bool, wait: bool
    ) -> tuple[str, bool]:
        late = batch.overdue
        if batch.token == token:
            out = permanent or batch.attempt >= MAX_ATTEMPTS
            batch.end_lease(State.FAILED if out else State.PENDING, "failed")
            batch.delayed = wait and not out
            batch.done.add((token[2], "failed"))
            return "ok", late
        return self.judge(batch, token, "settle", "failed"), False

    def release(self, batch: Batch, token: tuple[int, int, int]) -> tuple[str, bool]:
        late = batch.overdue
        if batch.token == token:
            batch.end_lease(State.PENDING, "released")
            batch.done.add((token[2], "released"))
            return "ok", late
        return self.judge(batch, token, "release", "released"), False

    def judge(
        self, batch: Batch, token: tuple[int, int, int], operation: str, reason: str | None
    ) -> str:
        """The answer to a token that does not own the batch, or owns it in the wrong state."""
        owner = batch.token == token
        # Retention removes the record of what a token did.
        done = (token[2], reason) in batch.done and not batch.retired
        if done and (operation != "start" or owner):
            return "repeat"
        if owner:
            return "illegal"
        batch.refusals[token[2], operation] += 1
        return "refused"

    # --- operator actions ----------------------------------------------------------------------

    def cancel(self, batch: Batch) -> str:
        if batch.state is State.CANCELLED:
            return "repeat"
        if batch.state in FINISHED:
            return "illegal"
        batch.end_lease(State.CANCELLED, "cancelled")
        return "ok"

    def retry(self, batch: Batch) -> str:
        if batch.state is State.FAILED and not batch.erased and not batch.retired:
            batch.move(State.PENDING, "retried")
            batch.attempt = 0
            batch.delayed = batch.expired = False
            return "ok"
        if batch.state is State.PENDING and batch.reasons[-1] == "retried":
            return "repeat"
        return "illegal"

    def erase(self, batch: Batch) -> str:
        if batch.state not in FINISHED or batch.retired:
            return "illegal"
        if batch.erased:
            return "repeat"
        batch.erased = True
        return "ok"

    def retire(self, state: State) -> int:
        old = [b for b in self.batches.values() if b.state is state and not b.retired]
        if state not in FINISHED:
            return 0
        for batch in old:
            batch.retired = True
            batch.refusals.clear()
        return len(old)

    # --- time ----------------------------------------------------------------------------------

    def pass_time(self, batch: Batch) -> None:
        batch.overdue = batch.state in LEASED
        if batch.state is State.PENDING:
            batch.delayed = False
            batch.expired = batch.expires
