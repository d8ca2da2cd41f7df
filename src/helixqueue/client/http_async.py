"""`AsyncHelixClient`: the same for event loops."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Self, TypeVar, Unpack

from helixqueue.client.async_client import AsyncBaseClient
from helixqueue.client.http_backend import BACKEND
from helixqueue.client.settings import ResolvedHttpSettings
from helixqueue.operations.batches import Operations
from helixqueue.operations.steps import Sleep, Step
from helixqueue.transport.http.connection import AsyncHttpConnection, ServiceAddress
from helixqueue.transport.http.transport import HttpTransport

if TYPE_CHECKING:
    from helixqueue.client.settings import HttpSettings
    from helixqueue.transport.http.call import HttpCall
    from helixqueue.transport.protocol import Transport
    from helixqueue.worker.options import WorkerOptions

T = TypeVar("T")
# Connections of a worker besides its claim calls: presence, schemas, waiting for work.
MORE_CONNECTIONS = 3


class AsyncHelixClient(AsyncBaseClient):
    """A client of one service; its token determines the tenant.

    ```python
    async with AsyncHelixClient("https://helix.example.org", token=token) as helix:
        await helix.submit(basecall, identity="sample-1", payload=Basecall(pod5="a.pod5"))
    ```

    It has the methods of `AsyncHelixQueue`, without `within` and fences.
    """

    def __init__(self, url: str, token: str, **settings: Unpack[HttpSettings]) -> None:
        resolved = ResolvedHttpSettings.of(settings)
        self._origin, self._settings = (url, token), settings
        self._operations = Operations(
            BACKEND, tenant=None, actor=None, retry_seconds=resolved.retry_seconds
        )
        self._link = AsyncHttpConnection(ServiceAddress(**resolved.where(url, token)))

    def __repr__(self) -> str:
        return f"AsyncHelixClient({self._origin[0]!r})"

    async def close(self) -> None:
        """Close the connections; closing again does nothing."""
        await self._link.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def run(self, call: HttpCall[T]) -> T:
        """Send one request of `helixqueue.transport.http`."""
        return await self._link.run(call)

    def transport(self, options: WorkerOptions) -> Transport:
        """Return the transport of a worker."""
        where = replace(self._link.where, connections=options.concurrent_calls + MORE_CONNECTIONS)
        return HttpTransport(where, options.worker)

    def spec(self) -> dict[str, Any]:
        """Return JSON from which another process creates this client; may hold a secret."""
        return {"kind": "http", "origin": list(self._origin), "settings": self._settings}

    def twin(self) -> Any:
        """Return the same client for threads."""
        from helixqueue.client.http import HelixClient  # noqa: PLC0415

        return HelixClient(*self._origin, **self._settings)

    async def disconnect(self) -> None:
        """Close the connections; embedded servers stay for other clients of this process."""
        await self._link.close()

    async def _perform(self, step: Step) -> Any:
        if isinstance(step, Sleep):
            await asyncio.sleep(step.seconds)
            return None
        return await self._link.run(step.call)
