"""Run by pgqueuer's own interpreter. `fill DSN JOBS` queues them, `drain DSN` works them off."""

from __future__ import annotations

import asyncio
import json
import sys
import time
from datetime import timedelta

import asyncpg  # type: ignore[import-not-found]
from pgqueuer.db import AsyncpgDriver  # type: ignore[import-not-found]
from pgqueuer.qm import QueueManager  # type: ignore[import-not-found]
from pgqueuer.queries import Queries  # type: ignore[import-not-found]
from pgqueuer.types import QueueExecutionMode  # type: ignore[import-not-found]


async def fill(dsn: str, jobs: int) -> None:
    connection = await asyncpg.connect(dsn)
    queries = Queries(AsyncpgDriver(connection))
    await queries.install()
    for first in range(0, jobs, 1_000):
        rows = min(1_000, jobs - first)
        await queries.enqueue(["bench"] * rows, [b"{}"] * rows, [0] * rows)
    await connection.execute("analyze")
    await connection.close()


async def drain(dsn: str) -> dict[str, float]:
    connection = await asyncpg.connect(dsn)
    manager = QueueManager(Queries(AsyncpgDriver(connection)))
    done, begin = 0, 0.0

    @manager.entrypoint("bench")
    async def work(_: object) -> None:
        nonlocal done, begin
        begin = begin or time.monotonic()
        done += 1

    await manager.run(
        dequeue_timeout=timedelta(seconds=1), batch_size=100, mode=QueueExecutionMode.drain
    )
    end = time.monotonic()
    await connection.close()
    return {"jobs": done, "begin": begin, "end": end}


if sys.argv[1] == "fill":
    asyncio.run(fill(sys.argv[2], int(sys.argv[3])))
else:
    sys.stdout.write(json.dumps(asyncio.run(drain(sys.argv[2]))))
