"""`AsyncHelixClient`: the same for event loops."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Self, TypeVar, Unpack, overload

from helixqueue.client import submitting
from helixqueue.client.answers import Submission
from helixqueue.client.desk import Desk
from helixqueue.client.hands_async import AsyncClient
from helixqueue.client.http_book import BOOK
from helixqueue.client.settings import HttpChosen
from helixqueue.store.plans import Pause, Step
from helixqueue.transport.http.link import AsyncLink, Where
from helixqueue.transport.http.transport import Http

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from helixqueue.client.answers import Accepted, Options, Submitted
    from helixqueue.client.settings import HttpSettings
    from helixqueue.queues import Queue
    from helixqueue.store.rows import Answer, Settlement
    from helixqueue.transport.http.call import HttpCall
    from helixqueue.transport.protocol import Transport
    from helixqueue.worker.options import Options as WorkerOptions

T = TypeVar("T")
P = TypeVar("P")
R = TypeVar("R")
# Of a worker, beside its rounds: saying hello, looking a schema up, waiting for work.
MORE_CONNECTIONS = 3


class AsyncHelixClient(AsyncClient):
    """A client of one service; its token says for which tenant.

    ```python
    async with AsyncHelixClient("https://helix.example.org", token=token) as helix:
        await helix.submit(basecall, identity="sample-1", payload=Basecall(pod5="a.pod5"))
    ```

    It does what `AsyncHelixQueue` does, except within a transaction of the caller's.
    """

    def __init__(self, url: str, token: str, **settings: Unpack[HttpSettings]) -> None:
        chosen = HttpChosen.of(settings)
        self.origin, self.settings = (url, token), settings
        self._desk = Desk(BOOK, tenant=None, actor=None, patience_seconds=chosen.patience_seconds)
        self._link = AsyncLink(Where(**chosen.where(url, token)))

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
        **options: Unpack[Options],
    ) -> Accepted[R]: ...
    @overload
    async def submit(
        self,
        queue: str,
        *,
        identity: str | tuple[str, ...] | None,
        payload: Any,
        create: bool = False,
        **options: Unpack[Options],
    ) -> Accepted[Any]: ...
    async def submit(
        self,
        queue: Queue[Any, Any] | str,
        *,
        identity: str | tuple[str, ...] | None,
        payload: Any,
        create: bool = False,
        **options: Unpack[Options],
    ) -> Accepted[Any]:
        """Submit work once, however often this is called: new or duplicate, with equal receipts.

        Raises `Conflict` for another payload than the identity stands for, and the named error for
        what is refused.
        """
        one = Submission(identity, payload, **options)
        return await self._do(submitting.submit(self._desk, queue, one, create=create, within=None))

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
            submitting.submit_many(self._desk, queue, submissions, create=create, within=None)
        )

    async def settle(self, worker: str, settlements: Sequence[Settlement]) -> list[Answer]:
        """End attempts: durable before it is answered."""
        return await self._do(self._desk.settle(worker, settlements, None))

    async def run(self, call: HttpCall[T]) -> T:
        """One request of `helixqueue.transport.http`."""
        return await self._link.run(call)

    def transport(self, options: WorkerOptions) -> Transport:
        """A worker's way to the engine."""
        where = replace(self._link.where, connections=options.rounds + MORE_CONNECTIONS)
        return Http(where, options.worker)

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
        if isinstance(step, Pause):
            await asyncio.sleep(step.seconds)
            return None
        return await self._link.run(step.call)
