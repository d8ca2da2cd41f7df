"""Makes fenced calls on every surface, each in a child process that dies at a failpoint.

    python -m tests.support.fence_crash_process DSN < cases

A case is a line of JSON; the reply is a line with the exit code of the child. Children are forked,
because starting Python for each case would dominate the run time.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
import threading
from functools import partial
from pathlib import Path

import psycopg
from starlette.requests import HTTPConnection

from helixqueue import AsyncHelixQueue, HelixQueue, failpoints
from helixqueue.errors import InDoubt, InProgress
from helixqueue.fence import NotApplied
from helixqueue.fence.http import IdempotencyMiddleware, helix_effect, helix_session
from helixqueue.fence.policy import Policy, Route

RAN, REPEATED, DOUBTED, BUSY, FAILED = range(10, 15)


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


class Refused(Exception):
    """What an effect says that failed on its way."""


class Case:
    def __init__(self, dsn: str, details: dict[str, str]) -> None:
        self.dsn = dsn
        self.name = details["name"]
        self.how = details[
            "how"
        ]  # done, failed (after the effect), refused (before it), dies in it
        self.file = Path(details["file"])
        self.key = details.get("key", "k").encode()
        self.insert = f"insert into public.{details['table']} values (1)".encode()
        self.ran = False
        if "kill_after" in details:
            threading.Timer(float(details["kill_after"]), die).start()

    def foreign(self) -> None:
        self.ran = True
        if self.how == "refused":
            raise NotApplied("connection refused")
        with self.file.open("a") as effects:
            effects.write("effect\n")
        self._then()

    def local(self, connection: psycopg.Connection) -> None:
        self.ran = True
        connection.execute(self.insert)
        self._then()

    def _then(self) -> None:
        if self.how == "dies":
            die()
        if self.how in {"failed", "refused"}:
            raise Refused("the bank hung up")

    def function(self) -> None:
        with HelixQueue(self.dsn, tenant="a") as helix:
            helix.fence(self.name, key=lambda: "k", wait=0)(self.foreign)()

    def async_function(self) -> None:
        async def call() -> None:
            async def act() -> None:
                self.foreign()

            async with AsyncHelixQueue(self.dsn, tenant="a") as helix:
                await helix.fence(self.name, key=lambda: "k", wait=0)(act)()

        asyncio.run(call())

    def same_transaction(self) -> None:
        with HelixQueue(self.dsn, tenant="a") as helix, psycopg.connect(self.dsn) as connection:
            guard = helix.fence(self.name, key="k", within=connection, wait=0)
            with connection.transaction(), guard as fence:
                if fence.first:
                    self.local(connection)
            if self.how == "dies after its commit":
                die()

    def async_same_transaction(self) -> None:
        async def call() -> None:
            connection = await psycopg.AsyncConnection.connect(self.dsn)
            async with AsyncHelixQueue(self.dsn, tenant="a") as helix, connection:
                guard = helix.fence(self.name, key="k", within=connection, wait=0)
                async with connection.transaction(), guard as fence:
                    if fence.first:
                        self.ran = True
                        await connection.execute(self.insert)
                        self._then()
                if self.how == "dies after its commit":
                    die()

        asyncio.run(call())

    def http(self) -> None:
        async def app(scope: object, receive: object, send) -> None:
            self.ran = True
            status = 201
            if self.how == "refused":
                status = 401
            else:
                try:
                    self.foreign()
                except Refused:
                    status = 500
            await send({"type": "http.response.start", "status": status, "headers": []})
            await send({"type": "http.response.body", "body": b"done"})

        asyncio.run(self._ask(app))

    def http_marked(self) -> None:
        async def app(scope, receive: object, send) -> None:
            self.ran = True
            status = 201
            if self.how == "dies before its effect":
                die()
            if self.how == "refused":
                status = 503
            else:
                try:
                    async with helix_effect(scope):
                        self.foreign()
                except Refused:
                    status = 500
            await send({"type": "http.response.start", "status": status, "headers": []})
            await send({"type": "http.response.body", "body": b"done"})

        asyncio.run(self._ask(app, "marked"))

    def http_session(self) -> None:
        async def app(scope, receive: object, send) -> None:
            self.ran = True
            connection = await helix_session(HTTPConnection(scope))
            await connection.execute(self.insert)
            self._then()
            await send({"type": "http.response.start", "status": 201, "headers": []})
            await send({"type": "http.response.body", "body": b"done"})
            if self.how == "dies after its commit":
                die()

        asyncio.run(self._ask(app, "session"))

    async def _ask(self, app: object, effect: str = "request") -> None:
        sent = []

        async def receive() -> dict[str, object]:
            return {"type": "http.request", "body": b"{}"}

        async def send(message: dict[str, object]) -> None:
            sent.append(message)

        route = Route(path=f"/{self.name}", wait_ms=0, min_key_chars=1, effect=effect)
        async with AsyncHelixQueue(self.dsn, tenant="a") as helix:
            guarded = IdempotencyMiddleware(
                app,
                helix=helix,
                policy=Policy(routes=(route,)),
                sessions=partial(psycopg.AsyncConnection.connect, self.dsn),
            )
            await guarded(
                {
                    "type": "http", "method": "POST", "path": route.path, "query_string": b"",
                    "headers": [(b"idempotency-key", self.key)],
                },
                receive,
                send,
            )  # fmt: skip
        problem = json.loads(sent[1]["body"])["type"] if sent[0]["status"] == 409 else ""
        if problem.endswith("in-doubt"):
            raise InDoubt("in doubt")
        if problem.endswith("in-progress"):
            raise InProgress("in progress", retry_after=1)


def perform(case: Case, surface: str) -> int:
    try:
        getattr(case, surface)()
    except InDoubt:
        return DOUBTED
    except InProgress:
        return BUSY
    except (Refused, NotApplied):
        return FAILED
    return RAN if case.ran else REPEATED


def main() -> None:
    for line in sys.stdin:
        document = json.loads(line)
        child = os.fork()
        if child == 0:
            failpoints._armed = failpoints._parse(document["failpoint"])
            os._exit(perform(Case(sys.argv[1], document), document["surface"]))
        _, status = os.waitpid(child, 0)
        print(os.waitstatus_to_exitcode(status), flush=True)  # noqa: T201 - the answer


if __name__ == "__main__":
    main()
