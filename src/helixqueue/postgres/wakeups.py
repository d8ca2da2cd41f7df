"""Wake-ups: one listening connection for all workers that wait at this process.

A channel belongs to a queue of one tenant (sql/52_wake.sql), so a worker is woken only by
submissions of its own tenant, also if two tenants have queues of the same name. Wake-ups only save
time: a worker that misses one polls.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import secrets
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

import psycopg
from psycopg import sql

from helixqueue.errors import HelixError

if TYPE_CHECKING:
    from helixqueue.postgres.database import AsyncDatabase

log = logging.getLogger("helixqueue.engine")
RETRY_SECONDS: Final = 1.0  # between two attempts to reach the database
CHANNELS_MAX: Final = 10_000
TENANT_CHANNELS_MAX: Final = 1_000


class Wakeups:
    def __init__(self, connect: Callable[[], Awaitable[AsyncDatabase]]) -> None:
        self._connect = connect
        self._channels: dict[str, dict[str, str]] = {}  # by tenant and queue
        self._counts: dict[str, int] = {}  # notifications by channel
        self._notified = asyncio.Event()  # replaced after every notification
        self._changed = asyncio.Event()
        self._listener: asyncio.Task[None] | None = None
        self._secret = secrets.token_bytes(16)
        self._name = secrets.token_hex(4)  # of this process: marks are valid within it only

    def knows(self, tenant: str, queues: Sequence[str]) -> bool:
        channels = self._channels.get(tenant, {})
        return all(queue in channels for queue in queues)

    def listen(self, tenant: str, channels: dict[str, str]) -> None:
        """Start to listen to these channels, by queue; earlier notifications are not reported."""
        if not self.knows(tenant, list(channels)):
            # Workers whose channel is dropped here announce themselves again when they wait.
            if sum(map(len, self._channels.values())) + len(channels) > CHANNELS_MAX:
                self._channels.clear()
            known = self._channels.setdefault(tenant, {})
            if len(known) + len(channels) > TENANT_CHANNELS_MAX:
                known.clear()
            known |= channels
            self._changed.set()
        if self._listener is None or self._listener.done():
            self._listener = asyncio.create_task(self._listen())

    def mark(self, tenant: str, queues: Sequence[str]) -> str:
        """Return an opaque mark of the notifications so far.

        It hides their number, which would reveal the submissions of other tokens.
        """
        channels = self._channels.get(tenant, {})
        counts = [self._counts.get(channels.get(queue, ""), 0) for queue in queues]
        digest = hashlib.blake2b(repr(counts).encode(), key=self._secret, digest_size=8)
        return f"{self._name}.{digest.hexdigest()}"

    async def wait(
        self, tenant: str, queues: Sequence[str], mark: str | None, seconds: float
    ) -> bool:
        """Return whether a notification came since `mark`, or comes within `seconds`."""
        is_ours = mark is not None and mark.startswith(f"{self._name}.")
        since = mark if is_ours else self.mark(tenant, queues)
        try:
            async with asyncio.timeout(seconds):
                while self.mark(tenant, queues) == since:
                    await self._notified.wait()
        except TimeoutError:
            return False
        return True

    async def close(self) -> None:
        if self._listener is not None:
            self._listener.cancel()
            await asyncio.gather(self._listener, return_exceptions=True)

    def _notify(self, *channels: str) -> None:
        for channel in channels:
            self._counts[channel] = self._counts.get(channel, 0) + 1
        notified, self._notified = self._notified, asyncio.Event()
        notified.set()

    async def _listen(self) -> None:
        """Listen until cancelled; reconnects if the connection breaks."""
        while True:
            try:
                await self._listen_once()
            except (HelixError, psycopg.Error, OSError) as error:
                log.warning("cannot listen for wake-ups, workers poll: %s", type(error).__name__)
            await asyncio.sleep(RETRY_SECONDS)

    async def _listen_once(self) -> None:
        database = await self._connect()
        connection = database.connection
        listened: set[str] = set()
        try:
            while True:
                self._changed.clear()
                wanted = {
                    channel for known in self._channels.values() for channel in known.values()
                }
                for channel in sorted(listened - wanted):
                    await connection.execute(sql.SQL("unlisten {}").format(sql.Identifier(channel)))
                    self._counts.pop(channel, None)
                new = wanted - listened
                for channel in sorted(new):
                    await connection.execute(sql.SQL("listen {}").format(sql.Identifier(channel)))
                listened = wanted
                self._notify(*new)  # earlier notifications were missed
                await self._receive(connection)
        finally:
            with suppress(psycopg.Error):
                await connection.close()

    async def _receive(self, connection: psycopg.AsyncConnection[Any]) -> None:
        """Receive notifications until the channels change or the connection breaks."""
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
        async for notification in connection.notifies():
            self._notify(notification.channel)
        return True
