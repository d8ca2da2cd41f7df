"""One transaction in the application's own database, for the claim, the endpoint and the seal.

Sessions and connections are recognised by the names of their classes, as in
`postgres/caller_transaction.py`: SQLAlchemy need not be installed.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, TypeVar

from helixqueue.errors import HelixError, Refused, Retryable, Unavailable
from helixqueue.fence.protocol import Undo
from helixqueue.postgres.caller_transaction import run_within, run_within_async, translating
from helixqueue.postgres.tenant_sessions import TransactionLost
from helixqueue.postgres.transaction_bounds import TransactionBound

if TYPE_CHECKING:
    from helixqueue.postgres.call import Call

T = TypeVar("T")
log = logging.getLogger("helixqueue.fence.http")

# Where sessions come from: a sessionmaker or async_sessionmaker of SQLAlchemy, or a function that
# returns a connection of psycopg, such as `pool.connection` or `partial(psycopg.connect, dsn)`.
Sessions = Callable[..., Any]
# Opening may wait for a connection that is in use. Threads of their own, so that the requests that
# use the connections find a thread for their commit.
_OPENING_THREADS: Final = 4


@dataclass(frozen=True, slots=True)
class _Opened:
    """The connection for our calls, and what the endpoint gets."""

    connection: Any
    session: Any


class SessionSource:
    """Opens the sessions of one application."""

    def __init__(self, sessions: Sessions) -> None:
        names = {
            f"{kind.__module__.partition('.')[0]}.{kind.__name__}"
            for kind in type(sessions).__mro__
        }
        self._sessions = sessions
        self._engine: Any = None
        self._open: Callable[[], Any] = self._sqlalchemy
        if names & {"sqlalchemy.sessionmaker", "sqlalchemy.async_sessionmaker"}:
            self._engine = sessions.kw.get("bind")  # type: ignore[attr-defined]
            if self._engine is None:
                raise Refused("sessions: expected a sessionmaker with an engine, got one without")
            if "sqlalchemy.async_sessionmaker" in names:
                self._open = self._sqlalchemy_async
        elif not callable(sessions):
            raise Refused(
                "sessions: expected a sessionmaker of SQLAlchemy or a function that returns a "
                f"connection of psycopg, got {type(sessions).__name__}"
            )
        self._threads = ThreadPoolExecutor(_OPENING_THREADS, "helix-session")

    async def open(self) -> tuple[Any, _Opened]:
        """A context manager that has been entered: its end commits, or rolls back."""
        manager = await self._in_thread(self._connect) if self._engine is None else self._open()
        if inspect.isawaitable(manager):  # AsyncConnection.connect
            manager = await manager
        if hasattr(manager, "__aenter__"):
            if self._engine is None:
                manager = _transaction_async(manager)
            return manager, await manager.__aenter__()
        if self._engine is None:
            manager = _transaction(manager)
        return manager, await self._in_thread(manager.__enter__)

    async def _in_thread(self, work: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._threads, work)

    def _connect(self) -> Any:  # noqa: ANN401 - a connection, or a context manager of one
        return self._sessions()

    @contextmanager
    def _sqlalchemy(self) -> Iterator[_Opened]:
        with (
            self._engine.connect() as connection,
            connection.begin(),
            self._sessions(bind=connection, join_transaction_mode="create_savepoint") as session,
        ):
            yield _Opened(connection, session)
            session.commit()

    @asynccontextmanager
    async def _sqlalchemy_async(self) -> AsyncIterator[_Opened]:
        async with (
            self._engine.connect() as connection,
            connection.begin(),
            self._sessions(bind=connection, join_transaction_mode="create_savepoint") as session,
        ):
            yield _Opened(connection, session)
            await session.commit()


@contextmanager
def _transaction(opened: Any) -> Iterator[_Opened]:  # noqa: ANN401 - of psycopg
    with opened as connection, connection.transaction():
        yield _Opened(connection, connection)


@asynccontextmanager
async def _transaction_async(opened: Any) -> AsyncIterator[_Opened]:  # noqa: ANN401 - of psycopg
    async with opened as connection, connection.transaction():
        yield _Opened(connection, connection)


class SessionTransaction:
    """The transaction of one request; can be begun again after its end."""

    def __init__(self, source: SessionSource, seconds: float) -> None:
        self._source = source
        self._seconds = seconds
        self._manager: Any = None
        self._opened: _Opened | None = None

    @property
    def session(self) -> Any:  # noqa: ANN401 - the application's class
        assert self._opened is not None  # noqa: S101 - the endpoint runs inside the transaction
        return self._opened.session

    async def open(self) -> None:
        """Begin. A process that freezes keeps its locks until the server ends the transaction."""
        try:
            with translating():
                self._manager, self._opened = await self._source.open()
        except (Unavailable, Retryable) as error:
            raise TransactionLost(error) from error
        limits = TransactionBound(silent=self._seconds, total=self._seconds)
        await self._run(limits.call())

    async def begin(self, call: Call[T]) -> T:
        """Commit what is open, then run the first call of a new transaction."""
        if self._opened is not None:
            await self.commit()
        await self.open()
        return await self._run(call)

    async def commit(self, call: Call[Any] | None = None) -> Any:  # noqa: ANN401 - what the call returns
        """Run the last call, if any, and commit with what the session has not written yet."""
        if self._opened is None:
            raise TransactionLost(Unavailable("the transaction has ended; repeat the request"))
        reply = None if call is None else await self._run(call)
        try:
            await self._leave(None)
        except Exception as error:
            _raise_if_lost(error)
            raise  # a deferred constraint, or a write of the session: the endpoint's own error
        return reply

    async def rollback(self) -> None:
        """Undo everything; nothing to do after a commit."""
        if self._opened is None:
            return
        try:
            await self._leave(Undo())
        except Undo:
            return
        except Exception as error:  # noqa: BLE001 - any driver's error of a dead connection
            log.info("idempotency: the transaction could not be rolled back: %s", error)

    async def _leave(self, error: Undo | None) -> None:
        manager, self._manager, self._opened = self._manager, None, None
        details = (None, None, None) if error is None else (Undo, error, None)
        if hasattr(manager, "__aexit__"):
            await manager.__aexit__(*details)
        else:
            await asyncio.to_thread(manager.__exit__, *details)

    async def _run(self, call: Call[T]) -> T:
        assert self._opened is not None  # noqa: S101 - opened before
        connection = self._opened.connection
        try:
            if hasattr(self._manager, "__aexit__"):
                return await run_within_async(connection, call)
            return await asyncio.to_thread(run_within, connection, call)
        except (Unavailable, Retryable) as error:
            await self.rollback()
            raise TransactionLost(error) from error
        except HelixError:
            await self.rollback()  # the statement has aborted it
            raise


def _raise_if_lost(error: Exception) -> None:
    """Raises `TransactionLost` if a repeat of the whole request may succeed."""
    try:
        with translating():
            raise error
    except (Unavailable, Retryable) as translated:
        raise TransactionLost(translated) from error
    except Exception:  # noqa: BLE001 - the caller raises the error as it is
        return
