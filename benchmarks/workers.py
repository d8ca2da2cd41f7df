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
import tempfile
import time
from collections import defaultdict
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median, quantiles
from typing import TYPE_CHECKING, Literal

from rich.console import Console
from rich.table import Table

from benchmarks import peers
from benchmarks.arena import ADMIN, POOL, Arena, arena
from benchmarks.raw import Raw
from benchmarks.rounds import load_average
from benchmarks.service import write
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


@dataclass(frozen=True)
class Size:
    rounds: int
    jobs: int  # of a drain; a tenth of them one by one
    waits: int  # submissions to an idle worker, after the first ones


FULL = Size(rounds=3, jobs=150_000, waits=300)
QUICK = Size(rounds=1, jobs=5_000, waits=50)
# The first submissions include the start-up of worker and sessions.
FIRST_WAITS = 20


@dataclass(frozen=True)
class Row:
    title: str
    sign: Literal[">=", "<="]  # the bar is a lower or an upper bound
    must: float
    goal: float | None
    unit: str = "x"


_BETTER = "vs. the better of graphile-worker and pgqueuer"
ROWS = {
    "graphile": Row("drain, 1 process, vs. graphile-worker, batched acks", ">=", 0.95, 1.2),
    "pgqueuer": Row("drain, 1 process, vs. pgqueuer", ">=", 2.0, None),
    "graphile 2": Row("drain, 2 processes, vs. graphile-worker, batched acks, 2", ">=", 0.75, 1.0),
    "procrastinate": Row("one by one, 16 slots, vs. procrastinate, 16", ">=", 3.0, 5.0),
    "single": Row("the same, one batch per call, vs. procrastinate, 16", ">=", 3.0, 5.0),
    "p50": Row(f"submit to start, idle worker, median, {_BETTER}", "<=", 1.2, 1.0),
    "p99": Row(f"submit to start, idle worker, 99th of 100, {_BETTER}", "<=", 1.6, 1.0),
    "recovery": Row("start of a killed worker's batch elsewhere, in leases", "<=", 1.5, 1.2),
    "cpu": Row("idle worker: processor", "<=", 1.0, None, " %"),
    "statements": Row("idle worker: statements", "<=", 2.0, None, "/s"),
}


class Bench:
    def __init__(self, arena: Arena, size: Size, scratch: Path, peers_there: set[str]) -> None:
        self.arena = arena
        self.size = size
        self.scratch = scratch
        self.peers_there = peers_there
        self.found: dict[str, list[float]] = defaultdict(list)
        self.rates: dict[str, list[float]] = defaultdict(list)  # jobs a second
        self.waits: dict[str, list[float]] = defaultdict(list)  # milliseconds
        self.disk: list[tuple[float, float]] = []  # raw commits a second, and the load, by round

    def round(self, number: int) -> None:
        """HelixQueue runs first in every second round."""
        self._disk()
        first = number % 2 == 1
        item = {"graphile": peers.GRAPHILE, "pgqueuer": peers.PGQUEUER}
        self._drains("drain", self.size.jobs, 1, item, ours_first=first)
        self._drains("drain", self.size.jobs, 2, {"graphile 2": peers.GRAPHILE}, ours_first=first)
        slow = {"procrastinate": peers.PROCRASTINATE}
        self._drains("one", self.size.jobs // 10, 1, slow, ours_first=first)
        single = self._ours("single", self.size.jobs // 10, 1)
        if procrastinate := self.rates.get(f"{peers.PROCRASTINATE.name}, 1"):
            self.found["single"].append(single / procrastinate[-1])
        self._latency()
        self._recovery()

    def _disk(self) -> None:
        load = load_average()
        with self.arena.database(empty=True) as plain:
            raw = Raw(self.arena, plain, self.scratch)
            self.disk.append((raw.commits_by_pgbench(seconds=1), load))

    def _drains(
        self,
        mode: str,
        jobs: int,
        processes: int,
        against: dict[str, peers.Peer],
        *,
        ours_first: bool,
    ) -> None:
        ours = self._ours(mode, jobs, processes) if ours_first else 0.0
        theirs = {
            row: self._theirs(peer, jobs, processes)
            for row, peer in against.items()
            if peer.name in self.peers_there
        }
        ours = ours or self._ours(mode, jobs, processes)
        for row, rate in theirs.items():
            self.found[row].append(ours / rate)

    def _ours(self, mode: str, jobs: int, processes: int) -> float:
        with self._queue() as (dsn, helix):
            sheet = (Submission(f"s-{n}", {"n": n}) for n in range(jobs))
            helix.submit_many(bench, sheet)
            self.arena.analyze(_name(dsn))
            rate = peers.drained([_worker(mode, dsn)] * processes, jobs)
        self.rates[f"ours, {mode}, {processes}"].append(rate)
        return rate

    def _theirs(self, peer: peers.Peer, jobs: int, processes: int) -> float:
        with self.arena.database(empty=True) as name:
            rate = peer.drain(self.arena.dsn(name, ADMIN), jobs=jobs, processes=processes)
        self.rates[f"{peer.name}, {processes}"].append(rate)
        return rate

    def _latency(self) -> None:
        with self._queue() as (dsn, helix), _started("tell", dsn) as process:
            assert process.stdout is not None  # noqa: S101 - told to be a pipe
            time.sleep(peers.WORKER_STARTS_S)
            waits = []
            for n in range(FIRST_WAITS + self.size.waits):
                helix.submit(bench, identity=f"l-{n}", payload={"at": time.monotonic()})
                waits.append(float(process.stdout.readline()))
                time.sleep(random.uniform(0.03, 0.06))  # noqa: S311
            ours = self._wait_figures("ours", waits)
            self._idle(dsn, process)
        theirs = []
        for peer in (peers.GRAPHILE, peers.PGQUEUER):
            if peer.name in self.peers_there:
                with self.arena.database(empty=True) as name:
                    taken = peer.waits(
                        self.arena.dsn(name, ADMIN), jobs=FIRST_WAITS + self.size.waits
                    )
                theirs.append(self._wait_figures(peer.name, taken))
        if theirs:
            for row, place in (("p50", 0), ("p99", 1)):
                self.found[row].append(ours[place] / min(item[place] for item in theirs))

    def _wait_figures(self, name: str, waits: list[float]) -> tuple[float, float]:
        taken = [item * 1_000 for item in waits[FIRST_WAITS:]]
        figures = median(taken), quantiles(taken, n=100)[98]
        for what, value in zip(("p50", "p99"), figures, strict=True):
            self.waits[f"{name}, {what}"].append(value)
        return figures

    def _idle(self, dsn: str, process: subprocess.Popen[str]) -> None:
        before = _processor(process.pid)
        statements = self._statements_in_a_while(dsn)
        after = _processor(process.pid)
        process.kill()
        process.wait()
        self.found["cpu"].append((after - before) / _IDLE_SECONDS * 100)
        self.found["statements"].append(statements / _IDLE_SECONDS)

    def _statements_in_a_while(self, dsn: str) -> int:
        """Statements of this database's clients, by the start time of each.

        The server's counters do not help: an idle session reports them up to ten seconds late.
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
    """CPU seconds of a process and its live children."""
    total = 0.0
    for item in (pid, *_children(pid)):
        fields = Path(f"/proc/{item}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
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


def _lines(found: dict[str, list[float]]) -> list[tuple[str, ...]]:
    lines: list[tuple[str, ...]] = []
    for name, row in ROWS.items():
        must = f"{row.sign} {row.must:g}{row.unit}"
        goal = "-" if row.goal is None else f"{row.sign} {row.goal:g}{row.unit}"
        if taken := found.get(name):
            spread = f"{min(taken):.2f} to {max(taken):.2f}"
            measured = f"{median(taken):.2f}{row.unit}"
            lines.append((row.title, measured, spread, must, goal, _verdict(row, median(taken))))
        else:
            lines.append((row.title, "-", "-", must, goal, "not measured"))
    return lines


def _verdict(row: Row, measured: float) -> str:
    def holds(bar: float) -> bool:
        return measured >= bar if row.sign == ">=" else measured <= bar

    if row.goal is not None and holds(row.goal):
        return "met goal"
    return "met must" if holds(row.must) else "missed"


_HEADS = ("", "measured", "range", "must", "goal", "verdict")


def _markdown(bench: Bench, conditions: dict[str, str]) -> str:
    size = bench.size
    output = [f"- {name}: {value}" for name, value in conditions.items()]
    output.append(
        f"- run: {size.rounds} round{'s' * (size.rounds > 1)}, medians; {size.jobs:,} jobs a drain,"
        f" {size.jobs // 10:,} one by one; {size.waits} submissions to an idle worker"
    )
    rounds = (f"{commits:,.0f} commits/s at load {load:.1f}" for commits, load in bench.disk)
    output += [f"- raw one-row commits, 1 client, before each round: {', '.join(rounds)}", ""]
    output += [f"| {' | '.join(_HEADS)} |", "|---" * len(_HEADS) + "|"]
    output += [f"| {' | '.join(line)} |" for line in _lines(bench.found)]
    rates = ", ".join(f"{name}: {median(taken):,.0f}" for name, taken in bench.rates.items())
    waits = ", ".join(f"{name}: {median(taken):.1f}" for name, taken in bench.waits.items())
    output += ["", f"Jobs a second, medians: {rates}.", ""]
    return "\n".join([*output, f"Milliseconds from submit to start, medians: {waits}."])


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.workers", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="one small round")
    parser.add_argument(
        "--write", type=Path, metavar="FILE", help="document whose table is replaced"
    )
    parser.add_argument(
        "--jobs",
        type=int,
        help=f"of a drain; {FULL.jobs:,} unless said, {QUICK.jobs:,} if quick",
    )
    options = parser.parse_args()
    console = Console()
    if not console.is_terminal:
        console.width = 160
    size = QUICK if options.quick else FULL
    size = replace(size, jobs=options.jobs or size.jobs)
    there = _installed(console.print)
    with (
        tempfile.TemporaryDirectory(prefix="helix-bench-scripts-") as scratch,
        arena(console.print) as made,
    ):
        run = Bench(made, size, Path(scratch), there)
        for number in range(1, size.rounds + 1):
            run.round(number)
            console.print(f"round {number}: " + ", ".join(
                f"{row} {taken[-1]:.2f}" for row, taken in run.found.items()))  # fmt: skip
        text = _markdown(run, made.conditions())
    table = Table(*_HEADS, title="Workers, medians")
    for line in _lines(run.found):
        table.add_row(*line)
    console.print(table)
    console.print(text[text.index("Jobs a second") :])
    if options.write:
        write(options.write, text, "Workers", BEGIN, END)


if __name__ == "__main__":
    main()
