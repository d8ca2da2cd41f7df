"""The engine against its budgets: `python -m benchmarks.engine [--quick] [--json F] [--write F]`.

Every bar but that of WAL is a ratio of figures taken back to back on one server, in rounds.
"""

from __future__ import annotations

import argparse
import tempfile
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from benchmarks import buffers, finished, long_run, peers, report, wal, workload
from benchmarks.arena import ADMIN, TENANTS, Arena, arena
from benchmarks.raw import Raw
from benchmarks.rounds import Pair, Round, load_average, side_by_side

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


@dataclass(frozen=True)
class Size:
    """Sizes of the measurements; the quick run shows only the order of magnitude."""

    rounds: int
    each: int  # batches of each tenant in a drain
    one_by_one: int
    bulk_calls: int
    singles: int
    raw_hundreds: int  # rounds of each of 8 clients
    pending: int  # of each tenant, for the claim's depth
    claims: int  # under the held snapshot
    run: int  # batches of the long run, which check and replay then read
    finished: int  # batches that are finished before a drain; 0: the row is left out


FULL = Size(
    rounds=3,
    each=40,
    one_by_one=1_500,
    bulk_calls=40,
    singles=1_500,
    raw_hundreds=100,
    pending=1_000,
    claims=100_000,
    run=200_000,
    finished=1_000_000,
)
QUICK = Size(
    rounds=1,
    each=5,
    one_by_one=500,
    bulk_calls=10,
    singles=500,
    raw_hundreds=40,
    pending=100,
    claims=20_000,
    run=20_000,
    finished=20_000,
)
# Measurements in one database use different identities.
_APART = 10_000_000


class Bench:
    """All measurements of one run, on one server."""

    def __init__(self, arena: Arena, size: Size, scratch: Path, progress: Progress) -> None:
        self.arena = arena
        self.size = size
        self.notes: dict[str, str] = {}
        self._scratch = scratch
        self._progress = progress
        self._peer = False
        try:
            peers.PGQUEUER.install(progress.console.print)
            self._peer = True
        except peers.PeerError as error:
            self.notes["bulk"] = f"pgqueuer is not available: {error}"

    def run(self) -> list[Round]:
        rounds = [self._round(number) for number in range(self.size.rounds)]
        with self._step("claim by depth", TENANTS * self.size.pending + self.size.claims) as tick:
            self._depth(rounds[0], tick)
        with self._step("long run", self.size.run) as tick:
            self._long_run(rounds[0], tick)
        if self.size.finished:
            with self._step("finished batches", self.size.finished) as tick:
                self._finished(rounds, tick)
        else:
            self.notes["finished"] = "left out: --finished 0"
        return rounds

    def _round(self, number: int) -> Round:
        ours_first = number % 2 == 1
        with (
            self._step(f"round {number + 1}", 6) as tick,
            self.arena.database(empty=True) as plain,
            self.arena.database() as helix,
        ):
            raw = Raw(self.arena, plain, self._scratch)
            found = Round(raw.commits_by_pgbench(seconds=2), load_average())
            tick(1)
            self._drain(found, raw, helix, ours_first=ours_first)
            tick(2)
            self._one_by_one(found, raw, helix, ours_first=ours_first)
            tick(1)
            self._single(found, raw, helix, ours_first=ours_first)
            tick(1)
            if self._peer:
                self._bulk(found, helix, ours_first=ours_first)
            tick(1)
        ratios = ", ".join(f"{row} {ratio:.2f}" for row, ratio in found.ratios.items())
        self._progress.console.print(
            f"round {number + 1}: raw {found.commits_per_second:,.0f} commits/s, "
            f"load {found.load:.1f}; {ratios}"
        )
        return found

    def _drain(self, found: Round, raw: Raw, database: str, *, ours_first: bool) -> None:
        """The drain in hundreds, and the WAL that it wrote."""
        dsn = self.arena.dsn(database)
        workload.load(dsn, 1, first=_APART)
        workload.drain_with_processes(dsn, processes=1, count=100, expected=TENANTS)
        begin = wal.position(self.arena)
        batches = workload.load(dsn, self.size.each)
        submitted = wal.written(self.arena, begin, wal.position(self.arena))
        self.arena.analyze(database)
        drained = wal.Written(0, 0, 0)

        def ours() -> float:
            nonlocal drained
            begin = wal.position(self.arena)
            done = workload.drain_with_processes(dsn, processes=2, count=100, expected=batches)
            drained = wal.written(self.arena, begin, wal.position(self.arena))
            return done.per_second

        def reference() -> float:
            return raw.claim_then_done(count=100, clients=8, rounds=self.size.raw_hundreds)

        pair = side_by_side(ours, reference, ours_first=ours_first)
        found.note("drain", pair.ratio, ours=pair.ours, raw=pair.reference)
        both = submitted + drained
        found.note(
            "wal",
            both.bytes / batches / 1024,
            submit=submitted.bytes / batches,
            drain=drained.bytes / batches,
            images=both.image_bytes / batches,
        )

    def _one_by_one(self, found: Round, raw: Raw, database: str, *, ours_first: bool) -> None:
        dsn = self.arena.dsn(database)
        workload.load(dsn, 2, first=2 * _APART)
        self.arena.analyze(database)
        pair = side_by_side(
            lambda: workload.drain_one_by_one(dsn, batches=self.size.one_by_one).per_second,
            lambda: raw.claim_then_done_by_psycopg(rounds=self.size.one_by_one),
            ours_first=ours_first,
        )
        beside = raw.claim_then_done(count=1, clients=1, rounds=self.size.one_by_one)
        found.note("one", pair.ratio, ours=pair.ours, raw=pair.reference, pgbench=beside)

    def _single(self, found: Round, raw: Raw, database: str, *, ours_first: bool) -> None:
        pair = side_by_side(
            lambda: workload.submit_one_by_one(
                self.arena.dsn(database), count=self.size.singles, first=3 * _APART
            ),
            lambda: raw.commits_by_psycopg(count=self.size.singles),
            ours_first=ours_first,
        )
        beside = raw.commits_by_pgbench(seconds=1)
        found.note("single", pair.ratio, ours=pair.ours, raw=pair.reference, pgbench=beside)

    def _bulk(self, found: Round, database: str, *, ours_first: bool) -> None:
        calls_made = self.size.bulk_calls
        with self.arena.database(empty=True) as theirs:
            pair: Pair = side_by_side(
                lambda: workload.submit_in_bulk(
                    self.arena.dsn(database), calls_made=calls_made, first=4 * _APART
                ),
                lambda: peers.enqueue_in_bulk(self.arena.dsn(theirs, ADMIN), calls_made=calls_made),
                ours_first=ours_first,
            )
        found.note("bulk", pair.ratio, ours=pair.ours, pgqueuer=pair.reference)

    def _depth(self, found: Round, tick: Callable[[int], None]) -> None:
        """Pages do not depend on the machine, so once is enough."""
        with self.arena.database() as few:
            workload.load(self.arena.dsn(few), 1, tenants=range(10))
            self.arena.analyze(few)
            shallow = buffers.of_claim(self.arena.dsn(few), 10)
        with self.arena.database() as many:
            pending = workload.load(self.arena.dsn(many), self.size.pending, tick=tick)
            self.arena.analyze(many)
            deep = buffers.of_claim(self.arena.dsn(many), 10)
            found.note("depth", deep / shallow, deep=deep, shallow=shallow, pending=pending)
            before, after, unhinted = buffers.under_snapshot(
                self.arena, many, claims=self.size.claims, tick=tick
            )
        found.note(
            "snapshot",
            after / before,
            before=before,
            after=after,
            unhinted=unhinted,
            claims=self.size.claims,
        )

    def _long_run(self, found: Round, tick: Callable[[int], None]) -> None:
        """The cost of a batch after many others, and the time to check all of them."""
        with self.arena.database() as database:
            begin, end = long_run.run(self.arena, database, self.size.run, tick)
            found.note(
                "run",
                end.cpu_us / begin.cpu_us,
                batches=self.size.run,
                first=begin.cpu_us,
                last=end.cpu_us,
                first_rate=begin.per_second,
                last_rate=end.per_second,
            )
            self.arena.analyze(database)
            batches, seconds = long_run.checked(self.arena, database)
            found.note("check", seconds / batches * 1e6, seconds=seconds, batches=batches)
            seconds = long_run.sealed(self.arena, database)
            found.note("seal", seconds / batches * 1e6, seconds=seconds, batches=batches)
            steps, seconds = long_run.replayed(self.arena, database)
            found.note("replay", steps / seconds, seconds=seconds, steps=steps)

    def _finished(self, rounds: list[Round], tick: Callable[[int], None]) -> None:
        """The drain in hundreds in a database that has many finished batches."""
        measured = finished.measure(
            self.arena, self.size.finished, rounds=len(rounds), each=self.size.each, tick=tick
        )
        for found, (pair, batches) in zip(rounds, measured, strict=True):
            found.note(
                "finished", pair.ratio, ours=pair.ours, empty=pair.reference, batches=batches
            )

    @contextmanager
    def _step(self, title: str, total: int) -> Iterator[Callable[[int], None]]:
        task = self._progress.add_task(title, total=total)
        yield lambda more: self._progress.advance(task, more)
        self._progress.update(task, completed=total)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.engine", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="one small round, under 90 s")
    parser.add_argument(
        "--run",
        type=int,
        metavar="N",
        help="batches of the long run, which check and replay then read; the budget is 2,000,000",
    )
    parser.add_argument(
        "--finished",
        type=int,
        metavar="N",
        help="finished batches beside which a drain is measured; 0 leaves the row out; "
        "the budget is 10,000,000",
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every figure to this file")
    parser.add_argument(
        "--write", type=Path, metavar="FILE", help="document whose table is replaced"
    )
    options = parser.parse_args()
    console = Console()
    if not console.is_terminal:
        console.width = 160
    columns = (
        SpinnerColumn(),
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.percentage:>3.0f} %"),
        TimeElapsedColumn(),
    )
    with (
        Progress(*columns, console=console) as progress,
        tempfile.TemporaryDirectory(prefix="helix-bench-scripts-") as scratch,
        arena(console.print) as made,
    ):
        size = QUICK if options.quick else FULL
        size = replace(size, run=options.run or size.run)
        if options.finished is not None:
            size = replace(size, finished=options.finished)
        bench = Bench(made, size, Path(scratch), progress)
        rounds = bench.run()
        conditions = made.conditions()
    conditions["run"] = (
        f"{len(rounds)} round{'s' if len(rounds) > 1 else ''}, medians"
        f"{', quick sizes' if options.quick else ''}"
    )
    lines = report.lines(rounds, bench.notes)
    report.show(console, lines, rounds)
    if options.json:
        report.dump(options.json, lines, rounds, conditions)
    if options.write:
        report.write(options.write, report.markdown(lines, rounds, conditions))


if __name__ == "__main__":
    main()
