"""One tenant floods a service; another measures it: `python -m benchmarks.flood [--quick]`.

    python -m benchmarks.flood [--quick] [--kind KIND] [--write FILE]
    python -m benchmarks.flood send URL TOKEN KIND CONNECTIONS SECONDS
    python -m benchmarks.flood probe URL TOKEN SECONDS

`send` prints the number of responses by status, `probe` the seconds of each `GET /v1/queues` and
`/health/live`. Service, clients and PostgreSQL share the machine.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import subprocess
import sys
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit
from urllib.request import Request, urlopen

from benchmarks.arena import QUEUE, Arena, arena, tenant
from benchmarks.service import Served, served, write
from benchmarks.service_client import Line

if TYPE_CHECKING:
    from asyncio import StreamReader
    from collections.abc import Callable, Iterator

BEGIN, END = "<!-- flood: begin -->", "<!-- flood: end -->"
CONNECTIONS: Final = 200
PROBES: Final = ("/v1/queues", "/health/live")
MUST_MS: Final = {"/v1/queues": 100.0, "/health/live": 250.0}
PAUSE_S: Final = 0.01
WARM_UP_S: Final = 1.0
PIPELINED: Final = 8
KIB: Final = 1024
_numbers = itertools.count()


def array(item: str, size: int, last: str = "null") -> str:
    return "[" + f"{item}," * ((size - 200) // (len(item) + 1)) + last + "]"


def submission(payload: str) -> Callable[[], tuple[str, str]]:
    """A submission of a new identity each time."""

    def request() -> tuple[str, str]:
        body = f'{{"identity":"flood-{time.monotonic_ns()}-{next(_numbers)}","payload":{payload}}}'
        return f"POST /v1/queues/{QUEUE}/batches", body

    return request


def _chunk() -> tuple[str, str]:
    start = time.monotonic_ns()
    rows = ",".join(
        f'{{"identity":"flood-{start}-{next(_numbers)}","payload":[1e-6,1.0,2.0,1e-6,1.0,2.0]}}'
        for _ in range(1_000)
    )
    return f"POST /v1/queues/{QUEUE}/chunks", f'{{"submissions":[{rows}]}}'


NESTED = "[" * 30 + "]" * 30
OBJECT = '{"a":{"b":{"c":{}}}}'
BIG = "9007199254740993"
# Requests of a tenant, by name: what it sends, and the description.
KINDS: Final[dict[str, tuple[str, Callable[[], tuple[str, str]]]]] = {
    "reads": ("lists of queues", lambda: ("GET /v1/queues", "")),
    "floats": ("32 KiB of floats", submission(array("1e-6", 32 * KIB))),
    "arrays": ("32 KiB of empty arrays, a wrong number last",
               submission(array(NESTED, 32 * KIB, BIG))),
    "objects": ("32 KiB of objects, a wrong number last", submission(array(OBJECT, 32 * KIB, BIG))),
    "mebibyte": ("1 MiB of floats", submission(array("1e-6", KIB * KIB))),
    "mebibyte-arrays": ("1 MiB of empty arrays, a wrong number last",
                        submission(array(NESTED, KIB * KIB, BIG))),
    "chunks": ("chunks of 1,000", _chunk),
    "payload": ("batches with 1 MiB of payload", lambda: ("GET {stored}", "")),
    "openapi": ("pipelined OpenAPI documents", lambda: ("GET /v1/openapi.json", "")),
    "login": ("logins with 31 KiB of floats",
              lambda: ("POST /v1/login", f'{{"code":{array("1e-7", 31 * KIB)}}}')),
}  # fmt: skip


async def send(url: str, token: str, kind: str, connections: int, seconds: float) -> Counter[str]:
    """Send requests on connections of their own, each as soon as the response before has come."""
    until = time.monotonic() + seconds
    answers: Counter[str] = Counter()
    parts = urlsplit(url)
    request = KINDS[kind][1]
    authorization = "" if kind == "login" else f"Authorization: Bearer {token}\r\n"

    def message() -> bytes:
        line, body = request()
        line = line.replace("{stored}", parts.path + "?payload=true")
        return (
            f"{line} HTTP/1.1\r\nHost: {parts.netloc}\r\n{authorization}"
            f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n{body}"
        ).encode()

    async def one_connection() -> None:
        while time.monotonic() < until:
            with suppress(OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
                reader, writer = await asyncio.open_connection(
                    parts.hostname, parts.port, limit=2**24
                )
                try:
                    while time.monotonic() < until:
                        number = PIPELINED if kind == "openapi" else 1
                        writer.write(b"".join(message() for _ in range(number)))
                        for _ in range(number):
                            answers[await _status(reader)] += 1
                finally:
                    writer.close()

    await asyncio.gather(*(one_connection() for _ in range(connections)))
    return answers


async def _status(reader: StreamReader) -> str:
    head = (await reader.readuntil(b"\r\n\r\n")).lower()
    await reader.readexactly(int(head.split(b"content-length:")[1].split(b"\r\n", 1)[0]))
    return head.split(b" ", 2)[1].decode()


async def probe(url: str, token: str, seconds: float) -> dict[str, list[float]]:
    """Seconds of each request, on one connection per path."""

    async def ask(path: str) -> list[float]:
        line = Line(url, token)
        await line.open()
        took = []
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            began = time.perf_counter()
            status, response = await line.ask("GET", path)
            took.append(time.perf_counter() - began)
            if status != 200:
                raise RuntimeError(f"{path}: expected 200, got {status}: {response[:200]!r}")
            await asyncio.sleep(PAUSE_S)
        return took

    return dict(zip(PROBES, await asyncio.gather(*map(ask, PROBES)), strict=True))


def _process(*words: object) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "benchmarks.flood", *map(str, words)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def _stored(service: Served, token: str) -> str:
    """The URL of a batch with a large payload."""
    line, body = submission(array("1e-7", KIB * KIB))()
    request = Request(  # noqa: S310 - our own service
        service.url + line.removeprefix("POST "), body.encode(),
        {"Authorization": f"Bearer {token}", "Content-Type": "application/json"},
    )  # fmt: skip
    with urlopen(request, timeout=60) as response:  # noqa: S310
        return f"{service.url}/v1/batches/{json.load(response)['receipt']['batch_id']}"


def measure(
    arena: Arena, kind: str, seconds: float
) -> tuple[dict[str, list[float]], dict[str, int]]:
    """Latencies of the other tenant by path, and the responses of the flood by status."""
    tenants = (tenant(0), tenant(1))
    with arena.database() as database, served(arena, database, tenants) as service:
        url = _stored(service, service.tokens[0]) if kind == "payload" else service.url
        flood = _process("send", url, service.tokens[0], kind, CONNECTIONS, WARM_UP_S + seconds)
        time.sleep(WARM_UP_S)
        other = _process("probe", service.url, service.tokens[1], seconds)
        took, answers = (json.loads(process.communicate()[0]) for process in (other, flood))
        return took, answers


def _rows(kind: str, took: dict[str, list[float]], answers: dict[str, int]) -> Iterator[str]:
    rate = ", ".join(f"{count:,} x {status}" for status, count in sorted(answers.items()))
    for path, seconds in took.items():
        p99 = sorted(seconds)[len(seconds) * 99 // 100] * 1000
        verdict = "met" if p99 < MUST_MS[path] else "missed"
        middle, most = sorted(seconds)[len(seconds) // 2] * 1000, max(seconds) * 1000
        yield (
            f"| {KINDS[kind][0]} | `{path}` | {middle:.1f} ms | {p99:.1f} ms | {most:.1f} ms "
            f"| < {MUST_MS[path]:.0f} ms | {verdict} | {rate} |"
        )


def report(kinds: list[str], seconds: float) -> str:
    with arena(print) as found:
        rows = [row for kind in kinds for row in _rows(kind, *measure(found, kind, seconds))]
        conditions = found.conditions()
    conditions["run"] = f"{CONNECTIONS} connections of one tenant, {seconds:g} s each"
    return "\n".join(
        [
            *(f"- {name}: {value}" for name, value in conditions.items()),
            "",
            "| flood | other tenant | p50 | p99 | longest | p99 must | | answers |",
            "|---|---|---|---|---|---|---|---|",
            *rows,
        ]
    )


def main() -> None:
    if sys.argv[1:2] == ["send"]:
        url, token, kind, connections, seconds = sys.argv[2:]
        answers = asyncio.run(send(url, token, kind, int(connections), float(seconds)))
        print(json.dumps(answers))  # noqa: T201 - the answer
        return
    if sys.argv[1:2] == ["probe"]:
        url, token, seconds = sys.argv[2:]
        print(json.dumps(asyncio.run(probe(url, token, float(seconds)))))  # noqa: T201
        return
    parser = argparse.ArgumentParser(prog="python -m benchmarks.flood", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="2 seconds per kind")
    parser.add_argument("--kind", action="append", choices=KINDS, help="only these kinds")
    parser.add_argument("--write", type=Path, help="document whose table is replaced")
    options = parser.parse_args()
    table = report(options.kind or list(KINDS), 2.0 if options.quick else 8.0)
    print(table)  # noqa: T201 - the answer
    if options.write is not None:
        write(options.write, table, "Flood of one tenant", BEGIN, END)


if __name__ == "__main__":
    main()
