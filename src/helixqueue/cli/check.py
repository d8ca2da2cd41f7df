"""`helixq check`."""

from __future__ import annotations

import json
from dataclasses import asdict, fields
from typing import TYPE_CHECKING, Any

import typer

from helixqueue.cli import connection, show
from helixqueue.cli.exits import Exit
from helixqueue.ledger.replay import sees_every_tenant
from helixqueue.operate.check import CheckResult, check
from helixqueue.transport.http import audits

if TYPE_CHECKING:
    from pathlib import Path

    from helixqueue.client.http import HelixClient


def register(app: typer.Typer) -> None:
    app.command("check")(connection.over_http(_check))


def _check(
    *,
    dsn: connection.Dsn = None,
    data: connection.Data = None,
    as_json: connection.AsJson = False,
) -> None:
    """Check every invariant, with witnesses.

    Ends with 1 when one is broken, and with 3 when time did not suffice for one. Reads one
    snapshot; work may go on. Ask as the role that migrates: an operator may not read what some of
    the invariants rest on, and those are skipped, as they are for a token. A token with the scope
    operate checks the rows of its own tenant.
    """
    everything, results = _asked(dsn, data)
    well = all(result.count == 0 and not result.late for result in results)
    if as_json:
        show.as_json(
            {
                "ok": well,
                "every_tenant": everything,
                "results": [asdict(result) | {"holds": result.holds} for result in results],
            }
        )
    else:
        _tell(results, everything=everything)
    broken = any(result.count for result in results)
    raise typer.Exit(Exit.OK if well else Exit.NO if broken else Exit.UNAVAILABLE)


def _asked(dsn: str | None, data: Path | None) -> tuple[bool, list[CheckResult]]:
    """Whether these are the rows of every tenant, and what was found."""
    chosen = connection.chosen_service()
    if chosen is None:
        with connection.opened(dsn, data, as_owner=True) as database:
            return sees_every_tenant(database.connection), check(database.connection)
    with connection.client_of(chosen) as client:
        told = client.run(audits.check())
        return told["every_tenant"], [_in_time(client, _read(one)) for one in told["results"]]


def _in_time(client: HelixClient, result: CheckResult) -> CheckResult:
    """What did not fit into one request may fit into one of its own."""
    if not result.late:
        return result
    [alone] = client.run(audits.check(result.name))["results"]
    return _read(alone)


def _read(told: dict[str, Any]) -> CheckResult:
    return CheckResult(**{one.name: told[one.name] for one in fields(CheckResult)})


def _tell(results: list[CheckResult], *, everything: bool) -> None:
    broken = [result for result in results if result.count]
    skipped = [result for result in results if result.skipped is not None]
    if broken or skipped:
        show.table(
            ("", "invariant", "promise", "found", "what it means", "to do"),
            [
                *(
                    ("BROKEN", r.name, r.promise, f"{r.count}: {_first(r)}", r.meaning, r.remedy)
                    for r in broken
                ),
                *(
                    ("skipped", r.name, r.promise, r.skipped or "", "not known", _instead(r))
                    for r in skipped
                ),
            ],
            ["bold red"] * len(broken) + ["yellow"] * len(skipped),
        )
    asked = len(results) - len(skipped)
    show.progress(f"{asked - len(broken)} of {asked} invariants hold")
    if skipped:
        show.progress(f"{len(skipped)} more were not asked")
    if not everything:
        show.progress("this role or token sees its own tenants only; nothing else was checked")


def _instead(result: CheckResult) -> str:
    return "ask the database itself, with --dsn" if result.late else "ask as the owner"


def _first(result: CheckResult) -> str:
    """The first witness, short enough for a line; `--json` has ten of them in full."""
    text = json.dumps(result.witnesses[0], ensure_ascii=False) if result.witnesses else ""
    return text if len(text) <= 200 else text[:199] + "…"
