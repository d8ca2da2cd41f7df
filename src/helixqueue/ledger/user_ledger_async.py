"""User ledgers: append-only histories with a declared machine.

```python
machine = Machine({"REQUESTED": ["CONFIRMED"], "CONFIRMED": ["LAUNCHED"]})
dispatch = await helix.ledger("dispatch", machine)
answer = await dispatch.append("drone-7/4411", 1, "REQUESTED", {"pad": "north"})
if answer.is_new: ...
```
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from typing import TYPE_CHECKING, Any, Protocol, Self

from helixqueue.errors import Refused
from helixqueue.operations import ledgers
from helixqueue.records.ledger import Appended, NewEvent

if TYPE_CHECKING:
    from helixqueue.operations.batches import Operations
    from helixqueue.operations.instructions import Instructions
    from helixqueue.operations.ledgers import EventLike
    from helixqueue.records.ledger import EntityState, LedgerDeclaration, LedgerEvent

Entity = str | tuple[str, ...]


class AsyncSeqCache(Protocol):
    """Knows the greatest stored seq of some entities; see `seq_hint`."""

    async def look(self, entity: str) -> Any: ...  # noqa: ANN401 - a `CachedSeq`, or None

    async def note(self, cached: Any, answer: Appended) -> None: ...  # noqa: ANN401


class AsyncLedger:
    """A ledger of one tenant. `await helix.ledger(...)` creates it."""

    def __init__(
        self,
        run: Callable[[Instructions[Any]], Awaitable[Any]],
        operations: Operations,
        declared: LedgerDeclaration,
    ) -> None:
        self._run, self._operations, self._declared = run, operations, declared
        self._hint: AsyncSeqCache | None = None

    @classmethod
    async def declare(
        cls,
        run: Callable[[Instructions[Any]], Awaitable[Any]],
        operations: Operations,
        declared: LedgerDeclaration,
    ) -> Self:
        """Create the stored ledger, or compare the declaration with it."""
        await run(ledgers.declare(operations, declared))
        return cls(run, operations, declared)

    @classmethod
    async def find(
        cls, run: Callable[[Instructions[Any]], Awaitable[Any]], operations: Operations, name: str
    ) -> Self:
        """Read the stored ledger; an unknown name is an error."""
        return cls(run, operations, await run(ledgers.find(operations, name)))

    def use_hint(self, hint: AsyncSeqCache) -> None:
        """Ask this cache before the database; only for a strict ledger."""
        _demand_strict(self._declared)
        self._hint = hint

    @property
    def name(self) -> str:
        return self._declared.name

    async def append(
        self,
        entity: Entity,
        seq: int,
        kind: str,
        payload: object = None,
        *,
        node: str | None = None,
        within: object = None,
        fallback: Callable[[Any, NewEvent], Awaitable[None]] | None = None,
    ) -> Appended:
        """Append an event once; the answer tells whether this call wrote it.

        within: your connection or session, in a transaction; the event commits with it.
        fallback: called with `within` and the event if the ledger cannot decide, to store the event
            in a table of your own in the same transaction.

        Raises `Refused` for invalid input, and `Unavailable` while the database cannot answer:
        then nothing is known to be written, and nothing may be confirmed.
        """
        event = NewEvent(entity, seq, kind, payload, node)
        cached = None
        if self._hint is not None and within is None:
            row = ledgers.prepare_event(event, self._declared.machine)  # a hint excuses nothing
            cached = await self._hint.look(row.entity)
            if cached is not None and seq < cached.seq:
                return Appended("stale_hint")
        answer: Appended = await self._run(
            ledgers.append(
                self._operations, self.name, event, self._declared.machine, within=within
            )
        )
        if answer.decision == "undecided" and fallback is not None:
            _demand_within(within)
            await fallback(within, event)
        elif self._hint is not None and cached is not None:
            await self._hint.note(cached, answer)
        return answer

    async def append_many(
        self, events: Iterable[EventLike], *, within: object = None
    ) -> list[Appended]:
        """Append any number of events in chunks of 1,000; answers are in the order of the input."""
        answers: list[Appended] = await self._run(
            ledgers.append_many(
                self._operations, self.name, events, self._declared.machine, within=within
            )
        )
        return answers

    async def state(self, entity: Entity) -> EntityState | None:
        """Return the state of an entity; None if it has no event."""
        found: EntityState | None = await self._run(
            ledgers.state(self._operations, self.name, entity)
        )
        return found

    async def history(self, entity: Entity) -> list[LedgerEvent]:
        """Return the events of an entity, in the order in which they were written."""
        events: list[LedgerEvent] = await self._run(
            ledgers.history(self._operations, self.name, entity)
        )
        return events


def _demand_strict(declared: LedgerDeclaration) -> None:
    if not declared.strict:
        raise Refused(
            "hint: expected a strict ledger, got one that records violations: there an older seq "
            "may not have been written yet"
        )


def _demand_within(within: object) -> None:
    if within is None:
        raise Refused(
            "fallback: expected within=, your connection in a transaction, to store the event with"
        )
