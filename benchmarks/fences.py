"""Fences against their budgets: `python -m benchmarks.fences [--quick] [--write FILE]`.

Every bar is a ratio or a difference of figures taken back to back on one server, in rounds. The
application does nothing and there is no network, so the figures show the middleware.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import secrets
import time
from dataclasses import dataclass
from operator import ge, le, lt
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any, TypeVar

import psycopg

from benchmarks.arena import Arena, arena
from benchmarks.rounds import load_average
from helixqueue import AsyncHelixQueue, HelixQueue
from helixqueue.fence.http import IdempotencyMiddleware

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, MutableMapping

    from helixqueue.postgres.call import Call

    Message = MutableMapping[str, Any]

T = TypeVar("T")

TENANT = "shop"
CONCURRENT = 16
BEGIN, END = "<!-- fences: begin -->", "<!-- fences: end -->"
_numbers = itertools.count(1)


@dataclass(frozen=True)
class Figures:
    """One round."""

    raw: float  # one-row commits a second, one client
    function_first: float  # fenced calls a second, one client
    function_again: float
    request_first: float  # keyed requests a second, one client
    request_again: float
    concurrent_first: float  # the same with 16 at a time
    concurrent_again: float
    commits: float  # of a first keyed request that write
    beside_ms: float  # what a first keyed request takes beside its two calls to the database
    load: float


async def _app(_: object, receive: Callable[[], Awaitable[Message]], send: Any) -> None:  # noqa: ANN401
    await receive()
    headers = [(b"content-type", b"application/json")]
    await send({"type": "http.response.start", "status": 201, "headers": headers})
    await send({"type": "http.response.body", "body": b'{"refund":1}'})


async def _request(app: Any, key: str) -> None:  # noqa: ANN401 - an ASGI application
    scope = {
        "type": "http", "method": "POST", "path": "/orders/7/refunds", "query_string": b"",
        "headers": [(b"idempotency-key", key.encode()), (b"content-type", b"application/json")],
    }  # fmt: skip

    async def receive() -> Message:
        return {"type": "http.request", "body": b'{"cents":500,"currency":"EUR"}'}

    async def send(message: Message) -> None:
        if message.get("status", 201) != 201:
            raise RuntimeError(f"expected 201, got {message}")

    await app(scope, receive, send)


def _rate(count: int, act: Callable[[int], object]) -> float:
    began = time.perf_counter()
    for number in range(count):
        act(number)
    return count / (time.perf_counter() - began)


async def _rate_async(count: int, at_once: int, act: Callable[[int], Awaitable[object]]) -> float:
    numbers = iter(range(count))

    async def some() -> None:
        for number in numbers:
            await act(number)

    began = time.perf_counter()
    await asyncio.gather(*(some() for _ in range(at_once)))
    return count / (time.perf_counter() - began)


def _raw(dsn: str, count: int) -> float:
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute("create table if not exists public.raw (n bigint primary key)")
        base = next(_numbers) * 1_000_000
        return _rate(
            count,
            lambda n: connection.execute("insert into public.raw values (%s)", (base + n,)),
        )


def _functions(dsn: str, count: int) -> tuple[float, float]:
    name = f"bench{next(_numbers)}"
    with HelixQueue(dsn, tenant=TENANT) as helix:

        @helix.fence(name, key=lambda n: n)
        def act(n: int) -> int:
            return n

        for warm in range(10):
            act(-1 - warm)
        return _rate(count, act), _rate(count, act)


async def _requests(dsn: str, count: int, at_once: int) -> tuple[float, float]:
    async with AsyncHelixQueue(dsn, tenant=TENANT) as helix:  # the default number of connections
        app = IdempotencyMiddleware(_app, helix=helix)
        prefix = secrets.token_hex(12)
        # Warm both paths: a server process plans a statement anew the first five times.
        for _ in range(6):
            await _rate_async(at_once * 5, at_once, lambda n: _request(app, f"{prefix}-warm-{n}"))
        first = await _rate_async(count, at_once, lambda n: _request(app, f"{prefix}-{n}"))
        again = await _rate_async(count, at_once, lambda n: _request(app, f"{prefix}-{n}"))
        return first, again


async def _beside(dsn: str, count: int) -> float:
    """Milliseconds of a first keyed request outside its database calls."""
    async with AsyncHelixQueue(dsn, tenant=TENANT, connections=1) as helix:
        waited = 0.0
        ask = helix.fences.run

        async def timed(call: Call[T]) -> T:
            nonlocal waited
            began = time.perf_counter()
            try:
                return await ask(call)
            finally:
                waited += time.perf_counter() - began

        helix.fences.run = timed
        app = IdempotencyMiddleware(_app, helix=helix)
        prefix = secrets.token_hex(12)
        await _request(app, f"{prefix}-warm")
        waited = 0.0
        whole = count / await _rate_async(count, 1, lambda n: _request(app, f"{prefix}-{n}"))
        return (whole - waited) / count * 1000


def _commits(arena: Arena, database: str, count: int) -> float:
    """Write transactions of a first keyed request, counted by transaction ids."""

    def number() -> int:
        with arena.admin(database) as connection:
            row = connection.execute("select pg_current_xact_id()::text::bigint").fetchone()
            return row[0] if row else 0

    async def act() -> float:
        async with AsyncHelixQueue(arena.dsn(database), tenant=TENANT, connections=1) as helix:
            app = IdempotencyMiddleware(_app, helix=helix)
            prefix = secrets.token_hex(12)
            await _request(app, f"{prefix}-warm")
            before = number()
            for key in range(count):
                await _request(app, f"{prefix}-{key}")
            return (number() - before - 1) / count

    return asyncio.run(act())


def _round(arena: Arena, size: int) -> Figures:
    with arena.database() as database:
        dsn = arena.dsn(database)
        with arena.admin(database) as connection:
            connection.execute("grant create on schema public to public")
        raw = _raw(dsn, size)
        function_first, function_again = _functions(dsn, size)
        request_first, request_again = asyncio.run(_requests(dsn, size, 1))
        beside = asyncio.run(_beside(dsn, size))
        concurrent_first, concurrent_again = asyncio.run(_requests(dsn, size * 2, CONCURRENT))
        return Figures(
            raw, function_first, function_again, request_first, request_again, concurrent_first,
            concurrent_again, _commits(arena, database, 200), beside,
            load_average(),
        )  # fmt: skip


_HOLDS = {"<": lt, "<=": le, ">=": ge}
# What is measured, how it is taken from a round and written, and the bar for its median, if any.
_ROWS: tuple[tuple[str, Callable[[Figures], float], str, tuple[str, float] | None], ...] = (
    ("commits of a first keyed request", lambda r: r.commits, "{:.2f}", ("<=", 2)),
    ("beside its two calls", lambda r: r.beside_ms, "{:.2f} ms", ("<", 1)),
    (
        "sealed repeat vs. first request, 1 client",
        lambda r: r.request_again / r.request_first,
        "{:.1f}x",
        (">=", 3),
    ),
    (
        f"the same, {CONCURRENT} at a time",
        lambda r: r.concurrent_again / r.concurrent_first,
        "{:.1f}x",
        None,
    ),
    (
        "sealed repeat vs. first function call",
        lambda r: r.function_again / r.function_first,
        "{:.1f}x",
        (">=", 3),
    ),
)


def _row(
    rounds: list[Figures],
    what: str,
    take: Callable[[Figures], float],
    form: str,
    bar: tuple[str, float] | None,
) -> str:
    figures = [take(round_) for round_ in rounds]
    middle = median(figures)
    must, verdict = "no bar", ""
    if bar is not None:
        sign, limit = bar
        must = f"{sign} {form.format(limit)}"
        verdict = "met" if _HOLDS[sign](middle, limit) else "missed"
    shown = (form.format(n) for n in (middle, min(figures), max(figures)))
    return f"| {' | '.join([what, *shown, must, verdict])} |"


def _told(rounds: list[Figures]) -> str:
    lines = ["| what | median | lowest | highest | must | |", "|---|---|---|---|---|---|"]
    lines += [_row(rounds, *row) for row in _ROWS]
    lines += ["", "Each round, in calls a second:", ""]
    concurrent_head = f"{CONCURRENT} at a time, first | again"
    lines.append(
        f"| raw commit | function, first | again | request, first | again | {concurrent_head} "
        "| beside, ms | commits | load |"
    )
    lines.append("|---|---|---|---|---|---|---|---|---|---|")
    for r in rounds:
        rates = (r.raw, r.function_first, r.function_again, r.request_first, r.request_again,
                 r.concurrent_first, r.concurrent_again)  # fmt: skip
        cells = [f"{rate:,.0f}" for rate in rates]
        cells += [f"{r.beside_ms:.2f}", f"{r.commits:.2f}", f"{r.load:.1f}"]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="one short round")
    parser.add_argument("--write", type=Path, help="put the table into this document")
    options = parser.parse_args()
    rounds, size = (1, 200) if options.quick else (3, 1_000)
    with arena(print) as found:
        table = _told([_round(found, size) for _ in range(rounds)])
    print(table)  # noqa: T201 - the answer
    if options.write is not None:
        text = options.write.read_text(encoding="utf-8")
        if BEGIN not in text:
            text += f"\n## Fences\n\n{BEGIN}\n{END}\n"
        head, _, rest = text.partition(BEGIN)
        tail = rest.partition(END)[2]
        options.write.write_text(f"{head}{BEGIN}\n\n{table}\n\n{END}{tail}", encoding="utf-8")


if __name__ == "__main__":
    main()
