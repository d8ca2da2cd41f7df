"""`AsyncHelixClient`: the same for event loops."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Self, TypeVar, Unpack, overload

from helixqueue.client.async_base import AsyncBaseClient
from helixqueue.client.http_backend import BACKEND
from helixqueue.client.settings import ResolvedHttpSettings
from helixqueue.operations import submit
from helixqueue.operations.batches import Operations
from helixqueue.operations.steps import Sleep, Step
from helixqueue.records.submission import Submission
from helixqueue.transport.http.connection import AsyncHttpConnection, ServiceAddress
from helixqueue.transport.http.transport import HttpTransport

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from helixqueue.client.settings import HttpSettings
    from helixqueue.queues import Queue
    from helixqueue.records.lease import Settlement, WriteResult
    from helixqueue.records.submission import Accepted, SubmitOptions, Submitted
    from helixqueue.transport.http.call import HttpCall
    from helixqueue.transport.protocol import Transport
    from helixqueue.worker.options import WorkerOptions

T = TypeVar("T")
P = TypeVar("P")
R = TypeVar("R")
# Of a worker, beside its rounds: saying hello, looking a schema up, waiting for work.
MORE_CONNECTIONS = 3


class AsyncHelixClient(AsyncBaseClient):
    """A client of one service; its token says for which tenant.

    ```python
    async with AsyncHelixClient("https://helix.example.org", token=token) as helix:
        await helix.submit(basecall, identity="sample-1", payload=Basecall(pod5="a.pod5"))
    ```

    It does what `AsyncHelixQueue` does, except within a transaction of the caller's.
    """

    def __init__(self, url: str, token: str, **settings: Unpack[HttpSettings]) -> None:
        chosen = ResolvedHttpSettings.of(settings)
        self.origin, self.settings = (url, token), settings
        self._desk = Operations(
            BACKEND, tenant=None, actor=None, patience_seconds=chosen.patience_seconds
        )
        self._link = AsyncHttpConnection(ServiceAddress(**chosen.where(url, token)))

    def __repr__(self) -> str:
        return f"AsyncHelixClient({self.origin[0]!r})"

    async def close(self) -> None:
        """Close the connections; closing twice is closing once."""
        await self._link.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    @overload
    async def submit(
        self,
        queue: Queue[P, R],
        *,
        identity: str | tuple[str, ...] | None,
        payload: P | Mapping[str, Any],
        create: bool = False,
        **options: Unpack[SubmitOptions],
    ) -> Accepted[R]: ...
    @overload
    async def submit(
        self,
        queue: str,
        *,
        identity: str | tuple[str, ...] | None,
        payload: Any,
        create: bool = False,
        **options: Unpack[SubmitOptions],
    ) -> Accepted[Any]: ...
    async def submit(
        self,
        queue: Queue[Any, Any] | str,
        *,
        identity: str | tuple[str, ...] | None,
        payload: Any,
        create: bool = False,
        **options: Unpack[SubmitOptions],
    ) -> Accepted[Any]:
        """Submit work once, however often this is called: new or duplicate, with equal receipts.

        Raises `Conflict` for another payload than the identity stands for, and the named error for
        what is refused.
        """
        one = Submission(identity, payload, **options)
        return await self._do(submit.submit(self._desk, queue, one, create=create, within=None))

    @overload
    async def submit_many(
        self,
        queue: Queue[Any, R],
        submissions: Iterable[Submission | Mapping[str, Any]],
        *,
        create: bool = False,
    ) -> list[Submitted[R]]: ...
    @overload
    async def submit_many(
        self,
        queue: str,
        submissions: Iterable[Submission | Mapping[str, Any]],
        *,
        create: bool = False,
    ) -> list[Submitted[Any]]: ...
    async def submit_many(
        self,
        queue: Queue[Any, Any] | str,
        submissions: Iterable[Submission | Mapping[str, Any]],
        *,
        create: bool = False,
    ) -> list[Submitted[Any]]:
        """Submit any number, in chunks of 1,000; the answers come in the order of the input.

        A row that is refused or conflicts says so in its answer and hinders no other. Should the
        service go away half-way, submit all of it again: what is there answers as a duplicate.
        """
        return await self._do(
            submit.submit_many(self._desk, queue, submissions, create=create, within=None)
        )

    async def settle(self, worker: str, settlements: Sequence[Settlement]) -> list[WriteResult]:
        """End attempts: durable before it is answered."""
        return await self._do(self._desk.settle(worker, settlements, None))

    async def run(self, call: HttpCall[T]) -> T:
        """One request of `helixqueue.transport.http`."""
        return await self._link.run(call)

    def transport(self, options: WorkerOptions) -> Transport:
        """A worker's way to the engine."""
        where = replace(self._link.where, connections=options.rounds + MORE_CONNECTIONS)
        return HttpTransport(where, options.worker)

    def spec(self) -> dict[str, Any]:
        """What another process needs to make this client, as JSON; it may hold a secret."""
        return {"kind": "http", "origin": list(self.origin), "settings": self.settings}

    def twin(self) -> Any:
        """The same client for threads."""
        from helixqueue.client.http import HelixClient  # noqa: PLC0415

        return HelixClient(*self.origin, **self.settings)

    async def disconnect(self) -> None:
        """Close the connections, and leave the servers to others of this process."""
        await self._link.close()

    async def _perform(self, step: Step) -> Any:
        if isinstance(step, Sleep):
            await asyncio.sleep(step.seconds)
            return None
        return await self._link.run(step.call)
