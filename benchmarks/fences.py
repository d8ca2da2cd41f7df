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
from contextlib import asynccontextmanager
from dataclasses import dataclass
from operator import ge, le, lt
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any, TypeVar

import psycopg
from starlette.requests import HTTPConnection

from benchmarks.arena import Arena, arena
from benchmarks.rounds import load_average
from helixqueue import AsyncHelixQueue, HelixQueue
from helixqueue.fence.http import IdempotencyMiddleware, helix_effect, helix_session
from helixqueue.fence.policy import Policy, Route

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, MutableMapping

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
    commits: dict[str, float]  # that the middleware adds to a first keyed request, per effect
    beside_ms: float  # what a first keyed request takes beside its two calls to the database
    beside_session: float  # the same with `helix_session`, beside what the endpoint takes
    load: float


async def _app(_: object, receive: Callable[[], Awaitable[Message]], send: Any) -> None:  # noqa: ANN401
    await receive()
    headers = [(b"content-type", b"application/json")]
    await send({"type": "http.response.start", "status": 201, "headers": headers})
    await send({"type": "http.response.body", "body": b'{"refund":1}'})


async def _marked(scope: Any, receive: Any, send: Any) -> None:  # noqa: ANN401
    async with helix_effect(scope):
        pass
    await _app(scope, receive, send)


class _Timed(psycopg.AsyncConnection[Any]):
    """Sums the time for which it waits for the server."""

    waited = 0.0

    async def wait(self, *arguments: Any, **options: Any) -> Any:  # noqa: ANN401
        began = time.perf_counter()
        try:
            return await super().wait(*arguments, **options)
        finally:
            _Timed.waited += time.perf_counter() - began


@asynccontextmanager
async def _session_apps(dsn: str) -> AsyncIterator[tuple[Any, Any, Any]]:
    """Two applications that write a row per request, and the source of their transactions.

    The first opens its transaction itself, the second has that of the middleware.
    """
    insert = "insert into public.refund values (pg_current_xact_id()::text::bigint)"
    async with await _Timed.connect(dsn) as connection:
        await connection.execute("create table if not exists public.refund (transaction bigint)")
        await connection.commit()

        @asynccontextmanager
        async def lend() -> AsyncIterator[psycopg.AsyncConnection[Any]]:
            async with connection.transaction():
                yield connection

        async def alone(scope: Any, receive: Any, send: Any) -> None:  # noqa: ANN401
            async with lend() as own:
                await own.execute(insert)
            await _app(scope, receive, send)

        async def guarded(scope: Any, receive: Any, send: Any) -> None:  # noqa: ANN401
            await (await helix_session(HTTPConnection(scope))).execute(insert)
            await _app(scope, receive, send)

        yield alone, guarded, lend


def _policy(effect: str) -> Policy:
    path = "/orders/{order}/refunds"
    return Policy(routes=(Route(path=path, effect=effect, wait_ms=0),))  # type: ignore[arg-type]


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


async def _beside_session(dsn: str, count: int) -> float:
    """Milliseconds added to a request with a transaction of its own, beside waits for calls."""
    async with (
        AsyncHelixQueue(dsn, tenant=TENANT, connections=1) as helix,
        _session_apps(dsn) as (alone, guarded, source),
    ):
        options = {"policy": _policy("session"), "sessions": source}
        app = IdempotencyMiddleware(guarded, helix=helix, **options)  # type: ignore[arg-type]
        prefix = secrets.token_hex(12)
        seconds, waited = {alone: 0.0, app: 0.0}, {alone: 0.0, app: 0.0}
        for turn in range(10):
            for each in (alone, app):
                before = _Timed.waited
                rate = await _rate_async(
                    count // 10, 1, lambda n, e=each, t=turn: _request(e, f"{prefix}-{t}-{n}")
                )
                if turn:  # the first one plans
                    seconds[each] += 1000 / rate / 9
                    waited[each] += (_Timed.waited - before) * 1000 / (count // 10) / 9
        return seconds[app] - waited[app] - seconds[alone] + waited[alone]


def _commits(arena: Arena, database: str, count: int) -> dict[str, float]:
    """Write transactions of a first keyed request per effect, counted by transaction ids."""

    def number() -> int:
        with arena.admin(database) as connection:
            row = connection.execute("select pg_current_xact_id()::text::bigint").fetchone()
            return row[0] if row else 0

    def apart() -> int:
        """Transactions of the middleware that are not the endpoint's; a savepoint is none."""
        with arena.admin(database) as connection:
            row = connection.execute(
                "select count(distinct e.position) from helix.fence_event e"
                " where e.position & ((1::bigint << 40) - 1)"
                " not in (select transaction from public.refund)"
            ).fetchone()
            return row[0] if row else 0

    async def counted(app: Any, number: Callable[[], int], own: int) -> float:  # noqa: ANN401
        prefix = secrets.token_hex(12)
        await _request(app, f"{prefix}-warm")
        before = number()
        for key in range(count):
            await _request(app, f"{prefix}-{key}")
        return (number() - before - own) / count

    async def act() -> dict[str, float]:
        dsn = arena.dsn(database)
        async with (
            AsyncHelixQueue(dsn, tenant=TENANT, connections=1) as helix,
            _session_apps(dsn) as (_, guarded, source),
        ):
            once = IdempotencyMiddleware(_app, helix=helix)
            marked = IdempotencyMiddleware(_marked, helix=helix, policy=_policy("marked"))
            session = IdempotencyMiddleware(
                guarded, helix=helix, policy=_policy("session"), sessions=source
            )
            return {
                "once": await counted(once, number, 1),
                "marked": await counted(marked, number, 1),
                "session": await counted(session, apart, 0),
            }

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
            asyncio.run(_beside_session(dsn, size)), load_average(),
        )  # fmt: skip


_HOLDS = {"<": lt, "<=": le, ">=": ge}
# What is measured, how it is taken from a round and written, and the bar for its median, if any.
_ROWS: tuple[tuple[str, Callable[[Figures], float], str, tuple[str, float] | None], ...] = (
    ("commits of a first keyed request", lambda r: r.commits["once"], "{:.2f}", ("<=", 2)),
    ("the same, with `helix_effect`", lambda r: r.commits["marked"], "{:.2f}", ("<=", 3)),
    (
        "the same, with `helix_session`, beside the endpoint's own",
        lambda r: r.commits["session"],
        "{:.2f}",
        ("<=", 0),
    ),
    ("beside its two calls", lambda r: r.beside_ms, "{:.2f} ms", ("<", 1)),
    (
        "beside its calls, with `helix_session`",
        lambda r: r.beside_session,
        "{:.2f} ms",
        ("<", 1),
    ),
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
        cells += [f"{r.beside_ms:.2f}", f"{r.commits['once']:.2f}", f"{r.load:.1f}"]
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
