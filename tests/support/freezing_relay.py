"""A relay before PostgreSQL that stops the client's process (SIGSTOP) at a place in its traffic."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
from contextlib import suppress
from typing import TYPE_CHECKING, Literal, Self
from urllib.parse import quote

if TYPE_CHECKING:
    from asyncio import StreamReader, StreamWriter
    from pathlib import Path

SYNC = b"S\x00\x00\x00\x04"
PAGE_BYTES = 64 * 1024


class FreezingRelay:
    """Once `process` is set, stops it inside an answer, or before the Sync of a submission.

    From then on nothing is relayed, so the server's side sees a client that neither reads nor
    writes.
    """

    def __init__(
        self, server: Path | str, directory: Path, place: Literal["page", "pipeline"]
    ) -> None:
        self._server = server  # the directory of its socket, or an address
        self._directory = directory
        self._place = place
        self.process: int | None = None
        self.frozen = threading.Event()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)

    def dsn(self, role: str, database: str) -> str:
        return f"postgresql://{role}@/{database}?host={quote(str(self._directory), safe='')}"

    def __enter__(self) -> Self:
        self._directory.mkdir()
        self._thread.start()
        serve = asyncio.start_unix_server(self._serve, self._directory / ".s.PGSQL.5432")
        self._listener = asyncio.run_coroutine_threadsafe(serve, self._loop).result()
        return self

    def __exit__(self, *_: object) -> None:
        async def end() -> None:
            self._listener.close()
            others = asyncio.all_tasks() - {asyncio.current_task()}
            for task in others:
                task.cancel()
            await asyncio.gather(*others, return_exceptions=True)

        asyncio.run_coroutine_threadsafe(end(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    async def _serve(self, client: StreamReader, to_client: StreamWriter) -> None:
        if isinstance(self._server, str):
            server, to_server = await asyncio.open_connection(self._server, 5432)
        else:
            server, to_server = await asyncio.open_unix_connection(self._server / ".s.PGSQL.5432")
        tasks = [
            asyncio.create_task(self._requests(client, to_server)),
            asyncio.create_task(self._answers(server, to_client)),
        ]
        with suppress(ConnectionError, asyncio.CancelledError):
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for end in (to_client, to_server):
            end.transport.abort()

    async def _requests(self, client: StreamReader, to_server: StreamWriter) -> None:
        submits = False
        while data := await client.read(65_536):
            submits = submits or b"helix.submit" in data
            ends = self._place == "pipeline" and submits and data.endswith(SYNC)
            to_server.write(data.removesuffix(SYNC) if ends else data)
            await to_server.drain()
            if ends:
                await self._freeze()

    async def _answers(self, server: StreamReader, to_client: StreamWriter) -> None:
        relayed = 0
        while data := await server.read(65_536):
            if relayed > PAGE_BYTES and self._place == "page":
                await self._freeze()
            to_client.write(data)
            await to_client.drain()
            relayed += len(data)

    async def _freeze(self) -> None:
        assert self.process is not None
        os.kill(self.process, signal.SIGSTOP)
        self.frozen.set()
        await asyncio.Event().wait()  # until the relay or the connection ends
