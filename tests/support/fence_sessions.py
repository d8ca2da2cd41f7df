"""A shop whose refunds are rows of the database of its fences, on each kind of session."""

from __future__ import annotations

from contextlib import asynccontextmanager
from functools import partial
from typing import Annotated

import asyncpg
import httpx
import psycopg
import sqlalchemy
from fastapi import BackgroundTasks, Depends, FastAPI, Response
from sqlalchemy.ext.asyncio import AsyncSession, async_sessionmaker, create_async_engine
from sqlalchemy.orm import Session, sessionmaker

from helixqueue import AsyncHelixQueue
from helixqueue.fence.http import IdempotencyMiddleware, helix_session
from helixqueue.fence.policy import Policy, Route, Ttl
from tests.support.lab import POOLED

KINDS = ["session", "async session", "async session on asyncpg", "psycopg", "async psycopg"]
DEFAULT_TTL = Ttl()
ASYNC_KINDS = [kind for kind in KINDS if kind.startswith("async")]


@asynccontextmanager
async def sessions_of(kind, dsn):
    """What the middleware takes as `sessions`."""
    if kind == "session":
        engine = sqlalchemy.create_engine(
            "postgresql+psycopg://", creator=lambda: psycopg.connect(dsn), pool_size=20
        )
        yield sessionmaker(engine)
        engine.dispose()
    elif kind == "psycopg":
        yield partial(psycopg.connect, dsn)
    elif kind == "async psycopg":
        yield partial(psycopg.AsyncConnection.connect, dsn)
    else:
        driver, connect = "psycopg", psycopg.AsyncConnection.connect
        if kind.endswith("asyncpg"):
            driver, connect = "asyncpg", partial(asyncpg.connect, statement_cache_size=0)
        engine = create_async_engine(
            f"postgresql+{driver}://", async_creator=lambda: connect(dsn), pool_size=20
        )
        yield async_sessionmaker(engine)
        await engine.dispose()


class Refunds:
    """Writes rows with whatever the endpoint got."""

    def __init__(self, table, kind):
        self._insert = f"insert into public.{table} values (1)"
        self.kind = kind
        self.runs = 0
        # Called after the insert, in the endpoint, with its session.
        self.then = None
        self.status = 201
        self.background = []

    def _statement(self):
        return self._insert if self.kind.endswith("psycopg") else sqlalchemy.text(self._insert)

    def write(self, session):
        self.runs += 1
        session.execute(self._statement())

    async def write_async(self, session):
        self.runs += 1
        await session.execute(self._statement())


def app_of(refunds, path):
    """A FastAPI application with one endpoint, sync or async as its session is."""
    app = FastAPI()

    if refunds.kind in ASYNC_KINDS:

        @app.post(path)
        async def refund(
            response: Response,
            tasks: BackgroundTasks,
            session: Annotated[AsyncSession, Depends(helix_session)],
        ):
            await refunds.write_async(session)
            tasks.add_task(note, len(refunds.background))
            response.status_code = refunds.status
            if refunds.then is not None:
                found = await refunds.then(session)
                if found is not None:
                    return found
            return {"runs": refunds.runs}

    else:

        @app.post(path)
        def refund_sync(
            response: Response,
            tasks: BackgroundTasks,
            session: Annotated[Session, Depends(helix_session)],
        ):
            refunds.write(session)
            tasks.add_task(note, len(refunds.background))
            response.status_code = refunds.status
            if refunds.then is not None:
                found = refunds.then(session)
                if found is not None:
                    return found
            return {"runs": refunds.runs}

    def note(number):
        refunds.background.append(refunds.count())

    return app


@asynccontextmanager
async def open_sessions(database, kind, name, table, *, ttl=DEFAULT_TTL, **options):
    """The shop behind the middleware: its refunds, and a function that posts with a key."""
    refunds = Refunds(table, kind)
    refunds.count = lambda: database.value(f"select count(*) from public.{table}")
    route = Route(f"/{name}", effect="session", min_key_chars=1, **{"wait_ms": 0} | options)
    policy = Policy(routes=(route,), ttl=ttl)
    async with (
        AsyncHelixQueue(database.dsn(), tenant="a", pooled=POOLED) as helix,
        sessions_of(kind, database.dsn()) as sessions,
    ):
        app = IdempotencyMiddleware(
            app_of(refunds, f"/{name}"), helix=helix, policy=policy, sessions=sessions
        )
        transport = httpx.ASGITransport(app, raise_app_exceptions=False)
        async with httpx.AsyncClient(transport=transport, base_url="http://shop") as client:

            async def post(key="k"):
                headers = {} if key is None else {"Idempotency-Key": key}
                return await client.post(f"/{name}", content=b"{}", headers=headers)

            yield refunds, post
