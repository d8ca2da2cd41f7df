"""What a client needs from its backend: PostgreSQL or the HTTP service."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol, overload

if TYPE_CHECKING:
    from helixqueue.client.async_client import AsyncClient
    from helixqueue.client.sync_client import SyncClient
    from helixqueue.operations.batches import Operations
    from helixqueue.operations.instructions import Instruction
    from helixqueue.queues import Queue
    from helixqueue.transport.protocol import Transport
    from helixqueue.worker.options import WorkerOptions


class _AnyBackend(Protocol):
    operations: Operations

    def transport(self, options: WorkerOptions) -> Transport:
        """Return the transport of a worker."""

    def spec(self) -> dict[str, Any]:
        """Return JSON from which another process creates the client; may hold a secret."""


class SyncBackend(_AnyBackend, Protocol):
    """Performs the instructions of operations in the calling thread."""

    def open(self) -> None:
        """Start embedded servers, if any."""

    def close(self) -> None:
        """Close the connections and release embedded servers; closing again does nothing."""

    def disconnect(self) -> None:
        """Close the connections; embedded servers stay for other clients of this process."""

    def run(self, call: Any) -> Any:
        """Run one call."""

    def perform(self, instruction: Instruction) -> Any:
        """Run the call of an instruction, or sleep."""

    def declare(self, queue: Queue[Any, Any] | str) -> None:
        """Create or change the stored queue as declared."""

    def async_client(self) -> AsyncClient[Any]:
        """Return the same client for event loops."""


class AsyncBackend(_AnyBackend, Protocol):
    """Performs the instructions of operations in an event loop."""

    async def open(self) -> None:
        """Start embedded servers, if any."""

    async def close(self) -> None:
        """Close the connections and release embedded servers; closing again does nothing."""

    async def disconnect(self) -> None:
        """Close the connections; embedded servers stay for other clients of this process."""

    async def run(self, call: Any) -> Any:
        """Run one call."""

    async def perform(self, instruction: Instruction) -> Any:
        """Run the call of an instruction, or sleep."""

    async def declare(self, queue: Queue[Any, Any] | str) -> None:
        """Create or change the stored queue as declared."""

    def sync_client(self) -> SyncClient[Any]:
        """Return the same client for threads."""


@overload
def backend_of(client: SyncClient[Any]) -> SyncBackend: ...
@overload
def backend_of(client: AsyncClient[Any]) -> AsyncBackend: ...
def backend_of(client: SyncClient[Any] | AsyncClient[Any]) -> SyncBackend | AsyncBackend:
    """Return the backend, for workers and commands; users call the client's methods only."""
    return client._backend  # noqa: SLF001 - not part of the public interface
