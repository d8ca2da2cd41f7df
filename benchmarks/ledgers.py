"""User ledgers and feeds: `python -m benchmarks.ledgers [--quick] [--write FILE]`.

Every bar but that of the feed is a ratio of figures taken back to back on one server, in rounds.
Payloads have about 100 bytes. A bulk call has 1,000 rows, for a ledger and for a queue alike.
"""

from __future__ import annotations

import argparse
import itertools
import time
from dataclasses import dataclass
from operator import ge
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING

import psycopg

from benchmarks.arena import Arena, arena
from benchmarks.rounds import load_average
from helixqueue import HelixQueue, Machine, NewEvent, Queue, Submission

if TYPE_CHECKING:
    from collections.abc import Callable

TENANT = "shop"
PAGE = 500
BEGIN, END = "<!-- ledgers: begin -->", "<!-- ledgers: end -->"
MACHINE = Machine({"REQUESTED": ["CONFIRMED"], "CONFIRMED": ["LAUNCHED"], "LAUNCHED": ["LANDED"]})
KINDS = ("REQUESTED", "CONFIRMED", "LAUNCHED", "LANDED")
PAYLOAD = {"pad": "north", "battery": 81, "position": [46.5, 8.1], "note": "x" * 40}
_numbers = itertools.count(1)


@dataclass(frozen=True)
class LedgerFigures:
    """One round, per second."""

    raw: float  # one-row commits, one client
    append: float  # appends of one event, one client
    submit_bulk: float  # batches, in calls of 1,000
    append_bulk: float  # events of entities with four each, in calls of 1,000
    feed: float  # events, in pages of 500 with one row of the consumer's each page and one commit
    load: float


def _timed(count: int, act: Callable[[], object]) -> float:
    began = time.perf_counter()
    act()
    return count / (time.perf_counter() - began)


def _raw(dsn: str, count: int) -> float:
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute("create table if not exists public.raw (n bigint primary key)")
        base = next(_numbers) * 1_000_000

        def insert() -> None:
            for number in range(count):
                connection.execute("insert into public.raw values (%s)", (base + number,))

        return _timed(count, insert)


def _events(count: int, prefix: str) -> list[NewEvent]:
    """Four events of each entity, one entity after the other within a call."""
    return [
        NewEvent(f"{prefix}-{n // 4}", n % 4 + 1, KINDS[n % 4], PAYLOAD, "alp-1")
        for n in range(count)
    ]


def _round(arena: Arena, single: int, bulk: int) -> LedgerFigures:
    with arena.database() as database:
        dsn = arena.dsn(database)
        with arena.admin(database) as connection:
            connection.execute("grant create on schema public to public")
        with HelixQueue(dsn, tenant=TENANT) as helix:
            ledger = helix.ledger("bench", MACHINE)
            ledger.append_many(_events(2_000, "warm"))
            raw = _raw(dsn, single)

            def append() -> None:
                for event in _events(single, "one"):
                    if not ledger.append(*event[:4], node=event.node).is_new:
                        raise RuntimeError("expected a new event")

            for event in _events(40, "warm-one"):
                ledger.append(*event[:4])
            appended = _timed(single, append)
            queue = Queue("bench-ledgers")
            rows = [Submission(f"s-{n}", PAYLOAD) for n in range(bulk)]
            helix.submit_many(queue, [Submission(f"w-{n}", PAYLOAD) for n in range(2_000)])
            submitted = _timed(bulk, lambda: helix.submit_many(queue, rows))
            events = _events(bulk, "many")
            written = _timed(bulk, lambda: ledger.append_many(events))
            return LedgerFigures(
                raw, appended, submitted, written, _follow(helix, dsn), load_average()
            )


def _follow(helix: HelixQueue, dsn: str) -> float:
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute("create table if not exists public.seen (events bigint)")
    feed = helix.feed("bench", ledger="bench")
    count = 0
    began = time.perf_counter()
    for page in feed.pages(PAGE, until_idle=True):
        with feed.transaction() as tx:
            tx.execute("insert into public.seen values (%s)", (len(page),))
        count += len(page)
    return count / (time.perf_counter() - began)


# What is measured, how it is taken from a round and written, and the bar for its median.
_ROWS: tuple[tuple[str, Callable[[LedgerFigures], float], str, float], ...] = (
    ("append one vs. a raw one-row commit", lambda r: r.append / r.raw, "{:.2f}x", 0.4),
    ("bulk append vs. bulk submit", lambda r: r.append_bulk / r.submit_bulk, "{:.2f}x", 0.5),
    (f"feed in pages of {PAGE}, one commit each", lambda r: r.feed, "{:,.0f}/s", 20_000),
)


def _report(rounds: list[LedgerFigures]) -> str:
    lines = ["| what | median | lowest | highest | must | |", "|---|---|---|---|---|---|"]
    for what, take, form, bar in _ROWS:
        figures = [take(round_) for round_ in rounds]
        shown = (form.format(n) for n in (median(figures), min(figures), max(figures)))
        verdict = "met" if ge(median(figures), bar) else "missed"
        lines.append(f"| {' | '.join([what, *shown, f'>= {form.format(bar)}', verdict])} |")
    lines += ["", "Each round, per second:", ""]
    lines.append("| raw commit | append one | bulk submit | bulk append | feed | load |")
    lines.append("|---|---|---|---|---|---|")
    for r in rounds:
        rates = (r.raw, r.append, r.submit_bulk, r.append_bulk, r.feed)
        lines.append(f"| {' | '.join([f'{rate:,.0f}' for rate in rates])} | {r.load:.1f} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="one short round")
    parser.add_argument("--write", type=Path, help="put the table into this document")
    options = parser.parse_args()
    rounds, single, bulk = (1, 400, 10_000) if options.quick else (3, 2_000, 40_000)
    with arena(print) as found:
        table = _report([_round(found, single, bulk) for _ in range(rounds)])
    print(table)  # noqa: T201 - the answer
    if options.write is not None:
        text = options.write.read_text(encoding="utf-8")
        if BEGIN not in text:
            text += f"\n## Ledgers and feeds\n\n{BEGIN}\n{END}\n"
        head, _, rest = text.partition(BEGIN)
        tail = rest.partition(END)[2]
        options.write.write_text(f"{head}{BEGIN}\n\n{table}\n\n{END}{tail}", encoding="utf-8")


if __name__ == "__main__":
    main()
