"""Reads of the dashboard's pages over HTTP against their budget, on a large database.

    python -m benchmarks.dashboard [--batches N | --quick] [--keep DIR]

The database is that of benchmarks.reads, so a kept directory serves both. Before the reads a duty
counts the ledger, and the rollup is filled as if the last two days had been busy: every minute of
every queue of the large tenant.
"""

from __future__ import annotations

import argparse
import random
import time
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING
from urllib.parse import urlencode

from benchmarks import reads_load
from benchmarks.arena import Arena, arena
from benchmarks.reads import BATCHES, DATABASE, QUICK, Samples, load_once, take_samples
from benchmarks.reads_load import LARGE
from benchmarks.rounds import load_average
from benchmarks.service import run_client, served
from helixqueue.engine import duties
from helixqueue.postgres.database import Database

if TYPE_CHECKING:
    from collections.abc import Callable

MUST_MS = 200.0
EACH = 20
_BUSY = """
insert into helix.rollup
select %(tenant)s, n.name, s.seconds, t.at, 100, 5, 95, 2, 1, 1, 1, 0,
       array_fill(3, array[40]), array_fill(3, array[50])
from (select q.name from helix.queue q where q.tenant = %(tenant)s union all select '') n
cross join (values (60, interval '47 hours'), (3600, interval '60 days')) as s (seconds, kept)
cross join lateral generate_series(
  date_bin(make_interval(secs => s.seconds), now() - s.kept, 'epoch'), now(),
  make_interval(secs => s.seconds)) as t (at)
on conflict do nothing
"""


def pages(samples: Samples, rng: random.Random) -> dict[str, Callable[[], tuple[str, str]]]:
    """The reads of pages by name: tenant and path."""

    def path(text: str, tenant: str = LARGE) -> Callable[[], tuple[str, str]]:
        return lambda: (tenant, text)

    def batch(suffix: str = "") -> Callable[[], tuple[str, str]]:
        return lambda: (LARGE, f"/v1/batches/{rng.choice(samples.batches)[0]}{suffix}")

    def search(text: Callable[[], str]) -> Callable[[], tuple[str, str]]:
        return lambda: (LARGE, f"/v1/search?{urlencode({'text': text()})}")

    return {
        "overview": path("/v1/overview"),
        "series of an hour": path("/v1/series"),
        "series of a day, one queue": path("/v1/series?period=1d&queue=bench"),
        "series of 30 days": path("/v1/series?period=30d"),
        "late writes": path("/v1/refusals", samples.stale),
        "late writes, one queue": path("/v1/refusals?queue=bench", samples.stale),
        "activity": path("/v1/activity"),
        "waiting longest": path("/v1/queues/bench/waiting"),
        "batch": batch(),
        "proof of a batch": batch("/proof"),
        "search, a sample": search(lambda: rng.choice(samples.batches)[1]),
        "search, begin of an id": search(lambda: str(rng.choice(samples.batches)[0])[:8]),
        "search, nothing": search(lambda: "nothing-of-this-name"),
    }


def fill_rollup(found: Arena) -> tuple[float, int]:
    """Count the ledger, then make the last days busy; seconds that counting took, and its runs."""
    began, runs = time.monotonic(), 0
    with Database.connect(found.dsn(DATABASE)) as store:
        while (done := store.run(duties.run_duty(actor="bench", limit=1_000))) is not None:
            runs += done.duty == "metrics"
    took = time.monotonic() - began
    with found.admin(DATABASE) as connection, connection.transaction():
        connection.execute("alter table helix.rollup disable trigger a_guard")
        connection.execute(_BUSY, {"tenant": LARGE})
        connection.execute("alter table helix.rollup enable always trigger a_guard")
    return took, runs


def timed(found: Arena) -> dict[str, list[float]]:
    """Milliseconds of each read, one client."""
    rng = random.Random(7)  # noqa: S311 - the same questions every time
    samples = take_samples(found, rng)
    tenants = (LARGE, samples.stale)
    with served(found, DATABASE, tenants) as service:
        tokens = dict(zip(tenants, service.tokens, strict=True))

        def lines(each: int) -> str:
            values = []
            for name, make in pages(samples, rng).items():
                for _ in range(each):
                    tenant, path = make()
                    values.append(f"{name}\t{tokens[tenant]}\t{path}")
            rng.shuffle(values)
            return "\n".join(values)

        # The first requests of a process import modules, open connections and make plans.
        run_client("read", service.url, 1, 0, lines=lines(3))
        took: dict[str, list[float]] = {name: [] for name in pages(samples, rng)}
        for line in run_client("read", service.url, 1, 0.02, lines=lines(EACH)).splitlines():
            name, seconds = line.split("\t")
            took[name].append(float(seconds) * 1000)
    return took


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.dashboard", description=__doc__)
    parser.add_argument("--batches", type=int, default=BATCHES, help="how many there are")
    parser.add_argument("--quick", action="store_true", help=f"{QUICK:,} batches")
    parser.add_argument("--keep", type=Path, help="load this directory once and reuse it")
    options = parser.parse_args()
    batches = QUICK if options.quick else options.batches
    with arena(print, options.keep) as found:
        load_once(found, options.keep, batches)
        reads_load.lease(found, DATABASE)
        seconds, runs = fill_rollup(found)
        found.settle_down()
        before = load_average()
        took = timed(found)
    lines = [
        f"{batches:,} batches; duties {seconds:.1f} s, {runs} runs of metrics; load {before:.1f}",
        "",
        "| milliseconds | median | longest |",
        "|---|---|---|",
        *(f"| {name} | {median(item):.1f} | {max(item):.1f} |" for name, item in took.items()),
        "",
        f"Every page must be below {MUST_MS:g} ms: "
        + ("met." if max(map(max, took.values())) < MUST_MS else "missed."),
    ]
    print("\n".join(lines))  # noqa: T201 - the answer


if __name__ == "__main__":
    main()
