"""`helixq run start | list | show | datums | outputs | wait | watch | logs | cancel | retry`."""

from __future__ import annotations

import sys
import tempfile
import uuid
from contextlib import ExitStack
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from helixqueue.cli import connection, operation, options, run_start, shapes, show, times
from helixqueue.cli.command import command
from helixqueue.cli.derived_commands import verb
from helixqueue.cli.exits import Exit
from helixqueue.cli.options import argument, option
from helixqueue.errors import InProgress
from helixqueue.operations import batch_reads, run_calls, runs
from helixqueue.records.run import ENDED

if TYPE_CHECKING:
    from collections.abc import Callable

    from helixqueue.records.batch import BatchRow
    from helixqueue.records.page import Page
    from helixqueue.records.run import RunDetail, RunOutput, RunProgress, RunRow
    from helixqueue.runs.spec import RunSpec

app = typer.Typer(
    no_args_is_help=True,
    help="Runs: start, list, show, wait, watch, logs, retry and more.",
)
RETRY_SECONDS: Final = 900.0  # while the database or the service is away
LOOK_SECONDS: Final = 1.0
EXITS: Final = {"done": Exit.OK, "failed": Exit.NO, "cancelled": Exit.CANCELLED}
STYLES: Final = {"done": "green", "failed": "bold red", "cancelled": "magenta"}
RunName = Annotated[str, argument("RUN", "Run: its name or id.")]
Timeout = Annotated[
    float | None,
    option("--timeout SPAN", "Give up after this time, such as 2h.", parser=times.span),
]


def register(parent: typer.Typer) -> None:
    parent.add_typer(app, name="run")


@command(app, "start", example="helixq run start words.json --wait")
@connection.service_or_database
def _start(
    file: Annotated[str, argument("SPEC", "JSON or YAML file; - for standard input.")],
    *,
    key: Annotated[
        str | None,
        option("--key KEY", "The same key is the same run. Default: a new one per command."),
    ] = None,
    egress: Annotated[str | None, option("--egress URI", "In place of the spec's egress.")] = None,
    queue: Annotated[str | None, option("--queue NAME", "In place of the spec's queue.")] = None,
    no_pfs: Annotated[
        bool, option("--no-pfs", "Also on workers that cannot show /pfs; HELIX_IN names it.")
    ] = False,
    spool: Annotated[
        Path | None,
        option("--spool FILE", "Keep the datums here: a repeat with --key lists nothing again."),
    ] = None,
    wait: Annotated[bool, option("--wait", "Watch the run until it has ended.")] = False,
    actor: options.Actor = None,
    tenant: options.Tenant = None,
    as_json: options.AsJson = False,
) -> None:
    """Start a run: list its inputs, and queue one batch per datum.

    Prints the name of the run. Needs credentials of the inputs in the environment, a root for each
    input and for the egress (helixq output root), and the scope run. With --key, a start that was
    interrupted continues, and a repeated one prints the same name.
    """
    text = run_start.read_text(file)
    spec = run_start.read_spec(text, egress=egress, queue=queue, pfs=not no_pfs)
    start(
        text, spec, tenant=tenant, actor=actor, as_json=as_json, key=key, spool=spool, wait=wait
    )  # fmt: skip


def start(
    text: str,
    spec: RunSpec,
    *,
    tenant: str | None,
    actor: str | None,
    as_json: bool,
    key: str | None = None,
    spool: Path | None = None,
    wait: bool = False,
) -> None:
    """Start the run of a spec and print its name, or with `wait`, its end."""
    with ExitStack() as stack:
        target = stack.enter_context(connection.open_target())
        ask = operation.Runner(target, tenant, actor, retry_seconds=RETRY_SECONDS)
        run_start.demand_pfs(spec, ask, examine=not target.is_service)
        if spool is None:
            directory = stack.enter_context(tempfile.TemporaryDirectory(prefix="helix-run-"))
            spool = Path(directory, "datums")
        begun = run_start.start(ask, spec, text, key or uuid.uuid4().hex, spool)
        found = _watch(ask, begun.name, None) if wait else None
    if as_json:
        show.as_json(shapes.plain(found or begun))
    else:
        show.line(begun.name)
    if found is not None:
        raise typer.Exit(EXITS[found.state])


@verb(app, "list", runs.list_runs, example="helixq run list --state failed", every_tenant=True)
def _list(page: Page[RunRow]) -> None:
    show.table(
        ("run", "state", "datums", "completed", "failed", "left", "created", "queue", "tenant"),
        [
            (
                row.name, row.state, str(row.datums), str(row.completed), str(row.failed),
                str(row.datums - row.ended), row.created_at, row.queue, row.tenant,
            )
            for row in page.rows
        ],
        [STYLES.get(row.state, "") for row in page.rows],
        empty="no runs",
        optional=("queue", "left", "created", "tenant"),
    )  # fmt: skip


@verb(app, "show", runs.show_run, example="helixq run show words-0c5de1f2a7", every_tenant=True)
def _show(run: RunDetail) -> None:
    show.facts(facts(run), {"state": STYLES.get(run.state, "")})
    if run.spec is not None:
        show.line("")
        show.line(run.spec)


def facts(run: RunRow) -> dict[str, str]:
    """What is known of a run, by name."""
    causes = [f"{number} {name}" for name, number in run.failures.items()]
    return {
        "run": run.name,
        "state": run.state + (f": {run.problem}" if run.problem else ""),
        "blocked": run.blocked or "",
        "datums": f"{run.datums}: {run.completed} completed, {run.failed} failed, "
        f"{run.cancelled} cancelled, {run.running} running, {run.pending} pending",
        "attempts": f"{run.tries} per datum; failed by cause: {', '.join(causes) or 'none'}",
        "speed": speed(run),
        "egress": run.egress + (f" at {run.destination}" if run.egress != run.destination else ""),
        "queue": f"{run.queue} of tenant {run.tenant}",
        "started": f"{show.time_text(run.created_at)} by {run.actor}, key {run.key}",
        "deadline": show.time_text(run.deadline) if run.deadline else "",
        "ended": show.time_text(run.ended_at) if run.ended_at else "",
    }


def speed(run: RunRow) -> str:
    now = datetime.now(UTC)
    left = run.seconds_left(now)
    rate = f"{run.rate(now):.3g} per second"
    return rate if left is None else f"{rate}, {timedelta(seconds=round(left))} left"


@verb(
    app,
    "datums",
    runs.list_datums,
    example="helixq run datums words-0c5de1f2a7 --state failed",
    every_tenant=True,
)
def _datums(page: Page[BatchRow]) -> None:
    show.table(
        ("datum", "state", "attempt", "worker", "failure", "batch"),
        [
            (
                row.identity[-1] if row.identity else "", row.state, str(row.attempt),
                row.worker or row.finished_by or "", row.failure or row.cause or "", row.batch_id,
            )
            for row in page.rows
        ],
        [show.STYLES[row.state] for row in page.rows],
        empty="no datums",
    )  # fmt: skip


@verb(
    app,
    "outputs",
    runs.list_run_outputs,
    example="helixq run outputs words-0c5de1f2a7",
    every_tenant=True,
)
def _outputs(page: Page[RunOutput]) -> None:
    show.table(
        ("uri", "bytes", "datum", "sha256"),
        [(row.uri, str(row.size), row.datum, row.sha256) for row in page.rows],
        empty="no published files",
        optional=("datum", "sha256"),
    )


def _follow(looks: Callable[..., RunDetail]) -> Callable[..., None]:
    """A command that waits for the end of a run."""

    def run_command(
        run: RunName,
        *,
        timeout: Timeout = None,
        tenant: options.Tenant = None,
        as_json: options.AsJson = False,
    ) -> None:
        with connection.open_target() as target:
            ask = operation.Runner(
                target, tenant, None, every_tenant=True, retry_seconds=RETRY_SECONDS
            )
            try:
                found = looks(ask, run, timeout)
            except InProgress as error:
                show.progress(str(error))
                raise typer.Exit(Exit.TIMEOUT) from None
        if as_json:
            show.as_json(shapes.plain(found))
        else:
            show.line(found.state)
        raise typer.Exit(EXITS[found.state])

    run_command.__doc__ = looks.__doc__
    return run_command


def wait(ask: operation.Runner, run: str, timeout: float | None) -> RunDetail:
    """Wait until a run has ended and its files are published.

    Prints the state. Exit code 0: done, 1: failed, 11: cancelled, 12: not within --timeout.
    """
    return ask(lambda operations: run_calls.wait_run(operations, run, timeout))


def _watch(ask: operation.Runner, run: str, timeout: float | None) -> RunDetail:
    """Show how far a run is until it has ended.

    With rate, time left and failures by cause: a bar on a terminal, else a line per change on
    standard error. Exits like `wait`.
    """
    began = datetime.now(UTC)
    found: RunDetail = ask(lambda operations: runs.show_run(operations, run))
    shown = ""
    with show.bar(found.name, "datums", found.datums) as update:
        while found.state not in ENDED and found.blocked is None:
            causes = "".join(f", {number} x {name}" for name, number in found.failures.items())
            text = f"{found.name}: {found.state}, {found.ended} of {found.datums}{causes}"
            update(found.ended, found.ended, note=f"{speed(found)}{causes}")
            if text != shown and not sys.stderr.isatty():
                show.progress(f"{text}, {speed(found)}")
            shown = text
            if timeout is not None and datetime.now(UTC) - began > timedelta(seconds=timeout):
                break
            found = ask(partial(_look, run=run))
    return wait(ask, run, 0 if found.state not in ENDED and found.blocked is None else None)


def _look(operations: Any, *, run: str) -> Any:  # noqa: ANN401 - instructions
    from helixqueue.operations.instructions import Sleep  # noqa: PLC0415

    yield Sleep(LOOK_SECONDS)
    return (yield from runs.show_run(operations, run))


command(app, "wait", example="helixq run wait words-0c5de1f2a7 --timeout 2h")(
    connection.service_or_database(_follow(wait))
)
command(app, "watch", example="helixq run watch words-0c5de1f2a7")(
    connection.service_or_database(_follow(_watch))
)


@command(app, "logs", example="helixq run logs words-0c5de1f2a7 books/7.txt")
@connection.service_or_database
def _logs(
    run: RunName,
    datum: Annotated[
        str | None, argument("DATUM", "Datum; without it, those that failed, newest first.")
    ] = None,
    *,
    limit: options.Limit = 10,
    tenant: options.Tenant = None,
    as_json: options.AsJson = False,
) -> None:
    """Show what the command of a datum printed.

    Its beginning and its end. Needs the scope payloads.
    """
    with connection.open_target() as target:
        ask = operation.Runner(target, tenant, None, every_tenant=True)
        found: RunDetail = ask(lambda operations: runs.show_run(operations, run))
        if datum is None:
            failed: Page[BatchRow] = ask(
                lambda operations: runs.list_datums(
                    operations, found.name, state="FAILED", limit=limit
                )
            )
            ids = [row.batch_id for row in failed.rows]
        else:
            ids = [run_start.batch_of(found, datum)]
        batches = [
            ask(partial(batch_reads.show_batch, batch_id=each, payload=True)) for each in ids
        ]
    logs = {batch.identity[-1]: log_of(batch) for batch in batches}
    if as_json:
        show.as_json(logs)
        return
    for name, log in logs.items():
        if datum is None:
            show.line(f"== {name}")
        show.line(log.rstrip("\n"))


def log_of(batch: Any) -> str:  # noqa: ANN401 - a BatchDetail
    """What the last attempt printed, or why it failed."""
    if isinstance(batch.result, dict) and isinstance(batch.result.get("log"), str):
        return str(batch.result["log"])
    details = [event.detail for event in batch.events if event.detail]
    return batch.detail or (details[-1] if details else "")


@verb(
    app,
    "cancel",
    runs.cancel_run,
    example='helixq run cancel words-0c5de1f2a7 --reason "wrong input"',
    every_tenant=True,
)
def _cancel(changed: RunProgress) -> None:
    show.line(f"{changed.name}: {changed.state}")


@verb(
    app,
    "retry",
    runs.retry_run,
    example='helixq run retry words-0c5de1f2a7 --reason "fixed the script"',
    every_tenant=True,
)
def _retry(changed: RunProgress) -> None:
    show.line(f"{changed.name}: {changed.state}")
