"""Checks and replays: in a thread, on a connection of their own, one at a time.

They read much and think long, so the event loop and the connections that serve are kept out of it.
Each transaction begins as every other of the service: with the token, which names the tenant.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import psycopg

from helixqueue.errors import Unavailable
from helixqueue.ledger.replay import last_batch, replay
from helixqueue.operate.check import check
from helixqueue.service.problems import Problem
from helixqueue.store import serving
from helixqueue.store.database import Database

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from psycopg import Connection

    from helixqueue.ledger.replay import Replayed
    from helixqueue.operate.check import Result
    from helixqueue.service.settings import Settings

T = TypeVar("T")


class Stretch(NamedTuple):
    """A stretch of the ledger."""

    replayed: Replayed
    last: int  # batch of all
    next: int | None  # behind which batch the following one begins


class Audits:
    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._under_way: asyncio.Task[Any] | None = None
        self._connection: Connection[Any] | None = None
        self._closed = False

    async def check(self, token_hash: bytes, only: Collection[str] | None) -> list[Result]:
        """Every invariant (or `only` these), for the rows of the token's tenant.

        Those that time does not suffice for are late.
        """
        return await self._alone(partial(self._checked, token_hash, only))

    async def replay(self, token_hash: bytes, *, behind: int, limit: int) -> Stretch:
        """The stretch of the ledger behind a batch."""
        return await self._alone(partial(self._replayed, token_hash, behind, limit))

    async def close(self) -> None:
        """End what is under way: nobody waits for the answer."""
        self._closed = True
        # Again and again: between two statements there is nothing to cancel.
        while (task := self._under_way) is not None:
            if self._connection is not None:
                with suppress(psycopg.Error):
                    await asyncio.to_thread(self._connection.cancel_safe)
            await asyncio.wait([task], timeout=0.1)

    async def _alone(self, work: Callable[[Connection[Any]], T]) -> T:
        if self._under_way is not None:
            raise Problem(
                "check-under-way", "one check or replay at a time, of one service", retry_after=1
            )
        task = self._under_way = asyncio.ensure_future(asyncio.to_thread(self._connected, work))
        # The thread goes on when whoever asked has left, and until then nobody else begins.
        task.add_done_callback(self._ended)
        return await asyncio.shield(task)

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._under_way = self._connection = None
        if not task.cancelled():
            task.exception()  # looked at, in case nobody waits for it any more

    def _connected(self, work: Callable[[Connection[Any]], T]) -> T:
        with Database.connect(
            self._settings.dsn,
            pooled=self._settings.pooled,
            timeout_seconds=self._settings.connect_seconds,
            statement_seconds=self._settings.check_seconds,
        ) as database:
            self._connection = database.connection
            self._demand_open()
            return work(database.connection)

    def _demand_open(self) -> None:
        if self._closed:
            raise Unavailable("the service is about to end; ask another one")

    def _checked(
        self, token_hash: bytes, only: Collection[str] | None, connection: Connection[Any]
    ) -> list[Result]:
        seconds = self._settings.check_seconds
        return check(
            connection,
            only=only,
            seconds=seconds,
            enter=partial(serving.assume, token_hash=token_hash, seconds=seconds),
            progress=lambda _: self._demand_open(),
        )

    def _replayed(
        self, token_hash: bytes, behind: int, limit: int, connection: Connection[Any]
    ) -> Stretch:
        last = 0

        def enter(connection: Connection[Any]) -> None:
            nonlocal last
            seconds = self._settings.statement_seconds
            serving.assume(connection, token_hash=token_hash, seconds=seconds)
            last = last_batch(connection)

        end = behind + self._settings.replay_batches
        replayed = replay(
            connection,
            stretch=(behind + 1, end),
            limit=limit,
            seconds=self._settings.replay_seconds,
            enter=enter,
        )
        reached = end if replayed.stopped_at is None else replayed.stopped_at
        return Stretch(replayed, last, reached if reached < last else None)
