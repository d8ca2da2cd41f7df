"""What observing costs: the duties that count and reconcile, and /metrics, at a million batches.

    python -m benchmarks.observe [--batches N | --quick] [--write FILE]

Batches of a thousand tenants are submitted and completed through the engine. Then the duties run at
their own intervals on a connection of their own while a client submits and completes batches; the
processor time of that connection's backend is divided by the time that passed. Last a service
starts, and a client in another process reads /metrics with the token of an operator.
"""

from __future__ import annotations

import argparse
import threading
import time
from collections import defaultdict
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from statistics import median, quantiles
from typing import TYPE_CHECKING

import httpx

from benchmarks import finished, workload
from benchmarks.arena import TENANTS, arena, tenant
from benchmarks.rounds import load_average
from benchmarks.service import served, write
from helixqueue.engine import duties, tokens
from helixqueue.postgres.database import Database

if TYPE_CHECKING:
    from benchmarks.arena import Arena

BEGIN, END = "<!-- observe: begin -->", "<!-- observe: end -->"
BATCHES, QUICK = 1_000_000, 20_000
SECONDS, QUICK_SECONDS = 125.0, 10.0  # that the duties run beside traffic
SCRAPES = 100
RECONCILIATION = ("reconcile", "audit")
MUST_PERCENT, MUST_MS = 2.0, 50.0
FEW_QUEUES = 100
CHUNK, PAUSE_S = 100, 0.2  # of the traffic beside the duties


@dataclass
class DutyCosts:
    """Processor time of the duties in seconds, and their longest run."""

    seconds: float = 0.0
    batches: int = 0  # of the traffic beside them
    cpu: dict[str, float] = field(default_factory=lambda: defaultdict(float))
    runs: dict[str, int] = field(default_factory=lambda: defaultdict(int))
    longest: dict[str, float] = field(default_factory=lambda: defaultdict(float))
    every: dict[str, float] = field(default_factory=dict)  # their intervals

    def percent(self, *names: str) -> float:
        """Of one core; a duty that ran counts with the interval from one run to the next."""
        return 100 * sum(
            self.cpu[name] / max(self.runs[name], 1) / self.every.get(name, self.seconds)
            for name in names
        )


def _cpu(pid: int) -> float:
    """Seconds that a process has spent on a processor."""
    return int(Path(f"/proc/{pid}/schedstat").read_text(encoding="utf-8").split()[0]) / 1e9


def run_duties(found: Arena, database: str, seconds: float) -> DutyCosts:
    """Run what is due as a service does, beside traffic."""
    costs, stop = DutyCosts(), threading.Event()
    traffic = threading.Thread(target=_traffic, args=(found, database, stop, costs))
    traffic.start()
    try:
        with Database.connect(found.dsn(database, "keeper")) as keeper:
            pid = keeper.connection.info.backend_pid
            _catch_up(keeper)
            costs.every = {row.duty: row.every_seconds for row in keeper.run(duties.list_duties())}
            began = time.monotonic()
            while time.monotonic() < began + seconds:
                before = _cpu(pid)
                done = keeper.run(duties.run_duty(actor="benchmark", limit=1_000))
                name = "(none due)" if done is None else done.duty
                costs.cpu[name] += _cpu(pid) - before
                costs.runs[name] += 1
                if done is None:
                    time.sleep(0.5)
                elif done.error is not None:
                    raise RuntimeError(f"duty {done.duty}: {done.error}")
                else:
                    costs.longest[name] = max(costs.longest[name], done.seconds)
            costs.seconds = time.monotonic() - began
    finally:
        stop.set()
        traffic.join()
    return costs


def _catch_up(keeper: Database) -> None:
    """Let the duties do what the load left: the figure is about the steady state."""
    idle = 0
    while idle < 3:
        idle = (
            idle + 1 if keeper.run(duties.run_duty(actor="benchmark", limit=1_000)) is None else 0
        )


def _traffic(found: Arena, database: str, stop: threading.Event, costs: DutyCosts) -> None:
    with Database.connect(found.dsn(database)) as store:
        client = workload.Client(store, "beside")
        for number in range(10**6):
            if stop.wait(PAUSE_S):
                break
            first = 10**8 + number * CHUNK
            workload.submit(store, tenant(number), range(first, first + CHUNK))
            costs.batches += client.round(CHUNK)
        while client.held:
            client.round(CHUNK)


@dataclass(frozen=True)
class ScrapeTimes:
    queues: int
    series: int
    kilobytes: float
    milliseconds: list[float]


def scrape(found: Arena, database: str, queues: int) -> ScrapeTimes:
    new = tokens.new_token()
    with Database.connect(found.dsn(database, "keeper")) as keeper:
        until = datetime.now(UTC) + timedelta(days=1)
        keeper.run(
            tokens.create(
                tenant=tenant(0), name=f"scraper-{queues}", token_hash=new.hash,
                scopes=(tokens.METRICS_SCOPE,), queues=None, expires_at=until,
            )
        )  # fmt: skip
    headers = {"Authorization": f"Bearer {new.token}"}
    with (
        served(found, database, (tenant(0),)) as service,
        httpx.Client(base_url=service.url, headers=headers) as http,
    ):
        times, text = [], ""
        for number in range(SCRAPES + 3):
            began = time.perf_counter()
            text = http.get("/metrics").raise_for_status().text
            if number >= 3:  # the first ones open connections and prepare statements
                times.append(1_000 * (time.perf_counter() - began))
    series = sum(not line.startswith("#") for line in text.splitlines())
    return ScrapeTimes(queues, series, len(text) / 1_000, times)


def drop_queues(found: Arena, database: str, kept: int) -> None:
    """Empty the figures of all queues but some, as if there were no others."""
    with found.admin(database) as connection:
        names = [tenant(number) for number in range(kept)]
        connection.execute("alter table helix.metric disable trigger a_guard")
        connection.execute(
            "delete from helix.metric where tenant <> all (%s) and tenant <> '*'", (names,)
        )
        connection.execute("alter table helix.metric enable always trigger a_guard")
        connection.execute("alter table helix.duty disable trigger a_guard")
        connection.execute("update helix.duty set next_at = 'infinity'")
        connection.execute("alter table helix.duty enable always trigger a_guard")


def _table(
    costs: DutyCosts, scrapes: list[ScrapeTimes], conditions: dict[str, str], batches: int
) -> str:
    percent = costs.percent(*RECONCILIATION)
    verdict = "met" if percent <= MUST_PERCENT else "**missed**"
    lines = [
        *(f"- {name}: {value}" for name, value in conditions.items()),
        "",
        f"| {batches:,} batches | figure | must | |",
        "|---|---|---|---|",
        f"| `reconcile` and `audit`, of one core | {percent:.2f} % | <= 2 % | {verdict} |",
        f"| counters and gauges (`metrics`), of one core | {costs.percent('metrics'):.2f} % | | |",
        f"| all duties, of one core | {100 * sum(costs.cpu.values()) / costs.seconds:.2f} % | | |",
    ]
    for times in scrapes:
        middle, last = median(times.milliseconds), quantiles(times.milliseconds, n=100)[98]
        verdict = "met" if middle <= MUST_MS else "**missed**"
        bar = f"<= {MUST_MS:g} ms | {verdict}" if times.queues == FEW_QUEUES else " | "
        lines.append(
            f"| /metrics of {times.queues:,} queues, {times.series:,} series, "
            f"{times.kilobytes:,.0f} KB: median (99th) | {middle:.1f} ms ({last:.1f} ms) | {bar} |"
        )
    lines += ["", "| duty | runs | processor time | longest run |", "|---|---|---|---|"]
    lines += [
        f"| {name} | {costs.runs[name]} | {cpu:.3f} s | {costs.longest[name]:.3f} s |"
        for name, cpu in sorted(costs.cpu.items(), key=lambda item: -item[1])
    ]
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.observe", description=__doc__)
    parser.add_argument("--batches", type=int, default=BATCHES, help="how many there are")
    parser.add_argument("--quick", action="store_true", help=f"{QUICK:,} batches")
    parser.add_argument("--write", type=Path, help="document whose table is replaced")
    options = parser.parse_args()
    batches = QUICK if options.quick else options.batches
    with arena(print) as found, found.database() as database:
        began = time.monotonic()
        finished.fill(found, database, batches, lambda _: None)
        print(f"loaded in {time.monotonic() - began:.0f} s")  # noqa: T201 - progress
        with found.admin(database) as connection:
            connection.execute(
                "do $$ begin create role keeper login; exception when duplicate_object then end $$"
            )
            connection.execute("grant helix_operator to keeper")
        found.settle_down()
        before = load_average()
        costs = run_duties(found, database, QUICK_SECONDS if options.quick else SECONDS)
        scrapes = [scrape(found, database, TENANTS)]
        drop_queues(found, database, FEW_QUEUES)
        scrapes.append(scrape(found, database, FEW_QUEUES))
        conditions = found.conditions()
    conditions["traffic"] = (
        f"{costs.batches / costs.seconds:.0f} batches per second submitted and completed, "
        f"{costs.seconds:.0f} s"
    )
    conditions["load"] = f"{before:.1f} before, {load_average():.1f} after"
    table = _table(costs, scrapes, conditions, batches)
    print(table)  # noqa: T201 - the answer
    if options.write is not None:
        write(options.write, table, "Observing", BEGIN, END)


if __name__ == "__main__":
    main()
