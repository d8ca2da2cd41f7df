"""`helixq demo`."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from helixqueue.cli import show
from helixqueue.cli.exits import Exit
from helixqueue.cli.target import AsJson  # noqa: TC001 - Typer reads it
from helixqueue.client.prepare import prepare
from helixqueue.demo.run import run
from helixqueue.embedded import Servers

if TYPE_CHECKING:
    from helixqueue.demo.run import Shown


def register(app: typer.Typer) -> None:
    app.command("demo")(_demo)


def _demo(*, as_json: AsJson = False) -> None:
    """Watch a lab's sheet take effect once, though workers are killed and frozen.

    Runs on embedded servers in a temporary directory, in under a minute, and leaves nothing behind.
    """
    with (
        tempfile.TemporaryDirectory(prefix="helixq-demo-") as directory,
        Servers(Path(directory)).start(show.progress) as servers,
    ):
        prepare(servers.postgres, show.progress)
        shown = run(servers.postgres, show.progress)
    if as_json:
        show.as_json(_facts(shown))
    else:
        _tell(shown)
    raise typer.Exit(Exit.OK if shown.proven else Exit.NO)


def _facts(shown: Shown) -> dict[str, object]:
    return {
        "rows": shown.intake.rows,
        "batches": len(shown.samples),
        "duplicates": sum(one.decision == "duplicate" for one in shown.intake.submitted),
        "refused_identities": len(shown.intake.refused),
        "effects": sum(one.effects for one in shown.samples),
        "late_writes_refused": len(shown.refusals),
        "events_replayed": shown.replayed.events,
        "replay_clean": shown.replayed.clean,
        "invariants": len(shown.checked),
        "invariants_hold": all(result.holds for result in shown.checked),
        "proven": shown.proven,
    }


def _tell(shown: Shown) -> None:
    facts = _facts(shown)
    typer.echo(
        f"\nThe sheet had {facts['rows']} rows: {facts['batches']} samples, "
        f"{facts['duplicates']} spelled twice, {facts['refused_identities']} refused:"
    )
    for raw, error in shown.intake.refused:
        typer.echo(f"  {raw!a}: {error}")
    typer.echo("\nEvery sample, its tries and its effects:")
    show.table(
        ("sample", "state", "tries", "effects", "workers"),
        [(s.name, s.state, str(s.tries), str(s.effects), s.workers) for s in shown.samples],
        ["" if s.effects == 1 else "bold red" for s in shown.samples],
    )
    typer.echo("\nWho came too late:")
    show.table(("sample", "worker", "why it was refused"), shown.refusals)
    typer.echo("\nThe story of that batch:")
    columns = ("step", "at", "from", "to", "who", "why", "detail")
    show.table(columns, [[str(cell) for cell in row] for row in shown.story])
    typer.echo(
        f"\nReplay: {facts['events_replayed']} events folded, "
        f"{'the ledger gives the current state' if shown.replayed.clean else 'VIOLATIONS'}."
        f"\nCheck: {facts['invariants']} invariants, "
        f"{'all hold' if facts['invariants_hold'] else 'BROKEN'}."
        f"\n{facts['batches']} samples, {facts['effects']} effects: "
        f"{'each took effect exactly once.' if shown.once else 'NOT exactly once.'}"
    )
