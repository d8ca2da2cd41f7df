"""`helixq check`."""

from __future__ import annotations

import itertools
import json
import sys
import time
from contextlib import suppress
from dataclasses import asdict, fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple, NoReturn

import typer

from helixqueue.cli import connection, options, show
from helixqueue.cli.command import command
from helixqueue.cli.exits import Exit
from helixqueue.cli.options import option
from helixqueue.engine.duties import list_duties
from helixqueue.errors import NotPermitted, SchemaMismatch, Unavailable
from helixqueue.fence.key_file import find_keys, read_public
from helixqueue.ledger.replay import sees_every_tenant
from helixqueue.operate.check import CheckResult, check, invariants, report
from helixqueue.operate.check_seals import check_seals
from helixqueue.operate.exported import ExportResult, check_export
from helixqueue.operate.exported_batch import ExportedHistory, parse_ref
from helixqueue.operate.seal import SEALS
from helixqueue.records.duty import START_SERVICE, late_text
from helixqueue.transport.http import checks

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from uuid import UUID

    from psycopg import Connection

    from helixqueue.fence.signing import Signer
    from helixqueue.postgres.database import Database


TrustedStart = Annotated[
    str | None,
    option(
        "--trusted-start DIGEST",
        "With --against: the seals begin with the one of this digest, not with number 1.",
    ),
]


class Against(NamedTuple):
    """Seals to compare with, the keys that verify them, and the digest of a trusted start."""

    seals: list[dict[str, Any]]
    keys: Sequence[Signer]
    start: str | None


def register(app: typer.Typer) -> None:
    command(app, "check", example='helixq check --dsn "$OWNER_DSN"')(
        connection.service_or_database(_check)
    )


def _check(
    *,
    against: Annotated[
        Path | None,
        option(
            "--against PATH",
            "Also compare with the seals in this file or directory (see `helixq seal`).",
        ),
    ] = None,
    exported: Annotated[
        Path | None,
        option(
            "--exported FILE", "Verify this export of `helixq seal --export` instead of a database."
        ),
    ] = None,
    batch: Annotated[
        str | None,
        option(
            "--batch REF",
            "With --exported: print the verified history of the batch with this id or key.",
        ),
    ] = None,
    public_key: options.PublicKey = None,
    trusted_start: TrustedStart = None,
    watch: Annotated[
        float | None,
        option(
            "--watch SECONDS",
            "Check again this long after each check until Ctrl-C, and report what changes.",
            min=1,
        ),
    ] = None,
    as_json: options.AsJson = False,
) -> None:
    """Check every invariant and show violating rows.

    Reads one snapshot; work may continue meanwhile. Run it as the owner of the schema: other logins
    and tokens cannot read all tables, and the invariants on those are skipped. A token with the
    scope operate checks its own tenant. --against finds what the hashes inside the database cannot
    show: histories that were cut or rewritten. Exit code 1: an invariant is broken, or the export
    has no such batch; 3: a check timed out.
    """
    seals = _read_seals(against, public_key, trusted_start)
    wanted = None if batch is None else _parse_ref(batch)
    if wanted is not None and exported is None:
        raise typer.BadParameter("--batch reads an export; name it with --exported FILE")
    if exported is not None:
        _check_exported(exported, seals, wanted, as_json=as_json)
    if watch is not None:
        _watch(watch, lambda: _run_checks(seals), as_json=as_json)
    every_tenant, results = _run_checks(seals, warns=True)
    _report(results, every_tenant=every_tenant, as_json=as_json)
    if any(result.count for result in results):
        raise typer.Exit(Exit.NO)
    raise typer.Exit(Exit.UNAVAILABLE if any(result.late for result in results) else Exit.OK)


def _watch(
    seconds: float, run: Callable[[], tuple[bool, list[CheckResult]]], *, as_json: bool
) -> NoReturn:
    """Check until Ctrl-C; report the first results, and then those that differ from the last."""
    reported: dict[str, tuple[int, str | None]] | None = None
    while True:
        try:
            every_tenant, results = run()
        except Unavailable as error:
            # A server that restarts must not end the watch.
            show.progress(f"not checked: {error}")
        else:
            found = {r.name: (r.count, r.skipped) for r in results if not r.holds}
            if found != reported:
                _report(results, every_tenant=every_tenant, as_json=as_json)
                sys.stdout.flush()  # a pipe would keep it until the end
            reported = found
        time.sleep(seconds)


def _read_seals(against: Path | None, public_key: Path | None, start: str | None) -> Against | None:
    if against is not None:
        if connection.selected().service is not None:
            raise typer.BadParameter("--against reads the database itself; select it with --dsn")
        return Against(SEALS.read(against), _keys(public_key), start)
    if start is not None:
        raise typer.BadParameter("--trusted-start names one of the seals of --against PATH")
    return None


def _keys(public_key: Path | None) -> Sequence[Signer]:
    if public_key is not None:
        return read_public(public_key)
    keys = [key.signer for key in find_keys()]
    if not keys:
        raise typer.BadParameter("--against needs --public-key, or a key file")
    return keys


def _parse_ref(text: str) -> UUID | bytes:
    try:
        return parse_ref(text)
    except ValueError:
        raise typer.BadParameter(
            f"--batch: expected the id of a batch (a UUID) or its key (v1:...), got {text!a}"
        ) from None


def _check_exported(
    file: Path, against: Against | None, batch: UUID | bytes | None, *, as_json: bool
) -> NoReturn:
    """Verify an export offline."""
    if against is None:
        raise typer.BadParameter("--exported needs the seals of the export: --against PATH")
    export = check_export(file, against.seals, against.keys, batch, against.start)
    history = export.history
    ok = export.ok and (history is None or history.fault is None)
    if as_json:
        document = {"ok": ok, **asdict(export)}
        document["results"] = [asdict(result) for result in export.results if result.count]
        if history is None:
            del document["history"]
        show.as_json(document)
    else:
        _print_export(export, len(against.seals))
        if history is not None:
            _print_history(history)
    raise typer.Exit(Exit.OK if ok else Exit.NO)


def _print_export(export: ExportResult, seals: int) -> None:
    broken = [result for result in export.results if result.count]
    if broken:
        _print(broken, every_tenant=True)
    for violation in export.violations[:10]:
        show.line(violation, "bold red")
    states = ", ".join(f"{count:,} {state}" for state, count in sorted(export.states.items()))
    show.line(
        f"{'yes' if export.ok else 'no'}: {seals} seals, {export.entries:,} ledger "
        f"entries; batches: {states or 'none'}",
        "green" if export.ok else "bold red",
    )


def _print_history(history: ExportedHistory) -> None:
    if history.fault is not None:
        show.line(f"no history: {history.fault}", "bold red")
        return
    show.line(f"batch {history.batch_id}, key {history.key}")
    show.table(
        ("time", "reason", "from", "to", "attempt", "actor"),
        [
            (
                step.at, f"{step.reason}{', late' if step.late else ''}",
                step.from_state or "(new)", step.to_state, str(step.attempt), step.actor,
            )
            for step in history.steps
        ],
    )  # fmt: skip


def _report(results: list[CheckResult], *, every_tenant: bool, as_json: bool) -> None:
    if as_json:
        show.as_json(report(results, every_tenant=every_tenant))
    else:
        _print(results, every_tenant=every_tenant)


def _run_checks(against: Against | None, *, warns: bool = False) -> tuple[bool, list[CheckResult]]:
    """Whether every tenant was checked, and the results."""
    if connection.selected().service is None:
        with connection.open_database(as_owner=True) as database:
            if warns:
                _warn_of_duties(database)
            return sees_every_tenant(database.connection), [
                *_check_invariants(database.connection),
                *([] if against is None else _check_against(database.connection, against)),
            ]
    with connection.open_target() as target:
        response = target.run(checks.check())
        results = [_retry_late(target, _parse(result)) for result in response["results"]]
        return response["every_tenant"], results


def _warn_of_duties(database: Database) -> None:
    """The invariants hold without duties, but nothing retires batches or compares the ledger."""
    with suppress(NotPermitted, SchemaMismatch):
        rows = database.run(list_duties())
        if late := late_text(rows):
            show.warning(f"no process runs these duties: {late}; {START_SERVICE}")


def _check_invariants(database: Connection[Any]) -> list[CheckResult]:
    with show.bar("checking", "invariants", len(invariants())) as update:
        started = itertools.count()

        def progress(_: str) -> None:
            number = next(started)
            update(number, number)

        return check(database, progress=progress)


def _check_against(database: Connection[Any], against: Against) -> list[CheckResult]:
    with show.bar("comparing", "seals", len(against.seals)) as update:
        return check_seals(
            database, against.seals, against.keys, lambda done: update(done, done), against.start
        )


def _retry_late(target: connection.Target, result: CheckResult) -> CheckResult:
    """Repeat a check that timed out in a request of its own."""
    if not result.late:
        return result
    [alone] = target.run(checks.check(result.name))["results"]
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
