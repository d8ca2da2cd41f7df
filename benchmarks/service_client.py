"""Clients of the service's benchmark, in processes of their own: over HTTP, and the Python API.

    python -m benchmarks.service_client http URL TOKEN QUEUE single|bulk FIRST COUNT
    python -m benchmarks.service_client python DSN TENANT QUEUE single|bulk FIRST COUNT
    python -m benchmarks.service_client read URL CLIENTS PAUSE_SECONDS

The first two print the batches per second acknowledged as new. `read` reads lines of name,
token and path, distributes them to clients that pause after each response, and prints name and
seconds of each. The HTTP side writes raw bytes: a Python client library costs more than the
service.
"""

from __future__ import annotations

import asyncio
import sys
import threading
import time
from typing import Any
from urllib.parse import urlsplit

import orjson

from benchmarks.workload import identity, payload
from helixqueue import HelixQueue
from helixqueue.records.submission import Submission, Submitted

CONNECTIONS = 32
BULK_CONNECTIONS = 2
ROWS = 1_000
IDLE_S = 2.0  # the service closes connections that are idle for five


class Line:
    """One kept-alive connection."""

    def __init__(self, url: str, token: str) -> None:
        parts = urlsplit(url)
        self._host, self._port = parts.hostname or "", parts.port or 80
        login = f"Authorization: Bearer {token}"
        if token.startswith("hs_"):  # the session of a person
            login = f"Cookie: helix-session-{self._port}={token}"
        self._head = f"Host: {parts.netloc}\r\n{login}\r\n"

    async def open(self) -> None:
        self._reader, self._writer = await asyncio.open_connection(
            self._host, self._port, limit=2**24
        )

    async def ask(self, method: str, path: str, body: bytes = b"") -> tuple[int, bytes]:
        head = (
            f"{method} {path} HTTP/1.1\r\n{self._head}Content-Type: application/json\r\n"
            f"Content-Length: {len(body)}\r\n\r\n"
        )
        self._writer.write(head.encode() + body)
        response = await self._reader.readuntil(b"\r\n\r\n")
        length = int(response.lower().split(b"content-length:")[1].split(b"\r\n", 1)[0])
        return int(response.split(b" ", 2)[1]), await self._reader.readexactly(length)


async def over_http(
    url: str, token: str, queue: str, *, mode: str, first: int, count: int
) -> float:
    lines = [Line(url, token) for _ in range(CONNECTIONS if mode == "single" else BULK_CONNECTIONS)]
    for line in lines:
        await line.open()
    step = 1 if mode == "single" else ROWS
    firsts = iter(range(first, first + count, step))

    async def one_by_one(line: Line) -> None:
        for number in firsts:
            body = {"identity": identity(number), "payload": payload(number)}
            response = await line.ask("POST", f"/v1/queues/{queue}/batches", orjson.dumps(body))
            if response[0] != 201:
                raise RuntimeError(f"expected 201, got {response}")

    async def in_bulk(line: Line) -> None:
        for number in firsts:
            rows = [
                {"identity": identity(n), "payload": payload(n)}
                for n in range(number, number + ROWS)
            ]
            body = orjson.dumps({"submissions": rows})
            status, response = await line.ask("POST", f"/v1/queues/{queue}/chunks", body)
            decisions = {one["decision"] for one in orjson.loads(response)["submitted"]}
            if (status, decisions) != (200, {"new"}):
                raise RuntimeError(f"expected new batches only, got {status} {decisions}")

    act = one_by_one if mode == "single" else in_bulk
    began = time.perf_counter()
    await asyncio.gather(*(act(line) for line in lines))
    return count / (time.perf_counter() - began)


def through_python(
    dsn: str, tenant: str, queue: str, *, mode: str, first: int, count: int
) -> float:
    threads = CONNECTIONS if mode == "single" else BULK_CONNECTIONS
    with HelixQueue(dsn, tenant, connections=threads) as helix:
        step = 1 if mode == "single" else ROWS
        firsts = iter(range(first, first + count, step))
        lock = threading.Lock()

        def some() -> None:
            while True:
                with lock:
                    number = next(firsts, None)
                if number is None:
                    return
                done: list[Submitted[Any]]
                if mode == "single":
                    done = [helix.submit(queue, identity=identity(number), payload=payload(number))]
                else:
                    done = helix.submit_many(
                        queue,
                        [Submission(identity(n), payload(n)) for n in range(number, number + ROWS)],
                    )
                if any(one.decision != "new" for one in done):
                    raise RuntimeError(f"expected new batches only, got {done[0]}")

        helix.submit(queue, identity=f"warm-{first}", payload=1)
        crowd = [threading.Thread(target=some) for _ in range(threads)]
        began = time.perf_counter()
        for thread in crowd:
            thread.start()
        for thread in crowd:
            thread.join()
        return count / (time.perf_counter() - began)


async def reads(
    url: str, asked: list[list[str]], *, clients: int, pause: float
) -> list[tuple[str, float]]:
    """Seconds of each request by name. A client waits for each response before the next request."""
    took = []
    left = iter(asked)

    async def ask() -> None:
        lines: dict[str, Line] = {}
        used: dict[str, float] = {}
        for name, token, path in left:
            line = lines.get(token)
            if line is None or time.monotonic() - used[token] > IDLE_S:
                lines[token] = line = Line(url, token)
                await line.open()
            used[token] = time.monotonic()
            began = time.perf_counter()
            status, response = await line.ask("GET", path)
            took.append((name, time.perf_counter() - began))
            if status != 200:
                raise RuntimeError(f"{path}: expected 200, got {status}: {response[:200]!r}")
            await asyncio.sleep(pause)

    await asyncio.gather(*(ask() for _ in range(clients)))
    return took


def main() -> None:
    if sys.argv[1] == "read":
        url, clients, pause = sys.argv[2:]
        asked = [line.split("\t") for line in sys.stdin.read().splitlines()]
        for name, seconds in asyncio.run(
            reads(url, asked, clients=int(clients), pause=float(pause))
        ):
            print(f"{name}\t{seconds}")  # noqa: T201 - the answer
        return
    kind, where, who, queue, *rest = sys.argv[1:]
    mode, first, count = rest[0], int(rest[1]), int(rest[2])
    if kind == "http":
        rate = asyncio.run(over_http(where, who, queue, mode=mode, first=first, count=count))
    else:
        rate = through_python(where, who, queue, mode=mode, first=first, count=count)
    print(rate)  # noqa: T201 - the answer


if __name__ == "__main__":
    main()
