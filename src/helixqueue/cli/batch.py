"""`helixq batch list | show | retry | cancel | release | erase`."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Annotated

import typer

from helixqueue.cli import (
    batch_ref,
    batch_report,
    connection,
    options,
    pages,
    shapes,
    show,
    times,
    unicode_diff,
)
from helixqueue.cli.batch_selection import Selection, act, show_results
from helixqueue.cli.command import command
from helixqueue.cli.exits import NoSuchBatch
from helixqueue.states import State

if TYPE_CHECKING:
    import uuid

    from helixqueue.records.batch import BatchRow

app = typer.Typer(no_args_is_help=True, help="Batches: list, show, retry, cancel, release, erase.")

Ref = Annotated[
    str, typer.Argument(metavar="BATCH", help="Id (at least 8 characters), key or identity.")
]
Refs = Annotated[
    list[str],
    typer.Argument(metavar="BATCH", help="Ids (at least 8 characters), keys or identities."),
]
InQueue = Annotated[
    str | None,
    typer.Option("--queue", metavar="NAME", help="Only batches of this queue.", show_default=False),
]
Revision = Annotated[
    str | None,
    typer.Option(
        "--revision",
        metavar="TEXT",
        help="Revision, if the identity has several.",
        show_default=False,
    ),
]
Failure = Annotated[
    str | None,
    typer.Option(
        "--failure",
        metavar="CLASS",
        help="Only FAILED batches of this failure class.",
        show_default=False,
    ),
]
InIdentity = Annotated[
    str | None,
    typer.Option(
        "--identity",
        metavar="TEXT",
        help="Only batches of this identity, in any spelling.",
        show_default=False,
    ),
]
ByWorker = Annotated[
    str | None,
    typer.Option(
        "--worker",
        metavar="NAME",
        help="Only batches that this worker holds; with a finished state, that it finished.",
        show_default=False,
    ),
]
Since = Annotated[
    str | None,
    typer.Option(
        "--since", metavar="TIME", help=f"From this time, {options.TIME_HELP}.", show_default=False
    ),
]
Until = Annotated[
    str | None,
    typer.Option("--until", metavar="TIME", help="Before this time.", show_default=False),
]


def register(parent: typer.Typer) -> None:
    parent.add_typer(app, name="batch")


@command(app, "list", example="helixq batch list --state failed --since 2h")
@connection.over_http
def _list(
    *,
    queue: InQueue = None,
    state: Annotated[
        State | None,
        typer.Option(
            "--state",
            metavar="STATE",
            case_sensitive=False,
            help=f"{', '.join(State)}.",
            show_default=False,
        ),
    ] = None,
    failure: Failure = None,
    identity: InIdentity = None,
    worker: ByWorker = None,
    run: Annotated[
        int | None,
        typer.Option(
            "--run",
            metavar="N",
            min=1,
            max=2**63 - 1,
            help="Only batches of this run.",
            show_default=False,
        ),
    ] = None,
    since: Since = None,
    until: Until = None,
    limit: options.Limit = 50,
    after: options.After = None,
    tenant: options.Tenant = None,
    dsn: options.Dsn = None,
    data: options.Data = None,
    as_json: options.AsJson = False,
) -> None:
    """List batches, newest first.

    With a finished state, order, --since and --until refer to the time when the batch finished,
    else to the time of submission. If there are more rows, the last line shows the cursor for
    --after.
    """
    with connection.open_target(dsn, data) as target:
        read = partial(
            target.reads.batches,
            tenant=connection.tenant_to_read(target, tenant),
            queue=queue,
            state=state,
            failure=failure,
            identity=identity,
            worker=worker,
            run=run,
            since=None if since is None else times.moment(since),
            until=None if until is None else times.moment(until),
        )
        rows, cursor = pages.read_rows(target, read, limit, after)
    if as_json:
        show.as_json({"batches": [shapes.batch(row) for row in rows], "next": cursor})
        return
    show.table(
        ("batch", "queue", "identity", "state", "attempt", "submitted", "detail"),
        [_row(row) for row in rows],
        [show.STYLES[row.state] for row in rows],
        empty="no batches",
    )
    pages.print_next(cursor)


def _row(row: BatchRow) -> tuple[str, ...]:
    detail = ""
    if row.worker is not None:
        detail = f"leased to {row.worker} until {times.to_seconds(row.deadline)}"
    elif row.cause is not None:
        detail = f"{row.cause}{' until ' + times.to_seconds(row.due) if row.due else ''}"
    elif row.finished_at is not None:
        failure = " ".join(part for part in (row.failure, row.detail) if part)
        detail = f"{times.to_seconds(row.finished_at)} by {row.finished_by}"
        if row.state == State.FAILED and row.last_worker not in {None, row.finished_by}:
            detail += f", last held by {row.last_worker}"
        detail += failure and f": {failure}"
    return (
        str(row.batch_id), row.queue, unicode_diff.identity_text(row.raw, row.revision), row.state,
        str(row.attempt), times.to_seconds(row.created_at), detail,
    )  # fmt: skip


@command(app, "show", example="helixq batch show 6ead468e")
@connection.over_http
def _show(
    batch: Ref,
    *,
    queue: InQueue = None,
    revision: Revision = None,
    payload: Annotated[
        bool, typer.Option("--payload", help="Also show payload and result.")
    ] = False,
    tenant: options.Tenant = None,
    dsn: options.Dsn = None,
    data: options.Data = None,
    as_json: options.AsJson = False,
) -> None:
    """Show one batch with its attempts and events.

    Also shows refused writes with both workers, duplicate submissions, and both spellings of the
    identity. Exit code 1: no such batch.
    """
    with connection.open_target(dsn, data) as target:
        batch_id = _find(target, batch, tenant, queue, revision)
        detail = target.run(target.reads.batch_detail(batch_id, payload=payload))
    if detail is None:
        raise NoSuchBatch(f"no batch that this login may see has the id {batch_id}")
    if as_json:
        show.as_json(shapes.batch_detail(detail, payload=payload))
    else:
        batch_report.print_batch(detail)


def _find(
    target: connection.Target,
    ref: str,
    tenant: str | None,
    queue: str | None,
    revision: str | None = None,
) -> uuid.UUID:
    tenant = connection.tenant_to_read(target, tenant)
    return batch_ref.find(target, ref, tenant=tenant, queue=queue, revision=revision)


OptionalRefs = Annotated[
    list[str] | None,
    typer.Argument(metavar="BATCH", help="Ids, keys or identities; omit them to use filters."),
]
ActionLimit = Annotated[
    int | None,
    typer.Option(
        "--limit",
        metavar="N",
        min=1,
        max=options.LIMIT_MAX,
        help="Maximum number of batches that filters select. [default: all]",
        show_default=False,
    ),
]
DryRun = Annotated[
    bool, typer.Option("--dry-run", help="Show what would happen without changing anything.")
]


@command(app, "retry", example='helixq batch retry --failure executor --reason "disk replaced"')
@connection.over_http
def _retry(
    batches: OptionalRefs = None,
    *,
    reason: options.Reason,
    actor: options.Actor = None,
    queue: InQueue = None,
    failure: Failure = None,
    identity: InIdentity = None,
    worker: ByWorker = None,
    since: Since = None,
    until: Until = None,
    limit: ActionLimit = None,
    after: options.After = None,
    dry_run: DryRun = False,
    tenant: options.Tenant = None,
    dsn: options.Dsn = None,
    data: options.Data = None,
    as_json: options.AsJson = False,
) -> None:
    """Retry failed batches, with all their attempts again.

    Name the batches, or select them by filters: the latest failures come first, and --since and
    --until refer to the time of failure. Exit code 1: a batch is not FAILED or does not exist.
    """
    filters = {
        "failure": failure, "identity": identity, "worker": worker, "since": since, "until": until,
    }  # fmt: skip
    selection = Selection(batches, queue, filters, limit, after)
    with connection.open_target(dsn, data) as target:
        act(
            target,
            "retry",
            selection,
            tenant=tenant,
            reason=reason,
            actor=actor,
            dry_run=dry_run,
            as_json=as_json,
        )


@command(app, "cancel", example='helixq batch cancel Sample-11 --reason "wrong flow cell"')
@connection.over_http
def _cancel(
    batches: OptionalRefs = None,
    *,
    reason: options.Reason,
    actor: options.Actor = None,
    queue: InQueue = None,
    state: Annotated[
        State | None,
        typer.Option(
            "--state",
            metavar="STATE",
            case_sensitive=False,
            help="PENDING, ASSIGNED or RUNNING; required with filters.",
            show_default=False,
        ),
    ] = None,
    identity: InIdentity = None,
    worker: ByWorker = None,
    since: Since = None,
    until: Until = None,
    limit: ActionLimit = None,
    after: options.After = None,
    dry_run: DryRun = False,
    tenant: options.Tenant = None,
    dsn: options.Dsn = None,
    data: options.Data = None,
    as_json: options.AsJson = False,
) -> None:
    """Cancel batches that have not finished.

    Name the batches, or select them by filters. Later writes of a worker that holds one are
    refused. Exit code 1: a batch has already finished or does not exist.
    """
    filters = {
        "state": state, "identity": identity, "worker": worker, "since": since, "until": until,
    }  # fmt: skip
    selection = Selection(batches, queue, filters, limit, after)
    with connection.open_target(dsn, data) as target:
        act(
            target,
            "cancel",
            selection,
            tenant=tenant,
            reason=reason,
            actor=actor,
            dry_run=dry_run,
            as_json=as_json,
        )


def _add_action(name: str, call: str, *, text: str, example: str) -> None:
    """Register a command that changes the named batches with the engine call `call`."""

    @command(app, name, text=text, example=example)
    @connection.over_http
    def action(
        batches: Refs,
        *,
        reason: options.Reason,
        actor: options.Actor = None,
        queue: InQueue = None,
        tenant: options.Tenant = None,
        dsn: options.Dsn = None,
        data: options.Data = None,
        as_json: options.AsJson = False,
    ) -> None:
        with connection.open_target(dsn, data) as target:
            ids = [_find(target, ref, tenant, queue) for ref in batches]
            build = getattr(target.calls, call)
            # A service takes one batch per request; a database takes all at once.
            chunks = [[batch_id] for batch_id in ids] if target.is_service else [ids]
            results = [
                result
                for chunk in chunks
                for result in target.run(build(ids=chunk, reason=reason, actor=actor))
            ]
        show_results(results, as_json=as_json)


_add_action(
    "release",
    "release_by_id",
    text="""Return batches of lost workers to their queue.

    This costs no attempt, and later writes of those workers are refused. Exit code 1: a batch is
    not leased or does not exist.
    """,
    example='helixq batch release Sample-11 --reason "the node is down"',
)
_add_action(
    "erase",
    "erase",
    text="""Delete payload and result of finished batches.

    This cannot be undone; the ledger keeps the events. Exit code 1: a batch has not finished or
    does not exist.
    """,
    example='helixq batch erase Sample-07 --reason "consent withdrawn"',
)
