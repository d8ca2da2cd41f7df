"""`helixq demo`."""

from __future__ import annotations

import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from helixqueue.cli import batch_report, connection, show
from helixqueue.cli.exits import Exit
from helixqueue.client.embedded_setup import set_up
from helixqueue.demo.run import FROZEN, KILLED, run
from helixqueue.embedded import Servers
from helixqueue.identity import escaped

if TYPE_CHECKING:
    from collections.abc import Callable

    from helixqueue.demo.run import Sample, Shown

WHY = "demo runs on servers of its own, in a directory that it removes"


def register(app: typer.Typer) -> None:
    app.command("demo")(connection.without_service(WHY)(_demo))


def _demo(*, as_json: connection.AsJson = False) -> None:
    """Watch a lab's samples take effect once, though workers die.

    Runs on embedded servers in a temporary directory, in under a minute, and leaves nothing behind.
    """
    say = _clock()
    with tempfile.TemporaryDirectory(prefix="helixq-demo-") as directory:
        say("starting a PostgreSQL for this demo alone")
        with Servers(Path(directory)).postgres.start() as postgres:
            set_up(postgres)
            shown = run(postgres, say)
    if as_json:
        show.as_json(_facts(shown))
    else:
        _tell(shown)
    raise typer.Exit(Exit.OK if shown.proven else Exit.NO)


def _clock() -> Callable[[str], None]:
    began = time.monotonic()
    return lambda message: show.progress(f"{time.monotonic() - began:5.1f} s  {message}")


def _facts(shown: Shown) -> dict[str, Any]:
    decisions = [row.answer.decision for row in shown.sheet]
    return {
        "rows": len(shown.sheet),
        "batches": len(shown.samples),
        "duplicates": decisions.count("duplicate"),
        "refused_identities": decisions.count("refused"),
        "effects": sum(one.effects for one in shown.samples),
        "late_writes_refused": [
            {"sample": one.sample, "worker": one.worker, "owner": one.owner, "why": one.why}
            for one in shown.refusals
        ],
        "events_replayed": shown.replayed.events,
        "replay_clean": shown.replayed.clean,
        "invariants": len(shown.checked),
        "invariants_hold": all(result.holds for result in shown.checked),
        "proven": shown.proven,
    }


def _tell(shown: Shown) -> None:
    facts = _facts(shown)
    show.line(f"\nThe sheet had {facts['rows']} rows for {facts['batches']} samples", "bold")
    for row in shown.sheet:
        if row.answer.decision == "duplicate":
            show.line(
                f"  '{escaped(row.identity)}' is another spelling of a sample it has: one batch"
            )
        elif row.answer.error is not None:
            show.line(f"  refused: {row.answer.error}")
    show.line("\nEvery sample has one result, however often it was tried", "bold")
    show.table(
        ("sample", "state", "results written", "tries", "who worked on it"),
        [_sample(one) for one in shown.samples],
        ["" if one.effects == 1 else "bold red" for one in shown.samples],
    )
    show.line("\nWho came too late, and was refused", "bold")
    show.table(
        ("sample", "who came too late", "who had it by then", "why it was refused"),
        [(one.sample, one.worker, one.owner, one.why) for one in shown.refusals],
        ["yellow"] * len(shown.refusals),
    )
    show.line("\nThe story of that sample, as `helixq batch show` tells it", "bold")
    batch_report.tell(shown.story)
    good = "bold green" if shown.proven else "bold red"
    show.line(
        f"\nReplay  {facts['events_replayed']} events folded: "
        f"{'they give the current state' if shown.replayed.clean else 'VIOLATIONS'}"
    )
    show.line(
        f"Check   {facts['invariants']} invariants: "
        f"{'all hold' if facts['invariants_hold'] else 'BROKEN'}"
    )
    show.line(
        f"{facts['batches']} samples, {facts['effects']} results: "
        f"{'each took effect exactly once.' if shown.once else 'NOT exactly once.'}",
        good,
    )


def _sample(one: Sample) -> tuple[str, ...]:
    fates = {KILLED: " (killed)", FROZEN: " (frozen)"} if one.tries > 1 else {}
    workers = [name + fates.get(name, "") for name in one.workers[:-1]] + one.workers[-1:]
    return one.name, one.state, str(one.effects), str(one.tries), ", then ".join(workers)
