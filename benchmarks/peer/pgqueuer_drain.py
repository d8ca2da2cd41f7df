"""Run by pgqueuer's own interpreter. `fill DSN JOBS` queues them, `drain DSN` works them off.

`tell DSN` prints how long each job of `enqueue DSN JOBS` waited for its start.
"""

from __future__ import annotations

import asyncio
import json
import random
import sys
import time
from datetime import timedelta
from typing import Any

import asyncpg  # type: ignore[import-not-found, import-untyped, unused-ignore]
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

    @manager.entrypoint("bench")  # type: ignore[untyped-decorator]
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


async def enqueue(dsn: str, jobs: int) -> None:
    connection = await asyncpg.connect(dsn)
    queries = Queries(AsyncpgDriver(connection))
    for _ in range(jobs):
        await queries.enqueue("bench", json.dumps({"at": time.monotonic()}).encode(), 0)
        await asyncio.sleep(random.uniform(0.03, 0.06))  # noqa: S311
    await connection.close()


async def tell(dsn: str) -> None:
    connection = await asyncpg.connect(dsn)
    manager = QueueManager(Queries(AsyncpgDriver(connection)))

    @manager.entrypoint("bench")  # type: ignore[untyped-decorator]
    async def work(job: Any) -> None:  # noqa: ANN401 - a type of theirs
        sys.stdout.write(f"{time.monotonic() - json.loads(job.payload)['at']}\n")
        sys.stdout.flush()

    await manager.run(batch_size=100)


if sys.argv[1] == "fill":
    asyncio.run(fill(sys.argv[2], int(sys.argv[3])))
elif sys.argv[1] == "enqueue":
    asyncio.run(enqueue(sys.argv[2], int(sys.argv[3])))
elif sys.argv[1] == "tell":
    asyncio.run(tell(sys.argv[2]))
else:
    sys.stdout.write(json.dumps(asyncio.run(drain(sys.argv[2]))))
