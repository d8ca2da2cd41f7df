"""`helixq batch list | show | export | retry | cancel | release | erase`."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Annotated

import typer

from helixqueue.cli import (
    batch_causes,
    batch_export,
    batch_options,
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
from helixqueue.cli.batch_selection import Selection, act, act_on_each, show_results
from helixqueue.cli.command import command
from helixqueue.cli.exits import NoSuchBatch
from helixqueue.states import State

if TYPE_CHECKING:
    import uuid

    from helixqueue.records.batch import BatchRow

app = typer.Typer(
    no_args_is_help=True, help="Batches: list, show, export, retry, cancel, release, erase."
)


def register(parent: typer.Typer) -> None:
    parent.add_typer(app, name="batch")


@command(app, "list", example="helixq batch list --state failed --since 2h")
@connection.service_or_database
def _list(
    *,
    queue: batch_options.InQueue = None,
    state: batch_options.InState = None,
    failure: batch_options.Failure = None,
    identity: batch_options.InIdentity = None,
    worker: batch_options.ByWorker = None,
    run: batch_options.InRun = None,
    since: batch_options.Since = None,
    until: batch_options.Until = None,
    by_cause: Annotated[
        bool,
        typer.Option("--by-cause", help="Group all FAILED batches by failure class and message."),
    ] = False,
    limit: options.Limit = 50,
    after: options.After = None,
    tenant: options.Tenant = None,
    as_json: options.AsJson = False,
) -> None:
    """List batches, newest first.

    With a finished state, order, --since and --until refer to the time when the batch finished,
    else to the time of submission. If there are more rows, the last line shows the cursor for
    --after. In the messages of --by-cause, (identity) and N stand for identities and numbers.
    """
    if by_cause and state not in {None, State.FAILED}:
        raise typer.BadParameter(f"--by-cause: expected the state FAILED, got {state}")
    with connection.open_target() as target:
        read = partial(
            target.reads.batches,
            tenant=connection.tenant_to_read(target, tenant),
            queue=queue,
            state=State.FAILED if by_cause else state,
            failure=failure,
            identity=identity,
            worker=worker,
            run=run,
            since=None if since is None else times.moment(since),
            until=None if until is None else times.moment(until),
        )
        if by_cause:
            batch_causes.print_causes(batch_causes.group(target, read), as_json=as_json)
            return
        rows, cursor = pages.read_rows(target, read, limit, after)
    if as_json:
        show.as_json({"batches": [shapes.batch(row) for row in rows], "next": cursor})
        return
    show.table(
        ("batch", "queue", "identity", "state", "attempt", "submitted", "detail"),
        [_row(row) for row in rows],
        [show.STYLES[row.state] for row in rows],
        empty="no batches",
        first="identity",
        optional=("detail", "submitted", "queue", "attempt"),
    )
    pages.print_next(cursor)


def _row(row: BatchRow) -> tuple[show.Cell, ...]:
    detail = ""
    if row.worker is not None:
        detail = f"leased to {row.worker} until {show.time_text(row.deadline)}"
    elif row.cause is not None:
        detail = f"{row.cause}{' until ' + show.time_text(row.due) if row.due else ''}"
    elif row.finished_at is not None:
        message = (row.detail or "").strip().partition("\n")[0]
        failure = " ".join(part for part in (row.failure, message) if part)
        detail = f"{show.time_text(row.finished_at)} by {row.finished_by}"
        if row.state == State.FAILED and row.last_worker not in {None, row.finished_by}:
            detail += f", last held by {row.last_worker}"
        detail += failure and f": {failure}"
    return (
        row.batch_id, row.queue, unicode_diff.identity_text(row.identity, row.revision), row.state,
        str(row.attempt), row.created_at, detail,
    )  # fmt: skip


@command(app, "show", example="helixq batch show 6ead468e")
@connection.service_or_database
def _show(
    batch: batch_options.Ref,
    *,
    queue: batch_options.InQueue = None,
    revision: batch_options.Revision = None,
    payload: Annotated[
        bool, typer.Option("--payload", help="Also show payload and result.")
    ] = False,
    tenant: options.Tenant = None,
    as_json: options.AsJson = False,
) -> None:
    """Show one batch with its attempts and events.

    Also shows refused writes with both workers, duplicate submissions, and both spellings of the
    identity. Exit code 1: no such batch.
    """
    with connection.open_target() as target:
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


@command(app, "retry", example='helixq batch retry --failure executor --reason "disk replaced"')
@connection.service_or_database
def _retry(
    batches: batch_options.OptionalRefs = None,
    *,
    reason: options.Reason,
    actor: options.Actor = None,
    queue: batch_options.InQueue = None,
    failure: batch_options.Failure = None,
    identity: batch_options.InIdentity = None,
    worker: batch_options.ByWorker = None,
    since: batch_options.Since = None,
    until: batch_options.Until = None,
    limit: batch_options.ActionLimit = None,
    after: options.After = None,
    dry_run: batch_options.DryRun = False,
    tenant: options.Tenant = None,
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
    with connection.open_target() as target:
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
@connection.service_or_database
def _cancel(
    batches: batch_options.OptionalRefs = None,
    *,
    reason: options.Reason,
    actor: options.Actor = None,
    queue: batch_options.InQueue = None,
    state: Annotated[
        State | None,
        typer.Option(
            "--state",
            metavar="STATE",
            case_sensitive=False,
            help="PENDING, ASSIGNED or RUNNING; required with filters.",
        ),
    ] = None,
    identity: batch_options.InIdentity = None,
    worker: batch_options.ByWorker = None,
    since: batch_options.Since = None,
    until: batch_options.Until = None,
    limit: batch_options.ActionLimit = None,
    after: options.After = None,
    dry_run: batch_options.DryRun = False,
    tenant: options.Tenant = None,
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
    with connection.open_target() as target:
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


@command(app, "release", example='helixq batch release Sample-11 --reason "the node is down"')
@connection.service_or_database
def _release(
    batches: batch_options.Refs,
    *,
    reason: options.Reason,
    actor: options.Actor = None,
    queue: batch_options.InQueue = None,
    tenant: options.Tenant = None,
    as_json: options.AsJson = False,
) -> None:
    """Return batches of lost workers to their queue.

    This costs no attempt, and later writes of those workers are refused. Exit code 1: a batch is
    not leased or does not exist.
    """
    with connection.open_target() as target:
        ids = [_find(target, ref, tenant, queue) for ref in batches]
        results = act_on_each(target, "release_by_id", ids, reason=reason, actor=actor)
    show_results(results, as_json=as_json)


@command(app, "erase", example='helixq batch erase Sample-07 --reason "consent withdrawn"')
@connection.service_or_database
def _erase(
    batches: batch_options.Refs,
    *,
    reason: options.Reason,
    identity: Annotated[
        bool, typer.Option("--identity", help="Delete the identity as well.")
    ] = False,
    actor: options.Actor = None,
    queue: batch_options.InQueue = None,
    tenant: options.Tenant = None,
    as_json: options.AsJson = False,
) -> None:
    """Delete payload and result of finished batches.

    Failure details and the copies in fences are deleted too. This cannot be undone; the ledger
    keeps the events. Exit code 1: a batch has not finished or does not exist.
    """
    with connection.open_target() as target:
        ids = [_find(target, ref, tenant, queue) for ref in batches]
        results = act_on_each(target, "erase", ids, reason=reason, actor=actor, identity=identity)
    show_results(results, as_json=as_json)


batch_export.register(app)
