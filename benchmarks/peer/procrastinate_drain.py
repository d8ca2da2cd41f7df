"""Run by procrastinate's own interpreter: `fill DSN JOBS` queues them, `drain DSN` does them."""

from __future__ import annotations

import asyncio
import json
import sys
import time

import procrastinate  # type: ignore[import-not-found]

SLOTS = 16
told = {"jobs": 0, "begin": 0.0, "end": 0.0}
app = procrastinate.App(
    connector=procrastinate.PsycopgConnector(conninfo=sys.argv[2], max_size=SLOTS + 4)
)


@app.task(name="bench")  # type: ignore[untyped-decorator]
async def bench() -> None:
    told["begin"] = told["begin"] or time.monotonic()
    told["jobs"] += 1


async def fill(jobs: int) -> None:
    async with app.open_async():
        await app.schema_manager.apply_schema_async()
        for first in range(0, jobs, 1_000):
            await bench.batch_defer_async(*[{}] * min(1_000, jobs - first))


async def drain() -> None:
    async with app.open_async():
        await app.run_worker_async(
            concurrency=SLOTS, wait=False, install_signal_handlers=False, listen_notify=False
        )
        told["end"] = time.monotonic()


if sys.argv[1] == "fill":
    asyncio.run(fill(int(sys.argv[3])))
else:
    asyncio.run(drain())
    sys.stdout.write(json.dumps(told))
