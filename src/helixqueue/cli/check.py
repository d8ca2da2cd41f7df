"""`helixq check`."""

from __future__ import annotations

import json
from dataclasses import asdict, fields
from typing import TYPE_CHECKING, Any

import typer

from helixqueue.cli import connection, options, show
from helixqueue.cli.command import command
from helixqueue.cli.exits import Exit
from helixqueue.ledger.replay import sees_every_tenant
from helixqueue.operate.check import CheckResult, check
from helixqueue.transport.http import checks

if TYPE_CHECKING:
    from pathlib import Path

    from helixqueue.client.http import HelixClient


def register(app: typer.Typer) -> None:
    command(app, "check", example='helixq check --dsn "$OWNER_DSN"')(connection.over_http(_check))


def _check(
    *,
    dsn: options.Dsn = None,
    data: options.Data = None,
    as_json: options.AsJson = False,
) -> None:
    """Check every invariant and show violating rows.

    Reads one snapshot; work may continue meanwhile. Run it as the owner of the schema: other logins
    and tokens cannot read all tables, and the invariants on those are skipped. A token with the
    scope operate checks its own tenant. Exit code 1: an invariant is broken; 3: a check timed out.
    """
    every_tenant, results = _run_checks(dsn, data)
    ok = all(result.count == 0 and not result.late for result in results)
    if as_json:
        show.as_json(
            {
                "ok": ok,
                "every_tenant": every_tenant,
                "results": [asdict(result) | {"holds": result.holds} for result in results],
            }
        )
    else:
        _print(results, every_tenant=every_tenant)
    broken = any(result.count for result in results)
    raise typer.Exit(Exit.OK if ok else Exit.NO if broken else Exit.UNAVAILABLE)


def _run_checks(dsn: str | None, data: Path | None) -> tuple[bool, list[CheckResult]]:
    """Whether every tenant was checked, and the results."""
    service = connection.current_service()
    if service is None:
        with connection.open_database(dsn, data, as_owner=True) as database:
            return sees_every_tenant(database.connection), check(database.connection)
    with connection.open_client(service) as client:
        response = client.run(checks.check())
        results = [_retry_late(client, _parse(result)) for result in response["results"]]
        return response["every_tenant"], results


def _retry_late(client: HelixClient, result: CheckResult) -> CheckResult:
    """Repeat a check that timed out in a request of its own."""
    if not result.late:
        return result
    [alone] = client.run(checks.check(result.name))["results"]
    return _parse(alone)


def _parse(result: dict[str, Any]) -> CheckResult:
    return CheckResult(**{field.name: result[field.name] for field in fields(CheckResult)})


def _print(results: list[CheckResult], *, every_tenant: bool) -> None:
    broken = [result for result in results if result.count]
    skipped = [result for result in results if result.skipped is not None]
    if broken or skipped:
        show.table(
            ("status", "invariant", "guarantee", "found", "meaning", "remedy"),
            [
                *(
                    ("BROKEN", r.name, r.promise, f"{r.count}: {_first(r)}", r.meaning, r.remedy)
                    for r in broken
                ),
                *(
                    ("skipped", r.name, r.promise, r.skipped or "", "unknown", _alternative(r))
                    for r in skipped
                ),
            ],
            ["bold red"] * len(broken) + ["yellow"] * len(skipped),
        )
    checked = len(results) - len(skipped)
    show.progress(f"{checked - len(broken)} of {checked} invariants hold")
    if skipped:
        show.progress(f"{len(skipped)} more were skipped")
    if not every_tenant:
        show.progress("this login or token sees its own tenants only; no others were checked")


def _alternative(result: CheckResult) -> str:
    return "use the database itself, with --dsn" if result.late else "run as the schema's owner"


def _first(result: CheckResult) -> str:
    """The first violating row, shortened; `--json` shows ten in full."""
    text = json.dumps(result.witnesses[0], ensure_ascii=False) if result.witnesses else ""
    return text if len(text) <= 200 else text[:199] + "…"
