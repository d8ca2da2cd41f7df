"""Rings when work comes: one connection that listens, for all workers that wait at this process.

PostgreSQL tells a channel a queue (sql/16_wake.sql). Nothing rests on it: a worker that is not told
looks by itself after a while.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import secrets
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

import psycopg
from psycopg import sql

from helixqueue.errors import HelixError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from helixqueue.store.database import AsyncDatabase

log = logging.getLogger("helixqueue.store")
AGAIN_SECONDS: Final = 1.0  # between two tries to reach a database that is away
CHANNELS_MAX: Final = 10_000


class Bell:
    def __init__(self, connect: Callable[[], Awaitable[AsyncDatabase]]) -> None:
        self._connect = connect
        self._channels: dict[str, str] = {}  # by queue
        self._rung: dict[str, int] = {}  # how often, by channel
        self._news = asyncio.Event()  # another one after every ring
        self._changed = asyncio.Event()
        self._listener: asyncio.Task[None] | None = None
        self._secret = secrets.token_bytes(16)
        self._name = secrets.token_hex(4)  # of this process: its marks mean nothing to others

    def knows(self, queues: Sequence[str]) -> bool:
        return all(queue in self._channels for queue in queues)

    def listen(self, channels: dict[str, str]) -> None:
        """To these, by queue, from soon on; what came before is not told."""
        if not self.knows(list(channels)):
            if len(self._channels) + len(channels) > CHANNELS_MAX:
                self._channels.clear()  # those who wait say so again
            self._channels |= channels
            self._changed.set()
        if self._listener is None or self._listener.done():
            self._listener = asyncio.create_task(self._listen())

    def mark(self, queues: Sequence[str]) -> str:
        """How far these have rung, without telling how often: other tenants ring too."""
        rung = [self._rung.get(self._channels.get(queue, ""), 0) for queue in queues]
        digest = hashlib.blake2b(repr(rung).encode(), key=self._secret, digest_size=8)
        return f"{self._name}.{digest.hexdigest()}"

    async def wait(self, queues: Sequence[str], mark: str | None, seconds: float) -> bool:
        """Whether one of these has rung since `mark` was given, or does within so long."""
        here = mark is not None and mark.startswith(f"{self._name}.")
        since = mark if here else self.mark(queues)
        try:
            async with asyncio.timeout(seconds):
                while self.mark(queues) == since:
                    await self._news.wait()
        except TimeoutError:
            return False
        return True

    async def close(self) -> None:
        if self._listener is not None:
            self._listener.cancel()
            await asyncio.gather(self._listener, return_exceptions=True)

    def _ring(self, *channels: str) -> None:
        for channel in channels:
            self._rung[channel] = self._rung.get(channel, 0) + 1
        news, self._news = self._news, asyncio.Event()
        news.set()

    async def _listen(self) -> None:
        """For ever; a connection that broke is made again."""
        while True:
            try:
                await self._listen_once()
            except (HelixError, psycopg.Error, OSError) as error:
                log.warning("waiting workers cannot be told: %s", type(error).__name__)
            await asyncio.sleep(AGAIN_SECONDS)

    async def _listen_once(self) -> None:
        database = await self._connect()
        connection = database.connection
        listened: set[str] = set()
        try:
            while True:
                self._changed.clear()
                new = set(self._channels.values()) - listened
                for channel in sorted(new):
                    await connection.execute(sql.SQL("listen {}").format(sql.Identifier(channel)))
                listened |= new
                self._ring(*new)  # what came before we listened was told to nobody
                await self._hear(connection)
        finally:
            with suppress(psycopg.Error):
                await connection.close()

    async def _hear(self, connection: psycopg.AsyncConnection[Any]) -> None:
        """Until there are more channels to listen to, or the connection breaks."""
        tasks = [
            asyncio.create_task(self._drain(connection)),
            asyncio.create_task(self._changed.wait()),
        ]
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _drain(self, connection: psycopg.AsyncConnection[Any]) -> bool:
        async for told in connection.notifies():
            self._ring(told.channel)
        return True
