"""Reads over HTTP against their budget, on ten million batches.

    python -m benchmarks.reads [--batches N | --quick] [--keep DIR] [--write FILE]

With --keep the directory is loaded once and reused by later runs. The clients run in a separate
process and send every kind of read of the service, with a pause after each response: the budget
is about latency, not about throughput. What is read is chosen at random.
"""

from __future__ import annotations

import argparse
import json
import random
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import median, quantiles
from typing import TYPE_CHECKING
from urllib.parse import quote, urlencode

import httpx
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from benchmarks import reads_load
from benchmarks.arena import Arena, arena, tenant
from benchmarks.reads_load import LARGE, RARE_WORKER, SINGLE
from benchmarks.rounds import load_average
from benchmarks.service import run_client, served, write
from helixqueue.identity import key_text, stored_public_id

if TYPE_CHECKING:
    from datetime import datetime
    from uuid import UUID

DATABASE = "reads"
BEGIN, END = "<!-- reads: begin -->", "<!-- reads: end -->"
MUST_MS = 50.0
BATCHES, QUICK = 10_000_000, 100_000
CLIENTS = (1, 4)
PAUSE_S = 0.025  # for each client there is: at most 40 questions a second in all
EACH = 40  # of every kind, with every number of clients
CURSORS = 20  # of each kind of deep page
SMALL = tenant(7)


@dataclass(frozen=True)
class Samples:
    """Samples of the loaded data; of the large tenant unless named otherwise."""

    batches: list[tuple[UUID, str, datetime]]  # public id, identity, submitted
    ended: list[datetime]
    stale: str  # a tenant with stale writes on record
    refused: list[UUID]  # and its batches that have them
    tried: list[UUID]  # three times
    fences: list[str]


def take_samples(found: Arena, rng: random.Random) -> Samples:
    """Choose batches at random over the whole table, so that pages are not cached."""
    with found.admin(DATABASE) as connection:

        def some(query: str, *args: object) -> list[tuple[object, ...]]:
            return connection.execute(query.encode(), args).fetchall()

        [(last,)] = some("select max(id) from helix.batch")
        ids = [rng.randint(1, int(str(last))) for _ in range(4_000)]
        batches = some(
            "select b.key, b.identity, b.created_at from helix.batch b "
            "join helix.queue q on q.id = b.queue where q.tenant = %s and b.id = any (%s)",
            LARGE,
            ids,
        )
        ended = some(
            "select w.changed_at from helix.work w join helix.queue q on q.id = w.queue "
            "where q.tenant = %s and w.batch = any (%s) and w.state = 'COMPLETED'",
            LARGE,
            ids,
        )
        [(stale,)] = some(
            "select tenant from helix.refusal group by tenant order by count(*) desc limit 1"
        )
        refused = some(
            "select b.key from helix.refusal r join helix.batch b on b.id = r.batch "
            "where r.tenant = %s limit 100",
            stale,
        )
        tried = some(
            "select b.key from helix.work w join helix.batch b on b.id = w.batch "
            "join helix.queue q on q.id = w.queue "
            "where q.tenant = %s and q.name = 'qc' and w.attempt > 1 limit 100",
            LARGE,
        )
        fences = some("select key from helix.fence where tenant = %s limit 100", LARGE)
    rng.shuffle(batches)
    return Samples(
        [(_public(key), str(name), at) for key, name, at in batches],  # type: ignore[misc]
        [at for (at,) in ended],  # type: ignore[misc]
        str(stale),
        [_public(key) for (key,) in refused],
        [_public(key) for (key,) in tried],
        [key_text(_key(key)) for (key,) in fences],
    )


def _public(key: object) -> UUID:
    return stored_public_id(_key(key))


def _key(key: object) -> bytes:
    if not isinstance(key, bytes):
        raise TypeError(f"expected a key, got {key!r}")
    return key


STATES = ("PENDING", "ASSIGNED", "RUNNING", "COMPLETED", "FAILED", "CANCELLED")
Read = Callable[[], tuple[str, str]]  # tenant and path
Deep = Callable[..., Callable[[], str]]


def listed(tenant: str = LARGE, **filters: object) -> Read:
    """A list of batches; a filter may be a function, called anew each time."""

    def path() -> tuple[str, str]:
        values = {name: value() if callable(value) else value for name, value in filters.items()}
        return tenant, f"/v1/batches?{urlencode(values)}"

    return path


def plain(path: str, tenant: str = LARGE) -> Read:
    return lambda: (tenant, path)


def lists(
    samples: Samples, rng: random.Random, deep: Callable[..., Callable[[], str]]
) -> dict[str, Read]:
    """Lists of batches by name; `deep` makes what chooses a cursor far from the first page."""
    times = sorted(item[2] for item in samples.batches)

    def moment() -> str:
        return rng.choice(times).isoformat()

    def name() -> str:
        return rng.choice(samples.batches)[1]

    def worker() -> str:
        return f"gpu-{rng.randrange(200):03}"

    return {
        "all": listed(),
        "a page of 500": listed(limit=500),
        "one queue": listed(queue="bench"),
        **{state: listed(state=state) for state in STATES},
        "COMPLETED, one queue": listed(state="COMPLETED", queue="align"),
        "PENDING, one queue": listed(state="PENDING", queue="bench"),
        "FAILED, a queue without": listed(state="FAILED", queue="bench"),
        "PENDING, a queue without": listed(state="PENDING", queue="align"),
        "before a time": listed(until=moment),
        "since the last": listed(since=times[-1].isoformat()),
        "PENDING before a time": listed(state="PENDING", until=moment),
        "COMPLETED before a time": listed(state="COMPLETED", until=moment),
        "deep page": listed(after=deep(times)),
        "deep page, PENDING": listed(state="PENDING", after=deep(times, state="PENDING")),
        "deep page, COMPLETED": listed(
            state="COMPLETED", after=deep(samples.ended, state="COMPLETED")
        ),
        "held by a worker": listed(worker=worker),
        "held by an unknown worker": listed(worker="nobody"),
        "COMPLETED by a worker": listed(state="COMPLETED", worker=worker),
        "COMPLETED by a worker of long ago": listed(state="COMPLETED", worker=RARE_WORKER),
        "COMPLETED by an unknown worker": listed(state="COMPLETED", worker="nobody"),
        "identity": listed(identity=name),
        "identity, another spelling": listed(identity=lambda: name().replace("\u00e4", "a\u0308")),
        "identity, state and time": listed(identity=name, state="COMPLETED", until=moment),
        "identity of nothing": listed(identity="nothing"),
        "a small tenant's": listed(SMALL),
        "a small tenant's PENDING": listed(SMALL, state="PENDING"),
        "a small tenant's COMPLETED": listed(SMALL, state="COMPLETED"),
        "the only batch of a tenant": listed(SINGLE),
        "the only batch, PENDING": listed(SINGLE, state="PENDING"),
    }


def others(samples: Samples, rng: random.Random) -> dict[str, Read]:
    """All other reads by name."""

    def about(suffix: str, ids: list[UUID], tenant: str = LARGE) -> Read:
        return lambda: (tenant, f"/v1/batches/{rng.choice(ids)}{suffix}")

    everyone = [item[0] for item in samples.batches]
    return {
        "batch detail": about("", everyone),
        "batch detail with payload": about("?payload=true", everyone),
        "batch detail with refusals": about("", samples.refused, samples.stale),
        "batch detail, three attempts": about("", samples.tried),
        "outcome (a wait that does not wait)": about("/outcome", everyone),
        "outcome without result": about("/outcome?result=false", everyone),
        "queues": plain("/v1/queues"),
        "a small tenant's queues": plain("/v1/queues", SMALL),
        "one queue's counts": plain("/v1/queues/bench"),
        "one queue's settings": plain("/v1/queues/bench/settings"),
        "failed": plain("/v1/batches?state=FAILED"),
        "failed, one queue": plain("/v1/batches?state=FAILED&queue=qc"),
        "failed, one failure class": plain("/v1/batches?failure=Broken"),
        "workers": plain("/v1/workers"),
        "fences": plain("/v1/fences"),
        "fences by name": plain("/v1/fences?name=mail"),
        "fences in doubt": plain("/v1/fences?state=IN_DOUBT"),
        "fence": lambda: (LARGE, f"/v1/fences/{quote(rng.choice(samples.fences))}"),
        "tokens": plain("/v1/tokens"),
        "metrics": plain("/metrics"),
        "health": plain("/health/ready"),
    }


def cursors(url: str, token: str, times: list[datetime], **filters: str) -> list[str]:
    """The `next` of pages before these times: cursors are sealed, so only a service makes them."""
    found = []
    with httpx.Client(base_url=url, headers={"Authorization": f"Bearer {token}"}) as http:
        for at in times:
            query = {"limit": 1, "until": at.isoformat(), **filters}
            page = http.get("/v1/batches", params=query).raise_for_status().json()
            found += [] if page["next"] is None else [page["next"]]
    return found


def timed(found: Arena) -> dict[int, dict[str, list[float]]]:
    """Milliseconds by number of clients and kind."""
    rng = random.Random(7)  # noqa: S311 - the same questions every time
    samples = take_samples(found, rng)
    tenants = tuple({LARGE, SMALL, SINGLE, samples.stale})
    with served(found, DATABASE, tenants) as service:
        tokens = dict(zip(tenants, service.tokens, strict=True))

        def deep(times: list[datetime], **filters: str) -> Callable[[], str]:
            some = rng.sample(times, min(CURSORS, len(times)))
            return partial(rng.choice, cursors(service.url, tokens[LARGE], some, **filters))

        made = lists(samples, rng, deep) | others(samples, rng)

        def lines(each: int) -> str:
            names = [name for name in made for _ in range(each)]
            rng.shuffle(names)
            values = []
            for name in names:
                tenant, path = made[name]()
                values.append(f"{name}\t{tokens[tenant]}\t{path}")
            return "\n".join(values)

        # The first requests of a process import modules, open connections and make plans.
        run_client("read", service.url, 4, 0, lines=lines(8))
        took: dict[int, dict[str, list[float]]] = {}
        for clients in CLIENTS:
            by_name: dict[str, list[float]] = defaultdict(list)
            for line in run_client(
                "read", service.url, clients, PAUSE_S * clients, lines=lines(EACH)
            ).splitlines():
                name, seconds = line.split("\t")
                by_name[name].append(float(seconds) * 1000)
            took[clients] = {name: by_name[name] for name in made}
    return took


def _p99(figures: list[float]) -> float:
    return quantiles(figures, n=100, method="inclusive")[98]


def _table(took: dict[int, dict[str, list[float]]], conditions: dict[str, str]) -> str:
    heads = [f"{what}, {clients} client{'s' * (clients > 1)}"
             for clients in took for what in ("median", "99th", "longest")]  # fmt: skip
    every = {
        clients: [item for figures in names.values() for item in figures]
        for clients, names in took.items()
    }

    def row(name: str, figures: list[list[float]]) -> str:
        cells = [f"{f(item):.1f}" for item in figures for f in (median, _p99, max)]
        return f"| {' | '.join([name, *cells])} |"

    worst = max(_p99(item) for item in every.values())
    slow = [
        name for name in took[1] if any(_p99(names[name]) >= MUST_MS for names in took.values())
    ]
    verdict = "met" if worst < MUST_MS else "missed"
    return "\n".join(
        [
            *(f"- {name}: {value}" for name, value in conditions.items()),
            "",
            f"99th percentile of all reads: {worst:.1f} ms, must be < {MUST_MS:g} ms: {verdict}.",
            f"Kinds that miss it by themselves: {', '.join(slow) or 'none'}.",
            "",
            f"| milliseconds | {' | '.join(heads)} |",
            "|---" * (len(heads) + 1) + "|",
            row("**all reads**", list(every.values())),
            *(row(name, [names[name] for names in took.values()]) for name in took[1]),
        ]
    )


def load_once(found: Arena, keep: Path | None, batches: int) -> None:
    """Load once: a marker file in a kept directory records its size."""
    values = None if keep is None else keep / "loaded.json"
    if values is not None and values.exists():
        holds = json.loads(values.read_text(encoding="utf-8"))["batches"]
        if holds != batches:
            raise SystemExit(f"{keep} holds {holds:,} batches, asked for {batches:,}")
        return
    if found.has(DATABASE):
        raise SystemExit(f"{keep}: loading did not finish; remove the directory and load again")
    found.create(DATABASE)
    with Progress(
        TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn()
    ) as bar:
        steps = {
            "submitted": bar.add_task("submitted", total=batches),
            "finished": bar.add_task("finished", total=reads_load.to_finish(batches)),
        }
        reads_load.load(found, DATABASE, batches, lambda step, n: bar.advance(steps[step], n))
    if values is not None:
        values.write_text(json.dumps({"batches": batches}), encoding="utf-8")


def _held(found: Arena) -> str:
    with found.admin(DATABASE) as connection:
        rows = connection.execute(
            "select c.relname, c.reltuples::bigint from pg_class c "
            "where c.relnamespace = 'helix'::regnamespace and c.relname = any (%s)",
            (["batch", "work", "entry", "ended", "result", "fence"],),
        ).fetchall()
    return ", ".join(f"{name} {number:,}" for name, number in sorted(rows))


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.reads", description=__doc__)
    parser.add_argument("--batches", type=int, default=BATCHES, help="how many there are")
    parser.add_argument("--quick", action="store_true", help=f"{QUICK:,} batches")
    parser.add_argument("--keep", type=Path, help="load this directory once and reuse it")
    parser.add_argument("--write", type=Path, help="document whose table is replaced")
    options = parser.parse_args()
    batches = QUICK if options.quick else options.batches
    with arena(print, options.keep) as found:
        load_once(found, options.keep, batches)
        reads_load.lease(found, DATABASE)
        found.settle_down()
        before = load_average()
        took = timed(found)
        conditions = found.conditions()
        held = _held(found)
    conditions["rows"] = f"{batches:,} batches; by the statistics: {held}"
    pauses = " and ".join(f"{PAUSE_S * 1000 * clients:g} ms with {clients}" for clients in CLIENTS)
    conditions["reads"] = f"{EACH} of each kind; a client pauses after each answer, {pauses}"
    conditions["load"] = f"{before:.1f} before, {load_average():.1f} after"
    table = _table(took, conditions)
    print(table)  # noqa: T201 - the answer
    if options.write is not None:
        write(options.write, table, "Reads", BEGIN, END)


if __name__ == "__main__":
    main()
