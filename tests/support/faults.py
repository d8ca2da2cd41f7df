"""A proxy in front of a PostgreSQL socket that drops requests or replies on demand.

`lose_reply` drops the reply of a committed call, so that the client cannot know its outcome;
`lose_request` drops the call before it arrives; `freeze` stops all traffic without closing.
"""

from __future__ import annotations

import asyncio
import threading
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Self
from urllib.parse import quote

from psycopg.conninfo import conninfo_to_dict

if TYPE_CHECKING:
    from asyncio import StreamReader, StreamWriter
    from collections.abc import Callable

SOCKET = ".s.PGSQL.5432"
# ReadyForQuery outside a transaction: the call has committed.
READY = b"Z\x00\x00\x00\x05I"
CHUNK = 65_536


class Link:
    """One client's connection, with its state between two chunks."""

    def __init__(self, client: StreamWriter, server: StreamWriter) -> None:
        self.client = client
        self.server = server
        self.received = b""  # the last bytes of the client, for a pattern split between two chunks
        self.withheld: bytes | None = None  # the reply that is withheld from the client

    def cut(self) -> None:
        for end in (self.client, self.server):
            end.transport.abort()


class FaultProxy:
    """`with Faults(dsn, directory) as faults:` then connect to `faults.dsn`."""

    def __init__(self, dsn: str, directory: Path) -> None:
        self._server = Path(str(conninfo_to_dict(dsn)["host"])) / SOCKET
        self._socket = directory / SOCKET
        self.dsn = f"{dsn.partition('?')[0]}?host={quote(str(directory), safe='')}"
        self.fired = 0  # tests assert that a fault fired
        self._lose_reply_to: bytes | None = None
        self._lose_request: bytes | None = None
        self._hang_up_at: bytes | None = None
        self._thaw = asyncio.Event()
        self._links: set[Link] = set()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)

    # What can go wrong.

    def lose_reply(self, to: str) -> None:
        """Cut the link of the next request that contains `to`, after the server is done with it."""
        self._do(lambda: setattr(self, "_lose_reply_to", to.encode()))

    def hang_up(self, at: str) -> None:
        """Cut the link of the next request that contains `at`, while the server is busy with it."""
        self._do(lambda: setattr(self, "_hang_up_at", at.encode()))

    def lose_request(self, containing: str) -> None:
        """Cut the link of the next request that contains this, before the server hears of it."""
        self._do(lambda: setattr(self, "_lose_request", containing.encode()))

    def freeze(self) -> None:
        """From now on nothing passes, and nobody is told."""
        self._do(self._thaw.clear)

    def thaw(self) -> None:
        self._do(self._thaw.set)

    def cut_all(self) -> None:
        self._do(lambda: [link.cut() for link in self._links])

    # Its life.

    def __enter__(self) -> Self:
        self._thaw.set()
        self._thread.start()
        asyncio.run_coroutine_threadsafe(self._listen(), self._loop).result()
        return self

    def __exit__(self, *_: object) -> None:
        asyncio.run_coroutine_threadsafe(self._end(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def _do(self, change: Callable[[], object]) -> None:
        async def now() -> None:
            change()

        asyncio.run_coroutine_threadsafe(now(), self._loop).result()

    async def _listen(self) -> None:
        self._listener = await asyncio.start_unix_server(self._serve, self._socket)

    async def _end(self) -> None:
        self._listener.close()
        for link in self._links:
            link.cut()
        self._thaw.set()
        others = asyncio.all_tasks() - {asyncio.current_task()}
        await asyncio.gather(*others, return_exceptions=True)

    # What passes.

    async def _serve(self, client_in: StreamReader, client_out: StreamWriter) -> None:
        server_in, server_out = await asyncio.open_unix_connection(self._server)
        link = Link(client_out, server_out)
        self._links.add(link)
        await asyncio.gather(
            self._pass(link, client_in, server_out, self._receive),
            self._pass(link, server_in, client_out, self._answered),
        )
        self._links.discard(link)

    async def _pass(
        self,
        link: Link,
        source: StreamReader,
        sink: StreamWriter,
        judge: Callable[[Link, bytes], bytes],
    ) -> None:
        """Carry one direction until either end closes, then close both."""
        with suppress(ConnectionError):
            while chunk := await source.read(CHUNK):
                await self._thaw.wait()
                sink.write(judge(link, chunk))
                await sink.drain()
        for end in (link.client, link.server):
            if not end.is_closing():
                end.close()

    def _receive(self, link: Link, chunk: bytes) -> bytes:
        link.received = (link.received + chunk)[-CHUNK - 200 :]
        if self._lose_request is not None and self._lose_request in link.received:
            self._lose_request = None
            self.fired += 1
            link.cut()
            return b""
        if self._hang_up_at is not None and self._hang_up_at in link.received:
            self._hang_up_at = None
            self.fired += 1
            self._loop.call_soon(link.client.transport.abort)  # this chunk still passes
        if self._lose_reply_to is not None and self._lose_reply_to in link.received:
            self._lose_reply_to = None
            link.withheld = b""
        return chunk

    def _answered(self, link: Link, chunk: bytes) -> bytes:
        if link.withheld is None:
            return chunk
        link.withheld += chunk
        if link.withheld.endswith(READY):
            self.fired += 1
            link.cut()
        return b""
