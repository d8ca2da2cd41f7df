"""`helixq duty list | set | findings`."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from helixqueue.cli import connection, options, show, times
from helixqueue.cli.command import command
from helixqueue.cli.exits import Exit
from helixqueue.engine import duties, metrics

if TYPE_CHECKING:
    from helixqueue.engine.duties import DutyRow

app = typer.Typer(no_args_is_help=True, help="Background duties: list, set, findings.")

NO_SERVICE = "duties are for all tenants, and a token is of one; run it with --dsn or --data"
_LATE_SECONDS = 60.0  # `list` shows a duty that is overdue by more


def _interval(text: str) -> float:
    seconds = times.span(text)
    if not seconds:
        raise typer.BadParameter(f"expected a duration such as 30s or 5m, got {text[:80]!a}")
    return seconds


def register(parent: typer.Typer) -> None:
    parent.add_typer(app, name="duty")


@command(app, "list", example="helixq duty list")
@connection.database_only(NO_SERVICE)
def _list(*, as_json: options.AsJson = False) -> None:
    """List duties with their interval, last run, lag and last failure.

    Services run them; claims run some of them as well. Exit code 1: a duty failed in its last run
    or is overdue by more than a minute.
    """
    with connection.open_database() as database:
        rows = database.run(duties.list_duties())
    ok = not any(_is_late(row) for row in rows)
    if as_json:
        shown = [
            asdict(row) | {"last_at": None if row.last_at is None else row.last_at.isoformat()}
            for row in rows
        ]
        show.as_json({"ok": ok, "duties": shown})
    else:
        show.table(
            ("duty", "every", "last run", "lag", "took", "failed", "failures", "by"),
            [
                (
                    row.duty,
                    f"{row.every_seconds:g} s",
                    row.last_at or "never",
                    f"{row.lag_seconds:.0f} s",
                    f"{row.seconds:.3f} s",
                    row.failed or "",
                    str(row.failures),
                    row.actor or "",
                )
                for row in rows
            ],
            ["bold red" if _is_late(row) else "" for row in rows],
            optional=("by", "failures", "took"),
        )
    raise typer.Exit(Exit.OK if ok else Exit.NO)


def _is_late(row: DutyRow) -> bool:
    return row.failed is not None or row.lag_seconds > _LATE_SECONDS


@command(app, "set", example='helixq duty set reconcile --every 5m --reason "a slow disk"')
@connection.database_only(NO_SERVICE)
def _set(
    duty: Annotated[str, typer.Argument(metavar="DUTY", help="Name of the duty.")],
    *,
    every: Annotated[
        float,
        typer.Option(
            "--every", metavar="DURATION", parser=_interval, help="Interval, such as 30s or 5m."
        ),
    ],
    reason: options.Reason,
    actor: options.Actor = None,
    as_json: options.AsJson = False,
) -> None:
    """Change how often a duty runs.

    It runs next at once. The change is recorded with its reason. Needs an operator's login.
    """
    with connection.open_database() as database:
        database.run(metrics.set_duty(duty=duty, every_seconds=every, actor=actor, reason=reason))
    if as_json:
        show.as_json({"duty": duty, "every_seconds": every})
    else:
        show.line(f"{duty}: every {every:g} s")


@command(app, "findings", example="helixq duty findings")
@connection.database_only(NO_SERVICE)
def _findings(
    *,
    cleared: Annotated[
        bool, typer.Option("--all", help="Also findings that no longer hold.")
    ] = False,
    limit: options.Limit = 50,
    as_json: options.AsJson = False,
) -> None:
    """List what the duties reconcile and audit found.

    `duplicate_assignment`, `audit_missing`, `lease_overdue` and `stalled_pending` each have a
    runbook. Exit code 1: a finding holds.
    """
    with connection.open_database() as database:
        found = database.run(metrics.list_findings(open_only=not cleared, limit=limit))
    holds = any(finding.cleared_at is None for finding in found)
    if as_json:
        rows = [
            asdict(finding)
            | {name: None if (time := getattr(finding, name)) is None else time.isoformat()
               for name in ("found_at", "seen_at", "cleared_at")}
            | {"batch_id": None if finding.batch_id is None else str(finding.batch_id)}
            for finding in found
        ]  # fmt: skip
        show.as_json({"findings": rows})
    else:
        show.table(
            ("kind", "tenant", "queue", "batch", "found", "cleared", "detail"),
            [
                (f.kind, f.tenant or "", f.queue or "", f.batch_id or "", f.found_at,
                 f.cleared_at or "", f.detail)
                for f in found
            ],
            ["dim" if f.cleared_at else "bold red" for f in found],
            empty="no findings",
            optional=("cleared", "tenant", "found"),
        )  # fmt: skip
    raise typer.Exit(Exit.NO if holds else Exit.OK)
