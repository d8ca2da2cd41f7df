"""One worker process of HelixQueue: `python -m benchmarks.worker_process MODE DSN`.

Modes: `drain` (with prefetch), `one` (one by one: 16 slots, nothing claimed ahead of a free slot),
`single` (the same with one batch per call), `tell` (prints the seconds from submission to start of
each batch), `hang` (prints that it began and keeps running).
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from typing import Any

from helixqueue import AsyncHelixQueue, AsyncLease, Queue

QUEUE = "bench"
TENANT = "bench"
LEASE_S = 2.0
bench = Queue(QUEUE, lease=120)
brief = Queue("brief", lease=LEASE_S)
told: dict[str, float] = {"jobs": 0, "begin": 0.0, "end": 0.0}
mode, dsn = (*sys.argv[1:3], "", "")[:2]


@bench.handler
async def work(lease: AsyncLease[Any, Any]) -> None:
    if mode == "tell":
        sys.stdout.write(f"{time.monotonic() - lease.payload['at']}\n")
        sys.stdout.flush()
        return
    told["begin"] = told["begin"] or time.monotonic()
    told["jobs"] += 1


@brief.handler
async def hang(lease: AsyncLease[Any, Any]) -> None:
    sys.stdout.write(f"{time.monotonic()} {lease.attempt}\n")
    sys.stdout.flush()
    if lease.attempt == 1:
        await asyncio.sleep(600)


async def main() -> None:
    async with AsyncHelixQueue(dsn, tenant=TENANT) as helix:
        if mode == "drain":
            await helix.work(bench, slots=16, until_idle=True)
        elif mode == "one":
            await helix.work(bench, slots=16, prefetch=1, until_idle=True)
        elif mode == "single":
            await helix.work(bench, slots=16, free={}, until_idle=True)
        else:
            await helix.work(brief if mode == "hang" else bench, slots=4)
    told["end"] = time.monotonic()
    sys.stdout.write(json.dumps(told))


if __name__ == "__main__":
    asyncio.run(main())
