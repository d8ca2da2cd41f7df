"""`helixq demo`."""

from __future__ import annotations

import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from helixqueue.cli import batch_report, connection, options, show
from helixqueue.cli.command import command
from helixqueue.cli.exits import Exit
from helixqueue.client.embedded_setup import set_up
from helixqueue.demo.run import FROZEN, KILLED, run
from helixqueue.embedded import Servers
from helixqueue.identity import escaped

if TYPE_CHECKING:
    from collections.abc import Callable

    from helixqueue.demo.run import DemoResult, DemoSample

NO_SERVICE = "demo runs on its own servers in a temporary directory"


def register(app: typer.Typer) -> None:
    add = command(app, "demo", example="helixq demo")
    add(connection.without_service(NO_SERVICE)(_demo))


def _demo(*, as_json: options.AsJson = False) -> None:
    """Show that samples take effect once although workers die.

    Runs on embedded servers in a temporary directory, takes less than a minute and leaves nothing
    behind. Exit code 1: something did not take effect exactly once.
    """
    progress = _timed_progress()
    with tempfile.TemporaryDirectory(prefix="helixq-demo-") as directory:
        progress("starting a PostgreSQL for this demo")
        with Servers(Path(directory)).postgres.start() as postgres:
            set_up(postgres)
            result = run(postgres, progress)
    if as_json:
        show.as_json(_facts(result))
    else:
        _print(result)
    raise typer.Exit(Exit.OK if result.proven else Exit.NO)


def _timed_progress() -> Callable[[str], None]:
    started = time.monotonic()
    return lambda message: show.progress(f"{time.monotonic() - started:5.1f} s  {message}")


def _facts(result: DemoResult) -> dict[str, Any]:
    decisions = [row.answer.decision for row in result.sheet]
    return {
        "rows": len(result.sheet),
        "batches": len(result.samples),
        "duplicates": decisions.count("duplicate"),
        "refused_identities": decisions.count("refused"),
        "effects": sum(sample.effects for sample in result.samples),
        "late_writes_refused": [
            {
                "sample": refusal.sample,
                "worker": refusal.worker,
                "owner": refusal.owner,
                "why": refusal.why,
            }
            for refusal in result.refusals
        ],
        "events_replayed": result.replayed.events,
        "replay_clean": result.replayed.clean,
        "invariants": len(result.checked),
        "invariants_hold": all(check.holds for check in result.checked),
        "proven": result.proven,
    }


def _print(result: DemoResult) -> None:
    facts = _facts(result)
    show.line(f"\nThe sheet had {facts['rows']} rows for {facts['batches']} samples", "bold")
    for row in result.sheet:
        if row.answer.decision == "duplicate":
            show.line(f"  duplicate: '{escaped(row.identity)}' is another spelling of a sample")
        elif row.answer.error is not None:
            show.line(f"  refused: {row.answer.error}")
    show.line("\nEvery sample has one result, whatever the number of attempts", "bold")
    show.table(
        ("sample", "state", "results", "attempts", "workers"),
        [_sample_row(sample) for sample in result.samples],
        ["" if sample.effects == 1 else "bold red" for sample in result.samples],
    )
    show.line("\nLate writes that the database refused", "bold")
    show.table(
        ("sample", "late worker", "owner by then", "reason"),
        [(row.sample, row.worker, row.owner, row.why) for row in result.refusals],
        ["yellow"] * len(result.refusals),
    )
    show.line("\nThe history of that sample, as `helixq batch show` prints it", "bold")
    batch_report.print_batch(result.frozen_batch)
    replay = "matches the current state" if result.replayed.clean else "VIOLATIONS"
    show.line(f"\nReplay  {facts['events_replayed']} events: {replay}")
    check = "all hold" if facts["invariants_hold"] else "BROKEN"
    show.line(f"Check   {facts['invariants']} invariants: {check}")
    verdict = "each took effect exactly once." if result.each_once else "NOT exactly once."
    show.line(
        f"{facts['batches']} samples, {facts['effects']} results: {verdict}",
        "bold green" if result.proven else "bold red",
    )


def _sample_row(sample: DemoSample) -> tuple[str, ...]:
    notes = {KILLED: " (killed)", FROZEN: " (frozen)"} if sample.attempts > 1 else {}
    *lost, last = sample.workers
    workers = ", then ".join([*(name + notes.get(name, "") for name in lost), last])
    return sample.identity, sample.state, str(sample.effects), str(sample.attempts), workers
