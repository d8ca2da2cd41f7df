"""Count the functions and files of `helixqueue` that one operation touches.

    python -m benchmarks.hops [--list]

Three operations, each in its steady state (the client, its connection and the queue are known):

- `submit`: one `HelixQueue.submit()` with a dict payload.
- `worker round`: claim, execute and settle with one slot and a no-op async handler. The worker
  claims ahead, so the window spans 1,000 batches: every function of a round is in it.
- `HTTP submit`: one `POST /v1/queues/{queue}/batches` inside the service process, from the ASGI
  application on; the HTTP server and the client are not counted.

A profile hook (`sys.setprofile`) records every Python function of the package that is entered in
the measured thread, including comprehensions and lambdas. `--list` prints them. The numbers are a
measure of how far a reader jumps, not of speed: compare them before and after a change.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx

import helixqueue
from benchmarks.arena import SERVICE_ROLES, Arena, arena, tenant
from helixqueue import AsyncHelixQueue, HelixQueue, Queue
from helixqueue.engine import tokens
from helixqueue.postgres.database import Database
from helixqueue.service import ServiceSettings, create_app

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import FrameType

PACKAGE = str(Path(helixqueue.__file__).parent) + "/"
TENANT = tenant(0)
WARM_UP = 5
ROUNDS = 1_000


class Profile:
    """The functions of the package that were entered while recording."""

    def __init__(self) -> None:
        self.functions: set[tuple[str, str, int]] = set()

    def _record(self, frame: FrameType, event: str, _: object) -> None:
        code = frame.f_code
        if event == "call" and code.co_filename.startswith(PACKAGE):
            name = code.co_filename.removeprefix(PACKAGE)
            self.functions.add((name, code.co_qualname, code.co_firstlineno))

    def start(self) -> None:
        sys.setprofile(self._record)

    def stop(self) -> None:
        sys.setprofile(None)

    @contextmanager
    def recording(self) -> Iterator[None]:
        self.start()
        try:
            yield
        finally:
            self.stop()

    @property
    def files(self) -> set[str]:
        return {file for file, _, _ in self.functions}


def submit(dsn: str) -> Profile:
    profile = Profile()
    with HelixQueue(dsn, tenant=TENANT) as helix:
        for number in range(WARM_UP):
            helix.submit("hops", identity=f"s{number}", payload={"n": number}, create=True)
        with profile.recording():
            helix.submit("hops", identity="measured", payload={"n": 1})
    return profile


async def worker_round(dsn: str) -> Profile:
    profile = Profile()
    queue: Queue[Any, Any] = Queue("hops-work")
    calls = 0

    @queue.handler
    async def handle(_: object) -> None:
        nonlocal calls
        calls += 1
        if calls == WARM_UP:
            profile.start()
        elif calls == WARM_UP + ROUNDS:
            profile.stop()

    async with AsyncHelixQueue(dsn, tenant=TENANT) as helix:
        rows = [{"identity": f"s{number}", "payload": {}} for number in range(2 * WARM_UP + ROUNDS)]
        await helix.submit_many(queue, rows)
        await helix.work(queue, slots=1, until_idle=True)
    return profile


async def http_submit(arena: Arena, database: str) -> Profile:
    token = tokens.new_token()
    with arena.admin(database) as connection:
        connection.execute(f"create role service login in role {SERVICE_ROLES}")
        connection.execute("create role keeper login in role helix_operator")
        connection.execute("select helix.bind_v1('service', '*', true)")
    with Database.connect(arena.dsn(database, "keeper")) as keeper:
        keeper.run(
            tokens.create(
                tenant=TENANT,
                name="hops",
                token_hash=token.hash,
                scopes=tokens.SCOPES,
                queues=None,
                expires_at=datetime.now(UTC) + timedelta(days=1),
            )
        )
    profile = Profile()
    app = create_app(ServiceSettings(arena.dsn(database, "service"), duties=False))
    async with httpx.AsyncClient(
        transport=httpx.ASGITransport(app),
        base_url="http://helix",
        headers={"Authorization": f"Bearer {token.token}"},
    ) as http:
        for number in range(WARM_UP + 1):
            body = {"identity": f"h{number}", "payload": {"n": number}}
            if number == WARM_UP:
                profile.start()
            response = await http.post("/v1/queues/hops/batches", json=body)
            profile.stop()
            response.raise_for_status()
    await app.state.service.close()
    return profile


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--list", action="store_true", help="print the functions")
    arguments = parser.parse_args()
    with arena(lambda _: None) as server, server.database() as database:
        dsn = server.dsn(database)
        profiles = {
            "submit": submit(dsn),
            "worker round": asyncio.run(worker_round(dsn)),
            "HTTP submit": asyncio.run(http_submit(server, database)),
        }
    lines = [f"{'operation':<14}{'functions':>10}{'files':>7}"]
    for name, profile in profiles.items():
        lines.append(f"{name:<14}{len(profile.functions):>10}{len(profile.files):>7}")
    if arguments.list:
        for name, profile in profiles.items():
            lines += ["", name]
            for file, function, line in sorted(profile.functions):
                lines.append(f"  {file}:{line} {function}")
    sys.stdout.write("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
