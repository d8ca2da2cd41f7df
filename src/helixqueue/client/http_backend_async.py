"""The backend of clients that connect to a service."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, TypeVar

from helixqueue.client.http_requests import HttpRequests, refuse_within
from helixqueue.operations.instructions import Instruction, Sleep, run_instructions_async
from helixqueue.transport.http.connection import AsyncHttpConnection

if TYPE_CHECKING:
    from helixqueue.client.settings import HttpSettings
    from helixqueue.queues import Queue
    from helixqueue.transport.http.call import HttpCall

T = TypeVar("T")


class AsyncHttpBackend(HttpRequests):
    """Connections that tasks share."""

    def __init__(self, url: str, token: str, settings: HttpSettings) -> None:
        super().__init__(url, token, settings)
        self._connection = AsyncHttpConnection(self.address)

    async def open(self) -> None:
        pass

    async def close(self) -> None:
        await self._connection.close()

    disconnect = close

    async def run(self, call: HttpCall[T]) -> T:
        return await self._connection.run(call)

    async def perform(self, instruction: Instruction) -> Any:
        if isinstance(instruction, Sleep):
            await asyncio.sleep(instruction.seconds)
            return None
        refuse_within(instruction)
        return await self._connection.run(instruction.call)

    async def declare(self, queue: Queue[Any, Any] | str) -> None:
        await run_instructions_async(self.operations.known(queue), self.perform)
