"""`helixq doctor`."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

import typer

from helixqueue.cli import connection, options, show
from helixqueue.cli.command import command
from helixqueue.cli.exits import Exit
from helixqueue.cli.options import option
from helixqueue.operate.doctor import examine

_STYLES = {"ok": "green", "warn": "yellow", "bad": "bold red"}

NO_SERVICE = (
    "doctor examines the settings of a database and of your program's login; "
    "run it with --dsn or --data"
)


def register(app: typer.Typer) -> None:
    add = command(app, "doctor", example='helixq doctor --dsn "$PROGRAM_DSN"')
    add(connection.database_only(NO_SERVICE)(_doctor))


def _doctor(
    *,
    redis: Annotated[
        str | None, option("--redis URL", "Also examine this Redis or Valkey.", env="HELIX_REDIS")
    ] = None,
    as_json: options.AsJson = False,
) -> None:
    """Check that a database is set up for the guarantees.

    Use the DSN of your programs. Exit code 1: a setting breaks a guarantee, or no process runs a
    duty; warnings do not count.
    """
    with connection.database_target() as target:
        findings = examine(target.dsn, redis)
    ok = all(finding.verdict != "bad" for finding in findings)
    if as_json:
        show.as_json({"ok": ok, "findings": [asdict(finding) for finding in findings]})
    else:
        show.table(
            ("verdict", "setting", "found", "expected", "remedy"),
            [(f.verdict, f.name, f.found, f.right, f.remedy) for f in findings],
            [_STYLES[f.verdict] for f in findings],
        )
    raise typer.Exit(Exit.OK if ok else Exit.NO)
