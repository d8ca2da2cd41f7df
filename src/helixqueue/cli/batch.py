"""`helixq batch list | causes | show | export | retry | cancel | release | erase`."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

import typer

from helixqueue.cli import batch_export, batch_ref, batch_report, options, show, unicode_diff
from helixqueue.cli.derived_commands import verb
from helixqueue.cli.exits import Exit
from helixqueue.cli.options import argument, option
from helixqueue.operations import batch_actions, batch_reads, overview
from helixqueue.records.batch import failure_text
from helixqueue.states import State

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from helixqueue.cli.operation import Runner
    from helixqueue.operations.batches import Operations
    from helixqueue.operations.instructions import Instructions
    from helixqueue.operations.operation import Operation
    from helixqueue.records.batch import ActionResult, BatchDetail, BatchRow, FailureCause
    from helixqueue.records.page import Page

app = typer.Typer(no_args_is_help=True, help="Batches: list, show, retry, cancel, erase and more.")
# Ids, short ids, keys or identities, which commands find; services and clients take ids.
IN_QUEUE = {"queue": Annotated[str | None, option("--queue NAME", "Only batches of this queue.")]}
OPTIONAL_REFS = {
    "batch_ids": Annotated[
        list[str] | None, argument("BATCH", "Ids, keys or identities; omit them to use filters.")
    ]
}
REVISION = {
    "revision": Annotated[
        str | None, option("--revision TEXT", "Revision, if the identity has several.")
    ]
}


def register(parent: typer.Typer) -> None:
    parent.add_typer(app, name="batch")


@verb(
    app,
    "list",
    batch_reads.list_batches,
    example="helixq batch list --state failed --since 2h",
    every_tenant=True,
)
def _list(page: Page[BatchRow]) -> None:
    show.table(
        ("batch", "queue", "identity", "state", "attempt", "submitted", "detail", "tenant"),
        [_row(row) for row in page.rows],
        [show.STYLES[row.state] for row in page.rows],
        empty="no batches",
        first="identity",
        optional=("submitted", "queue", "attempt", "tenant"),
    )


def _row(row: BatchRow) -> tuple[show.Cell, ...]:
    detail = ""
    if row.worker is not None:
        detail = f"leased to {row.worker} until {show.time_text(row.deadline)}"
    elif row.cause is not None:
        detail = f"{row.cause}{' until ' + show.time_text(row.due) if row.due else ''}"
    elif row.finished_at is not None:
        failure = failure_text(row.failure, row.detail).partition("\n")[0]
        detail = f"{show.time_text(row.finished_at)} by {row.finished_by}"
        if row.state == State.FAILED and row.last_worker not in {None, row.finished_by}:
            detail += f", last held by {row.last_worker}"
        detail += failure and f": {failure}"
    return (
        row.batch_id, row.queue, unicode_diff.identity_text(row.identity, row.revision), row.state,
        str(row.attempt), row.created_at, detail, row.tenant,
    )  # fmt: skip


@verb(
    app,
    "causes",
    batch_reads.list_causes,
    example="helixq batch causes --queue basecall",
    every_tenant=True,
)
def _causes(page: Page[FailureCause]) -> None:
    show.table(
        ("batches", "queue", "failure", "example", "newest", "message", "tenant"),
        [
            (
                str(cause.batches), cause.queue, cause.failure,
                unicode_diff.identity_text(cause.example, cause.revision), cause.newest,
                cause.text or "", cause.tenant,
            )
            for cause in page.rows
        ],
        empty="no failed batches",
        optional=("newest", "queue", "tenant"),
    )  # fmt: skip
    if page.rows:
        show.progress('retry a class: helixq batch retry --failure CLASS --reason "..."')


def _show_named(
    operations: Operations,
    batch_id: str,
    *,
    queue: str | None = None,
    revision: str | None = None,
    payload: bool = False,
) -> Instructions[BatchDetail]:
    found = yield from batch_ref.find(operations, batch_id, queue=queue, revision=revision)
    return (yield from batch_reads.show_batch(operations, found, payload=payload))


@verb(
    app,
    "show",
    batch_reads.show_batch,
    example="helixq batch show 6ead468e",
    every_tenant=True,
    instead=_show_named,
    more=IN_QUEUE | REVISION | {"batch_id": options.BatchRef},
)
def _show(batch: BatchDetail, *, ask: Runner) -> None:
    why = None
    if batch.state is State.PENDING and batch.queue is not None:
        waiting = ask(partial(overview.reasons_to_wait, queue=batch.queue))
        why = next((row.why for row in waiting if row.batch_id == batch.batch_id), None)
    batch_report.print_batch(batch, why)


def _names_batches(values: Mapping[str, Any]) -> bool:
    """Filters would select batches of every tenant of the login."""
    return bool(values["batch_ids"])


_NOT_FILTERS = {"reason", "dry_run", "after"}


def _named(
    action: Operation[..., Page[ActionResult]],
) -> Callable[..., Instructions[Page[ActionResult]]]:
    """The action on batches by name, of which `queue` has the identities, or by filter."""

    def instead(
        operations: Operations,
        *,
        batch_ids: list[str] | None = None,
        queue: str | None = None,
        limit: int,
        **values: Any,  # noqa: ANN401
    ) -> Instructions[Page[ActionResult]]:
        filters = values.keys() - _NOT_FILTERS
        if not batch_ids:
            if queue is None and not filters:
                raise typer.BadParameter("expected BATCH... or a filter such as --queue, got none")
            return (yield from action(operations, queue=queue, limit=limit, **values))
        if filters or len(batch_ids) > limit:
            got = f"--{min(filters)}" if filters else f"more than {limit}"
            raise typer.BadParameter(f"expected BATCH... or filters, got both: {got}")
        found = yield from batch_ref.find_all(operations, batch_ids, queue)
        return (yield from action(operations, found, **values))

    return instead


def _each_named(
    action: Operation[..., ActionResult],
) -> Callable[..., Instructions[Page[ActionResult]]]:
    """The action on one batch after another, by name."""

    def instead(
        operations: Operations,
        batch_id: list[str],
        *,
        queue: str | None = None,
        **values: Any,  # noqa: ANN401
    ) -> Instructions[Page[ActionResult]]:
        found = yield from batch_ref.find_all(operations, batch_id, queue)
        return (yield from batch_actions.each(operations, action, found, **values))

    return instead


def _code(page: Page[ActionResult]) -> Exit:
    answers = {result.answer for result in page.rows}
    if answers <= {"ok", "repeat"}:
        return Exit.OK
    return Exit.BUSY if answers <= {"ok", "repeat", "busy"} else Exit.NO


def _print_answers(page: Page[ActionResult], *, dry_run: bool = False) -> None:
    if dry_run:
        show.progress("dry run: nothing was changed")
    show.table(
        ("batch", "identity", "answer", "state", "note"),
        [
            (
                result.batch_id,
                unicode_diff.identity_text(result.identity, result.revision or ""),
                result.answer,
                result.state or "",
                _note(result),
            )
            for result in page.rows
        ],
        ["green" if result.answer in {"ok", "repeat"} else "bold red" for result in page.rows],
        empty="no batches",
        first="identity",
    )


def _note(result: ActionResult) -> str:
    if result.answer == "illegal" and result.note is None:
        return f"not possible for a batch that is {result.state}"
    return result.note or ""


_REFS = {
    "batch_id": Annotated[
        list[str], argument("BATCH", "Ids (at least 8 characters), keys or identities.")
    ]
}


@verb(
    app,
    "retry",
    batch_actions.retry_batches,
    example='helixq batch retry --failure executor --reason "disk replaced"',
    every_tenant=_names_batches,
    instead=_named(batch_actions.retry_batches),
    more=OPTIONAL_REFS,
    refused=_code,
)
def _retry(page: Page[ActionResult], *, dry_run: bool) -> None:
    _print_answers(page, dry_run=dry_run)


@verb(
    app,
    "cancel",
    batch_actions.cancel_batches,
    example='helixq batch cancel Sample-11 --reason "wrong flow cell"',
    every_tenant=_names_batches,
    instead=_named(batch_actions.cancel_batches),
    more=OPTIONAL_REFS,
    refused=_code,
)
def _cancel(page: Page[ActionResult], *, dry_run: bool) -> None:
    _print_answers(page, dry_run=dry_run)


@verb(
    app,
    "release",
    batch_actions.release_batch,
    example='helixq batch release Sample-11 --reason "the node is down"',
    every_tenant=True,
    instead=_each_named(batch_actions.release_batch),
    more=_REFS | IN_QUEUE,
    refused=_code,
)
def _release(page: Any) -> None:  # noqa: ANN401 - one answer per batch
    _print_answers(page)


@verb(
    app,
    "erase",
    batch_actions.erase_batch,
    example='helixq batch erase Sample-07 --reason "consent withdrawn"',
    every_tenant=True,
    instead=_each_named(batch_actions.erase_batch),
    more=_REFS | IN_QUEUE,
    refused=_code,
)
def _erase(page: Any) -> None:  # noqa: ANN401 - as above
    _print_answers(page)


batch_export.register(app)
