"""Methods of all clients about one queue as a whole."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

from helixqueue.operations import identities, queues

if TYPE_CHECKING:
    from helixqueue.identity.twins import TwinGroup
    from helixqueue.operations.batches import Operations
    from helixqueue.operations.instructions import Instructions
    from helixqueue.queues import Queue
    from helixqueue.records.identity import RefusedIdentityRow

T = TypeVar("T")


class AsyncQueueMethods:
    """Queues, for coroutines."""

    _operations: Operations

    if TYPE_CHECKING:

        async def _do(self, steps: Instructions[T]) -> T: ...

    async def refused(
        self, queue: Queue[Any, Any] | str, *, limit: int = 1_000
    ) -> list[RefusedIdentityRow]:
        """List the latest identities that the queue refused, with their raw bytes in hex."""
        return await self._do(identities.refused(self._operations, queue, limit))

    async def twins(self, queue: Queue[Any, Any] | str) -> list[TwinGroup]:
        """List identities of the queue that are easily confused: case, look-alikes."""
        return await self._do(identities.twins(self._operations, queue))

    async def delete_queue(self, queue: Queue[Any, Any] | str, *, reason: str) -> bool:
        """Delete a queue that never had a batch; returns False if it does not exist.

        Raises `Refused` if the queue has or had batches: their keys contain its name.
        """
        return await self._do(queues.delete_if_exists(self._operations, queue, reason))
