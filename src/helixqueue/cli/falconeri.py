"""`helixq falconeri job run | list | describe | wait | retry`, `helixq falconeri datum describe`.

For scripts that call Falconeri: the same words on standard output, about runs.
"""

from __future__ import annotations

from datetime import UTC
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Annotated, Any, Final
from uuid import UUID

import typer

from helixqueue.cli import connection, operation, options, run, run_start, shapes, show
from helixqueue.cli.command import command
from helixqueue.cli.options import argument
from helixqueue.operations import batch_reads, runs
from helixqueue.records.parameter import MAX_PAGE

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from datetime import datetime

    from helixqueue.records.batch import BatchDetail
    from helixqueue.records.run import RunDetail, RunRow

app = typer.Typer(no_args_is_help=True, help="Verbs of Falconeri: job, datum.")
jobs = typer.Typer(no_args_is_help=True, help="Jobs: run, list, describe, wait, retry.")
datums = typer.Typer(no_args_is_help=True, help="Datums: describe.")
app.add_typer(jobs, name="job")
app.add_typer(datums, name="datum")
JOB_WORDS: Final = {"done": "done", "failed": "error", "cancelled": "canceled"}  # else running
DATUM_WORDS: Final = {
    "PENDING": "ready", "ASSIGNED": "running", "RUNNING": "running", "COMPLETED": "done",
    "FAILED": "error", "CANCELLED": "canceled",
}  # fmt: skip
SHOWN: Final = 100  # running datums, and datums that failed
Job = Annotated[str, argument("JOB", "Name of the job.")]


def register(parent: typer.Typer) -> None:
    parent.add_typer(app, name="falconeri")


@command(jobs, "run", example="helixq falconeri job run word-frequencies.json")
@connection.service_or_database
def _run(
    file: Annotated[str, argument("SPEC", "Pipeline file; - for standard input.")],
    *,
    actor: options.Actor = None,
    tenant: options.Tenant = None,
    as_json: options.AsJson = False,
) -> None:
    """Run a pipeline, and print the name of its job."""
    text = run_start.read_text(file)
    spec = run_start.read_spec(text)
    run.start(text, spec, tenant=tenant, actor=actor, as_json=as_json)


@command(jobs, "list", example="helixq falconeri job list")
@connection.service_or_database
def _list(*, tenant: options.Tenant = None, as_json: options.AsJson = False) -> None:
    """List jobs, newest first."""
    with connection.open_target() as target:
        ask = operation.Runner(target, tenant, None, every_tenant=True)
        rows = list(_all_runs(ask))
    if as_json:
        show.as_json([shapes.plain(row) for row in rows])
        return
    cells = [("JOB_NAME", "STATUS", "CREATED_AT")]
    cells += [(row.name, _word(row), _time(row.created_at)) for row in rows]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    for line in cells:
        padded = [f" {cell:<{width}} " for cell, width in zip(line, widths, strict=True)]
        show.line("".join(padded))


def _all_runs(ask: operation.Runner) -> Iterator[RunRow]:
    after = None
    while True:
        page = ask(partial(runs.list_runs, after=after, limit=MAX_PAGE))
        yield from page.rows
        after = page.next
        if after is None:
            return


@command(jobs, "describe", example="helixq falconeri job describe word-frequencies-0c5de1f2a7")
@connection.service_or_database
def _describe(job: Job, *, tenant: options.Tenant = None, as_json: options.AsJson = False) -> None:
    """Describe a job, and its datums that run or failed."""
    with connection.open_target() as target:
        ask = operation.Runner(target, tenant, None, every_tenant=True)
        found: RunDetail = ask(lambda operations: runs.show_run(operations, job))
        running = _rows(ask, found, "RUNNING") if found.running else []
        failed = _rows(ask, found, "FAILED") if found.failed else []
    if as_json:
        show.as_json(shapes.plain(found))
        return
    _fields(
        {
            "ID": str(found.run), "Job Name": found.name, "Status": _word(found),
            "Created At": _time(found.created_at), "Updated At": _time(_updated(found)),
            "Egress URI": found.egress, "Error Message": found.problem or found.blocked,
        }
    )  # fmt: skip
    show.line("\nDatum status:")
    for word, number in _counts(found).items():
        if number:
            show.line(f"  {word}: {number}")
    if running:
        show.line("\nRunning datums:\nID  STARTED_AT")
        for row in running:
            show.line(f"{row.batch_id}  {_time(row.created_at)}")
    if failed:
        show.line("\nErrors:\nID  FINISHED_AT  ERROR_MESSAGE")
        for row in failed:
            message = (row.detail or row.failure or "").partition("\n")[0]
            show.line(f"{row.batch_id}  {_time(row.finished_at)}  {message}")


def _rows(ask: operation.Runner, found: RunDetail, state: str) -> list[Any]:
    """The first datums of a state."""

    def pages() -> Iterator[Any]:
        after = None
        while True:
            page = ask(
                partial(runs.list_datums, run=found.name, state=state, after=after, limit=MAX_PAGE)
            )
            yield from page.rows
            after = page.next
            if after is None:
                return

    return list(islice(pages(), SHOWN))


@command(jobs, "wait", example="helixq falconeri job wait word-frequencies-0c5de1f2a7")
@connection.service_or_database
def _wait(job: Job, *, tenant: options.Tenant = None, as_json: options.AsJson = False) -> None:
    """Wait until a job has ended, and print its status.

    Exit code 0: done, 1: error, 11: canceled.
    """
    with connection.open_target() as target:
        ask = operation.Runner(
            target, tenant, None, every_tenant=True, retry_seconds=run.RETRY_SECONDS
        )
        found = run.wait(ask, job, None)
    if as_json:
        show.as_json(shapes.plain(found))
    else:
        show.line(_word(found))
    raise typer.Exit(run.EXITS[found.state])


@command(jobs, "retry", example="helixq falconeri job retry word-frequencies-0c5de1f2a7")
@connection.service_or_database
def _retry(
    job: Job,
    *,
    actor: options.Actor = None,
    tenant: options.Tenant = None,
    as_json: options.AsJson = False,
) -> None:
    """Retry the datums of a job that failed or never ran.

    In the same job, whose name is printed.
    """
    with connection.open_target() as target:
        ask = operation.Runner(target, tenant, actor)
        changed = ask(partial(runs.retry_run, run=job, reason="falconeri job retry"))
    if as_json:
        show.as_json(shapes.plain(changed))
    else:
        show.line(changed.name)


@command(datums, "describe", example="helixq falconeri datum describe UUID")
@connection.service_or_database
def _describe_datum(
    datum: Annotated[UUID, argument("DATUM", "Id of the datum.")],
    *,
    tenant: options.Tenant = None,
    as_json: options.AsJson = False,
) -> None:
    """Describe a datum: its inputs, and what its command printed.

    Needs the scope payloads.
    """
    with connection.open_target() as target:
        ask = operation.Runner(target, tenant, None, every_tenant=True)
        batch: BatchDetail = ask(partial(batch_reads.show_batch, batch_id=datum, payload=True))
    if as_json:
        show.as_json(shapes.plain(batch))
        return
    payload: Mapping[str, Any] = batch.payload or {}
    worker = batch.worker or batch.finished_by
    _fields(
        {
            "ID": str(batch.batch_id), "Status": DATUM_WORDS[batch.state],
            "Created At": _time(batch.created_at), "Updated At": _time(batch.events[-1].at),
            "Pod Name": worker,
        }
    )  # fmt: skip
    show.line("\nInput Files:")
    for item in payload.get("inputs", []):
        show.line(item["uri"])
    if batch.failure:
        show.line(f"\nError Message: {batch.failure}")
    if log := run.log_of(batch):
        show.line(f"\nOutput:\n{log}")


def _fields(values: Mapping[str, str | None]) -> None:
    for name, value in values.items():
        if value:
            show.line(f"{name}: {value}")


def _word(found: RunRow) -> str:
    return JOB_WORDS.get(found.state, "running")


def _counts(found: RunRow) -> dict[str, int]:
    return {
        "ready": found.pending, "running": found.running, "done": found.completed,
        "error": found.failed, "canceled": found.cancelled,
    }  # fmt: skip


def _updated(found: RunRow) -> datetime:
    return found.ended_at or found.created_at


def _time(at: datetime | None) -> str:
    """UTC without a zone."""
    return "" if at is None else f"{at.astimezone(UTC):%Y-%m-%d %H:%M:%S.%f}"
