"""Proof against its budgets: `python -m benchmarks.proof [--batches N] [--write FILE]`.

Loads a ledger, checks it, seals it, loads half as much again and seals that: the time of a seal
must depend on what is new, not on what there is.
"""

from __future__ import annotations

import argparse
import resource
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psycopg

from benchmarks import finished
from benchmarks.arena import arena
from benchmarks.rounds import load_average
from helixqueue.fence.ed25519 import Ed25519Signer
from helixqueue.operate.check import check, invariants
from helixqueue.operate.check_seals import check_seals
from helixqueue.operate.exported import check_export, write_export
from helixqueue.operate.seal import head_of, make_seal

if TYPE_CHECKING:
    from collections.abc import Callable

    from benchmarks.arena import Arena

OWNER = "helix_migrator"  # the role that may read everything, as `helixq check` uses it
MILLION = 1_000_000
BEGIN, END = "<!-- proof: begin -->", "<!-- proof: end -->"


@dataclass
class Figures:
    """Seconds of each measurement."""

    batches: int
    steps: int = 0
    entries: int = 0
    load: float = 0
    seconds: dict[str, float] = field(default_factory=dict)
    sets: dict[str, float] = field(default_factory=dict)  # of each set of invariants
    peak_mb: float = 0  # resident memory of the process that verifies an export
    export_mb: float = 0

    def timed(self, name: str, action: Callable[[], Any]) -> Any:  # noqa: ANN401 - what it returns
        begin = time.monotonic()
        answer = action()
        self.seconds[name] = time.monotonic() - begin
        print(f"{name}: {self.seconds[name]:.2f} s", flush=True)  # noqa: T201 - progress
        return answer


def measure(arena: Arena, batches: int, claimed: int, scratch: Path) -> Figures:
    figures = Figures(batches)
    signer = Ed25519Signer.generate()
    with arena.database() as database:
        _fill(arena, database, figures, "load", claimed, earlier=0)
        with psycopg.connect(arena.dsn(database, OWNER), autocommit=True) as connection:
            figures.load = load_average()
            counts = "select count(*), sum(cardinality(batch)) from helix.entry"
            row = connection.execute(counts).fetchone() or (0, 0)
            # A claim that starts its batches is one entry with two steps of each.
            figures.entries, figures.steps = row[0], row[1] + batches
            figures.timed("check", lambda: _check(connection, figures))
            first = figures.timed("seal", lambda: make_seal(connection, signer))
            figures.timed(
                "seal, nothing new", lambda: make_seal(connection, signer, head_of(first))
            )
            export = scratch / "ledger.jsonl"
            figures.timed("export", lambda: write_export(connection, first, export))
            figures.export_mb = export.stat().st_size / 1e6
            figures.timed("check --exported", lambda: check_export(export, [first], [signer]))
            figures.peak_mb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3
        _fill(arena, database, figures, "load more", claimed, earlier=batches)
        with psycopg.connect(arena.dsn(database, OWNER), autocommit=True) as connection:
            second = figures.timed(
                "seal of more", lambda: make_seal(connection, signer, head_of(first))
            )
            seals = [first, second]
            figures.timed(
                "check --against", lambda: _demand(check_seals(connection, seals, [signer]))
            )
    return figures


def _fill(
    arena: Arena, database: str, figures: Figures, name: str, claimed: int, *, earlier: int
) -> None:
    figures.timed(
        name,
        lambda: finished.fill(
            arena,
            database,
            figures.batches // (2 if earlier else 1),
            lambda _: None,
            earlier=earlier,
            claimed=claimed,
            results=True,
        ),
    )


def _check(connection: psycopg.Connection[Any], figures: Figures) -> None:
    """Check everything, and note the seconds of each set of invariants."""
    running, since = "", time.monotonic()

    def note(name: str) -> None:
        nonlocal running, since
        invariant = invariants()[name]
        begun = invariant.query if invariant.in_set else name
        if not invariant.in_set and "helix.batch" not in invariant.query:
            begun = "schema"
        if begun != running:
            figures.sets[running] = time.monotonic() - since
            running, since = begun, time.monotonic()

    results = check(connection, progress=note)
    figures.sets[running] = time.monotonic() - since
    figures.sets.pop("", None)
    _demand(results)


def _demand(results: list[Any]) -> None:
    if wrong := [result.name for result in results if not result.holds]:
        raise RuntimeError(f"expected all invariants to hold, got {', '.join(wrong)}")


# Row, measurement, bar in seconds per million batches.
_ROWS: tuple[tuple[str, str, float | None], ...] = (
    ("`check`, all invariants", "check", 60),
    ("`seal`, the first one", "seal", 30),
    ("`seal` after half as many batches more", "seal of more", 30 / 2),
    ("`seal` with nothing new", "seal, nothing new", None),
    ("`check --against` both seals, beside `check`", "check --against", None),
    ("`seal --export`, the export", "export", None),
    ("`check --exported`, offline", "check --exported", None),
)


def _table(figures: Figures, conditions: dict[str, str]) -> str:
    lines = [f"- {name}: {value}" for name, value in conditions.items()]
    lines.append(
        f"- data: {figures.batches:,} batches with {figures.steps:,} steps in {figures.entries:,} "
        f"ledger entries, each with a result; loaded at "
        f"{figures.batches / figures.seconds['load']:,.0f} batches/s; load {figures.load:.1f}"
    )
    lines += ["", "| what | seconds | must | |", "|---|---|---|---|"]
    for title, name, bar in _ROWS:
        seconds = figures.seconds[name]
        limit = None if bar is None else bar * figures.batches / MILLION
        must = "no bar" if limit is None else f"< {limit:,.1f} s"
        verdict = "" if limit is None else "met" if seconds < limit else "missed"
        lines.append(f"| {title} | {seconds:,.1f} | {must} | {verdict} |")
    sets = ", ".join(f"{name} {seconds:.1f}" for name, seconds in figures.sets.items())
    lines += [
        "",
        f"Seconds of each set of invariants: {sets}.",
        f"The export has {figures.export_mb:,.0f} MB; verifying it took {figures.peak_mb:,.0f} MB.",
    ]
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.proof", description=__doc__)
    parser.add_argument("--batches", type=int, default=MILLION, help="batches that are checked")
    parser.add_argument("--claimed", type=int, default=100, help="batches of one claim and settle")
    parser.add_argument(
        "--write", type=Path, metavar="FILE", help="put the table into this document"
    )
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="helix-bench-proof-") as scratch, arena(print) as made:
        figures = measure(made, options.batches, options.claimed, Path(scratch))
        table = _table(figures, made.conditions())
    print(table)  # noqa: T201 - the answer
    if options.write is not None:
        text = options.write.read_text(encoding="utf-8")
        if BEGIN not in text:
            text += f"\n## Proof\n\n{BEGIN}\n{END}\n"
        head, _, rest = text.partition(BEGIN)
        tail = rest.partition(END)[2]
        options.write.write_text(f"{head}{BEGIN}\n\n{table}\n\n{END}{tail}", encoding="utf-8")


if __name__ == "__main__":
    main()
