"""`helixq doctor`."""

from __future__ import annotations

from dataclasses import asdict

import typer

from helixqueue.cli import connection, show
from helixqueue.cli.exits import Exit
from helixqueue.operate.doctor import examine

_STYLES = {"ok": "green", "warn": "yellow", "bad": "bold red"}

WHY = (
    "doctor is about the settings of a database and of the login that programs use: run it with "
    "--dsn or --data"
)


def register(app: typer.Typer) -> None:
    app.command("doctor")(connection.without_service(WHY)(_doctor))


def _doctor(
    *,
    dsn: connection.Dsn = None,
    data: connection.Data = None,
    as_json: connection.AsJson = False,
) -> None:
    """Tell whether a database is set up so that the guarantees hold.

    Ask with the DSN that your programs use. Ends with 1 when anything is bad, warnings aside.
    """
    with connection.target(dsn, data) as found:
        findings = examine(found.dsn)
    well = all(finding.verdict != "bad" for finding in findings)
    if as_json:
        show.as_json({"ok": well, "findings": [asdict(finding) for finding in findings]})
    else:
        show.table(
            ("", "what", "found", "right would be", "to do"),
            [(f.verdict, f.name, f.found, f.right, f.remedy) for f in findings],
            [_STYLES[f.verdict] for f in findings],
        )
    raise typer.Exit(Exit.OK if well else Exit.NO)
