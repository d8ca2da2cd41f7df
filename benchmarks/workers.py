"""Workers against their budgets: `python -m benchmarks.workers [--quick] [--write FILE]`.

No-op handlers, exact completion, the full ledger; peers do the same jobs in the same run, each in
its fastest mode. Every bar is a ratio of figures taken back to back on one server, in rounds.
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import subprocess
import sys
import time
from collections import defaultdict
from contextlib import contextmanager
from pathlib import Path
from statistics import median, quantiles
from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table

from benchmarks import peers
from benchmarks.arena import ADMIN, POOL, Arena, arena
from benchmarks.rounds import load_average
from benchmarks.worker_process import LEASE_S, TENANT, bench, brief
from helixqueue import HelixQueue, Submission

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from datetime import datetime

BEGIN, END = "<!-- workers: begin -->", "<!-- workers: end -->"
_TICKS = os.sysconf("SC_CLK_TCK")
_STATEMENTS = (
    "select pid, query_start from pg_stat_activity "
    "where datname = %s and backend_type = 'client backend' and query_start is not null"
)
_IDLE_SECONDS = 10.0
# Row: what it is, the bar, how it is shown, whether the measure should be high.
ROWS: dict[str, tuple[str, float, str, bool]] = {
    "graphile": ("drain, 1 process, vs. graphile-worker, batched acks", 0.5, "x", True),
    "pgqueuer": ("drain, 1 process, vs. pgqueuer", 1.2, "x", True),
    "graphile 2": ("drain, 2 processes, vs. graphile-worker, batched acks, 2", 0.5, "x", True),
    "procrastinate": ("one by one, 16 slots, vs. procrastinate, 16", 2.0, "x", True),
    "p50": ("submit to start, idle worker, median", 6.0, " ms", False),
    "p99": ("submit to start, idle worker, 99th of 100", 20.0, " ms", False),
    "recovery": ("start of a killed worker's batch elsewhere, in leases", 2.0, "x", False),
    "cpu": ("idle worker: processor", 1.0, " %", False),
    "statements": ("idle worker: statements", 2.0, "/s", False),
}


class Bench:
    def __init__(self, arena: Arena, *, jobs: int, peers_there: set[str]) -> None:
        self.arena = arena
        self.jobs = jobs
        self.peers_there = peers_there
        self.found: dict[str, list[float]] = defaultdict(list)
        self.beside: dict[str, list[float]] = defaultdict(list)  # absolute rates

    def round(self) -> None:
        one = self._ours("drain", self.jobs, 1)
        self._beside(peers.GRAPHILE, "graphile", one, self.jobs, 1)
        self._beside(peers.PGQUEUER, "pgqueuer", one, self.jobs, 1)
        two = self._ours("drain", self.jobs, 2)
        self._beside(peers.GRAPHILE, "graphile 2", two, self.jobs, 2)
        few = self.jobs // 10
        slow = self._ours("one", few, 1)
        self._beside(peers.PROCRASTINATE, "procrastinate", slow, few, 1)
        self._latency()
        self._recovery()

    def _ours(self, mode: str, jobs: int, processes: int) -> float:
        with self._queue() as (dsn, helix):
            sheet = (Submission(f"s-{n}", {"n": n}) for n in range(jobs))
            helix.submit_many(bench, sheet)
            self.arena.analyze(_name(dsn))
            rate = peers.drained([_worker(mode, dsn)] * processes, jobs)
        self.beside[f"ours, {mode}, {processes}"].append(rate)
        return rate

    def _beside(self, peer: peers.Peer, row: str, ours: float, jobs: int, processes: int) -> None:
        if peer.name not in self.peers_there:
            return
        with self.arena.database(empty=True) as name:
            theirs = peer.drain(self.arena.dsn(name, ADMIN), jobs=jobs, processes=processes)
        self.beside[f"{peer.name}, {processes}"].append(theirs)
        self.found[row].append(ours / theirs)

    def _latency(self) -> None:
        with self._queue() as (dsn, helix), _started("tell", dsn) as process:
            assert process.stdout is not None  # noqa: S101 - told to be a pipe
            waits = []
            for n in range(120):
                helix.submit(bench, identity=f"l-{n}", payload={"at": time.monotonic()})
                waits.append(float(process.stdout.readline()) * 1_000)
                time.sleep(random.uniform(0.03, 0.06))  # noqa: S311
            # The first ones meet a worker that starts up.
            self.found["p50"].append(median(waits[20:]))
            self.found["p99"].append(quantiles(waits[20:], n=100)[98])
            before = _processor(process.pid)
            statements = self._statements_in_a_while(dsn)
            after = _processor(process.pid)
            process.kill()
            process.wait()
            self.found["cpu"].append((after - before) / _IDLE_SECONDS * 100)
            self.found["statements"].append(statements / _IDLE_SECONDS)

    def _statements_in_a_while(self, dsn: str) -> int:
        """Of the clients of this database, by when each began.

        The server's own counters are no help: a session that rests hands them in ten seconds late.
        """
        seen: set[tuple[int, datetime]] = set()
        with self.arena.admin("postgres") as connection:
            end = time.monotonic() + _IDLE_SECONDS
            while time.monotonic() < end:
                seen.update(connection.execute(_STATEMENTS, (_name(dsn),)).fetchall())
                time.sleep(0.02)
        return len(seen) - len({pid for pid, _ in seen})  # each has one from before

    def _recovery(self) -> None:
        with self._queue() as (dsn, helix), _started("hang", dsn) as first:
            assert first.stdout is not None  # noqa: S101 - told to be a pipe
            helix.submit(brief, identity="once", payload={})
            first.stdout.readline()
            with _started("hang", dsn) as second:
                assert second.stdout is not None  # noqa: S101 - told to be a pipe
                time.sleep(1)  # until it waits
                killed = time.monotonic()
                first.send_signal(signal.SIGKILL)
                again = float(second.stdout.readline().split()[0])
        self.found["recovery"].append((again - killed) / LEASE_S)

    @contextmanager
    def _queue(self) -> Iterator[tuple[str, HelixQueue]]:
        with self.arena.database() as name:
            dsn = self.arena.dsn(name, POOL)
            with HelixQueue(dsn, tenant=TENANT) as helix:
                for queue in (bench, brief):
                    helix.submit(queue, identity="warm", payload={})
                helix.cancel(
                    helix.submit(bench, identity="warm", payload={}).receipt, reason="warm"
                )
                helix.cancel(
                    helix.submit(brief, identity="warm", payload={}).receipt, reason="warm"
                )
                yield dsn, helix


def _name(dsn: str) -> str:
    return dsn.partition("@/")[2].partition("?")[0]


def _worker(mode: str, dsn: str) -> list[str]:
    return [sys.executable, "-m", "benchmarks.worker_process", mode, dsn]


@contextmanager
def _started(mode: str, dsn: str) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(_worker(mode, dsn), stdout=subprocess.PIPE, text=True)
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def _processor(pid: int) -> float:
    """Seconds of a process and its children that live."""
    total = 0.0
    for one in (pid, *_children(pid)):
        fields = Path(f"/proc/{one}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
        total += (int(fields[11]) + int(fields[12])) / _TICKS
    return total


def _children(pid: int) -> list[int]:
    path = Path(f"/proc/{pid}/task/{pid}/children")
    return [int(word) for word in path.read_text(encoding="utf-8").split()]


def _installed(say: Callable[[str], None]) -> set[str]:
    there = set()
    for peer in (peers.GRAPHILE, peers.PGQUEUER, peers.PROCRASTINATE):
        try:
            peer.install(say)
            there.add(peer.name)
        except peers.PeerError as error:
            say(f"{peer.name} is left out: {error}")
    return there


def _lines(found: dict[str, list[float]]) -> list[tuple[str, str, str, str, str]]:
    lines = []
    for row, (title, bar, unit, high) in ROWS.items():
        sign = ">=" if high else "<="
        if not (taken := found.get(row)):
            lines.append((title, "-", "-", f"{sign} {bar:g}{unit}", "not measured"))
            continue
        middle = median(taken)
        verdict = "met" if (middle >= bar if high else middle <= bar) else "missed"
        spread = f"{min(taken):.2f} to {max(taken):.2f}"
        lines.append((title, f"{middle:.2f}{unit}", spread, f"{sign} {bar:g}{unit}", verdict))
    return lines


def _markdown(bench: Bench, conditions: dict[str, str], rounds: int, load: float) -> str:
    told = [f"- {name}: {value}" for name, value in conditions.items()]
    told += [f"- run: {rounds} rounds, medians; {bench.jobs:,} jobs a drain; load {load:.1f}", ""]
    told += ["|  | measured | range | must | verdict |", "|---|---|---|---|---|"]
    told += [f"| {' | '.join(line)} |" for line in _lines(bench.found)]
    rates = ", ".join(f"{name}: {median(taken):,.0f}" for name, taken in bench.beside.items())
    return "\n".join([*told, "", f"Jobs a second, medians: {rates}."])


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.workers", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="one small round")
    parser.add_argument("--write", type=Path, metavar="FILE", help="renew the table in this page")
    parser.add_argument("--jobs", type=int, help="of a drain; 20,000 unless said, 5,000 if quick")
    options = parser.parse_args()
    console = Console()
    rounds, jobs = (1, 5_000) if options.quick else (3, 20_000)
    jobs = options.jobs or jobs
    there = _installed(console.print)
    with arena(console.print) as made:
        run = Bench(made, jobs=jobs, peers_there=there)
        for number in range(1, rounds + 1):
            run.round()
            console.print(f"round {number}: " + ", ".join(
                f"{row} {taken[-1]:.2f}" for row, taken in run.found.items()))  # fmt: skip
        text = _markdown(run, made.conditions(), rounds, load_average())
    table = Table("", "measured", "range", "must", "verdict", title="Workers, medians")
    for line in _lines(run.found):
        table.add_row(*line)
    console.print(table)
    if options.write:
        page = options.write.read_text(encoding="utf-8")
        before, begin, rest = page.partition(BEGIN)
        _, end, after = rest.partition(END)
        if not begin or not end:
            raise SystemExit(f"{options.write}: expected the lines {BEGIN!r} and {END!r}")
        options.write.write_text(f"{before}{BEGIN}\n\n{text}\n\n{END}{after}", encoding="utf-8")


if __name__ == "__main__":
    main()
