"""Pages of the dashboard over HTTP against their budget, on a large database.

    python -m benchmarks.dashboard [--batches N | --quick] [--keep DIR]

Up to a million batches are loaded as for benchmarks.reads, above that their finished ones are
copied (benchmarks.multiply). Before the copies a duty counts the ledger, and the rollup is filled
as if the last two days had been busy: every minute of every queue of the large tenant.
"""

from __future__ import annotations

import argparse
import random
import time
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING
from urllib.parse import quote, urlencode

import httpx

from benchmarks import reads_load
from benchmarks.arena import Arena, arena
from benchmarks.multiply import multiply
from benchmarks.reads import BATCHES, DATABASE, QUICK, Samples, load_once, take_samples
from benchmarks.reads_load import LARGE
from benchmarks.rounds import load_average
from benchmarks.service import run_client, served
from helixqueue.engine import duties, tokens
from helixqueue.postgres.database import Database

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from uuid import UUID

MUST_MS = 200.0
EACH = 20
BASE = 1_000_000  # batches that are loaded through the engine; above that, copies
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
    """The pages by name: tenant and path."""

    def path(text: str, tenant: str = LARGE) -> Callable[[], tuple[str, str]]:
        return lambda: (tenant, text)

    def batch(ids: Sequence[UUID], tenant: str = LARGE) -> Callable[[], tuple[str, str]]:
        return lambda: (tenant, f"/batches/{rng.choice(ids)}")

    def search(text: Callable[[], str]) -> Callable[[], tuple[str, str]]:
        return lambda: (LARGE, f"/v1/search?{urlencode({'text': text()})}")

    def sample() -> tuple[str, str]:
        return LARGE, f"/batches?{urlencode({'identity': rng.choice(samples.batches)[1]})}"

    return {
        "overview": path("/"),
        "queues": path("/queues"),
        "queue, an hour": path("/queues/bench"),
        "queue, a day": path("/queues/align?period=1d"),
        "queue, 30 days": path("/queues/align?period=30d"),
        "batches": path("/batches"),
        **{
            f"batches, {state}": path(f"/batches?state={state}")
            for state in ("PENDING", "RUNNING", "COMPLETED", "FAILED", "CANCELLED")
        },
        "batches, a failure": path("/batches?state=FAILED&failure=Contaminated"),
        "batches, a sample": sample,
        "batches, a worker": path("/batches?worker=gpu-007&state=COMPLETED"),
        "batch": batch([row[0] for row in samples.batches]),
        "batch, three attempts": batch(samples.tried),
        "batch, refused write": batch(samples.refused, samples.stale),
        "retry all that match, dry run": path("/select/retry?state=FAILED"),
        "workers": path("/workers"),
        "worker": path("/workers/gpu-007"),
        "proof": path("/proof"),
        "refusals": path("/refusals", samples.stale),
        "refusals, one queue": path("/refusals?queue=bench", samples.stale),
        "identities": path("/identities?queue=align"),
        "fences": path("/fences"),
        "fences in doubt": path("/fences?state=IN_DOUBT"),
        "fence": lambda: (LARGE, f"/fences/{quote(rng.choice(samples.fences))}"),
        "ledgers": path("/ledgers"),
        "feeds": path("/feeds"),
        "intakes": path("/intakes"),
        "dead letters": path("/letters?status=all"),
        "activity": path("/activity"),
        "tokens": path("/tokens"),
        "HTTP API": path("/docs"),
        "search, a sample": search(lambda: rng.choice(samples.batches)[1]),
        "search, begin of an id": search(lambda: str(rng.choice(samples.batches)[0])[:8]),
        "search, nothing": path("/search?q=nothing-of-this-name"),
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


def sign_in(found: Arena, url: str, tenant: str) -> str:
    """The secret of a new session."""
    code = tokens.new_token("hl_")
    with Database.connect(found.dsn(DATABASE, "keeper")) as store:
        store.run(tokens.offer_login(tenant=tenant, code_hash=code.hash, actor="bench"))
    answer = httpx.post(f"{url}/login", data={"code": code.token}, headers={"Origin": url})
    return next(iter(answer.cookies.values()))


def load(found: Arena, keep: Path | None, batches: int) -> None:
    """Load the base through the engine, count it, and copy it."""
    copied = None if keep is None else keep / "copied.json"
    if copied is not None and copied.exists():
        return
    load_once(found, keep, min(batches, BASE))
    reads_load.lease(found, DATABASE)
    seconds, runs = fill_rollup(found)
    print(f"duties {seconds:.1f} s, {runs} runs of metrics")  # noqa: T201
    if batches > BASE:
        multiply(found, DATABASE, batches, reads_load.DRAINED)
    if copied is not None:
        copied.write_text(str(batches), encoding="utf-8")


def timed(found: Arena) -> dict[str, list[float]]:
    """Milliseconds of each read, one client."""
    rng = random.Random(7)  # noqa: S311 - the same questions every time
    samples = take_samples(found, rng)
    tenants = (LARGE, samples.stale)
    with served(found, DATABASE, tenants) as service:
        programs = dict(zip(tenants, service.tokens, strict=True))
        people = {tenant: sign_in(found, service.url, tenant) for tenant in tenants}

        def lines(each: int) -> str:
            values = []
            for name, make in pages(samples, rng).items():
                for _ in range(each):
                    tenant, path = make()
                    who = programs if path.startswith("/v1/") else people
                    values.append(f"{name}\t{who[tenant]}\t{path}")
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
        load(found, options.keep, batches)
        found.settle_down()
        before = load_average()
        took = timed(found)
    lines = [
        f"{batches:,} batches; load {before:.1f}",
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
