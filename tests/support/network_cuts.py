"""A proxy in front of an HTTP service that drops responses after the service has answered.

With `lose_each` the first response of every request is dropped and the second passes: a whole
program can run through the proxy, and each of its calls is repeated once.
"""

from __future__ import annotations

import asyncio
import re
import threading
from contextlib import suppress
from typing import TYPE_CHECKING, Self
from urllib.parse import urlsplit

if TYPE_CHECKING:
    from asyncio import StreamReader, StreamWriter

_LENGTH = re.compile(rb"^content-length:\s*(\d+)", re.IGNORECASE | re.MULTILINE)


async def message(source: StreamReader) -> bytes:
    """One request or response with its body; empty at the end of the stream."""
    try:
        head = await source.readuntil(b"\r\n\r\n")
        found = _LENGTH.search(head)
        return head + (await source.readexactly(int(found[1])) if found else b"")
    except asyncio.IncompleteReadError:
        return b""


class LossyProxy:
    """`with Cutting(url) as cutting:` then ask `cutting.url`."""

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        self._server = parts.hostname, parts.port
        self.lose_each = False
        self.lost: list[str] = []  # method and path of each request whose answer was lost
        self._lost_already: set[bytes] = set()
        self._writers: set[StreamWriter] = set()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)

    def cut_all(self) -> None:
        """Cut every open connection."""
        self._loop.call_soon_threadsafe(self._cut)

    def _cut(self) -> None:
        for writer in self._writers:
            writer.transport.abort()

    def __enter__(self) -> Self:
        self._thread.start()
        self._listener = asyncio.run_coroutine_threadsafe(
            asyncio.start_server(self._serve, "127.0.0.1", 0), self._loop
        ).result()
        self.url = f"http://127.0.0.1:{self._listener.sockets[0].getsockname()[1]}"
        return self

    def __exit__(self, *_: object) -> None:
        async def end() -> None:
            self._listener.close()
            self._cut()
            others = asyncio.all_tasks() - {asyncio.current_task()}
            await asyncio.gather(*others, return_exceptions=True)

        asyncio.run_coroutine_threadsafe(end(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    async def _serve(self, source: StreamReader, sink: StreamWriter) -> None:
        answers, server = await asyncio.open_connection(*self._server)
        self._writers |= {sink, server}
        with suppress(ConnectionError):
            while request := await message(source):
                server.write(request)
                answer = await message(answers)
                if not answer or self._loses(request):
                    break
                sink.write(answer)
                await sink.drain()
        self._writers -= {sink, server}
        for end in (sink, server):
            end.transport.abort()

    def _loses(self, request: bytes) -> bool:
        if not self.lose_each or request in self._lost_already:
            return False
        self._lost_already.add(request)
        self.lost.append(b" ".join(request.split(b" ", 2)[:2]).decode())
        return True
