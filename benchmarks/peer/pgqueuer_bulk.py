"""Run by pgqueuer's own interpreter: its bulk enqueue, timed. Arguments: DSN, calls, rows a call.

It imports nothing of ours, so the payloads are made here as `workload.payload` makes them.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time

import asyncpg  # type: ignore[import-not-found, import-untyped, unused-ignore]
from pgqueuer.db import AsyncpgDriver  # type: ignore[import-not-found]
from pgqueuer.queries import Queries  # type: ignore[import-not-found]


def payloads(first: int, rows: int) -> list[bytes]:
    return [
        json.dumps(
            {"genome": "GRCh38", "lane": n % 8, "reads": f"s3://lab/{n:09}_R1.fastq.gz"},
            separators=(",", ":"),
        ).encode()
        for n in range(first, first + rows)
    ]


async def main(dsn: str, calls: int, rows: int) -> None:
    connection = await asyncpg.connect(dsn)
    queries = Queries(AsyncpgDriver(connection))
    await queries.install()
    for _ in range(3):
        await queries.enqueue(["bench"] * 10, payloads(0, 10), [0] * 10)
    begin = time.monotonic()
    for call in range(calls):
        made = payloads(call * rows, rows)
        await queries.enqueue(["bench"] * rows, made, [0] * rows)
    seconds = time.monotonic() - begin
    await connection.close()
    sys.stdout.write(json.dumps({"rows_per_second": calls * rows / seconds}))


asyncio.run(main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3])))
