"""`helixq batch list | show | retry | cancel | erase`."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Annotated

import typer

from helixqueue.cli import (
    batch_ref,
    batch_report,
    connection,
    pages,
    shapes,
    show,
    times,
    unicode_diff,
)
from helixqueue.cli.batch_selection import Selection, act, show_results
from helixqueue.cli.exits import NoSuchBatch
from helixqueue.states import State

if TYPE_CHECKING:
    import uuid

    from helixqueue.records.batch import BatchRow

app = typer.Typer(no_args_is_help=True, help="Batches: list, show, retry, cancel, release, erase.")

Ref = Annotated[str, typer.Argument(metavar="BATCH", help="Its id, its key, or its identity.")]
Refs = Annotated[
    list[str], typer.Argument(metavar="BATCH...", help="Ids, keys, or identities of batches.")
]
InQueue = Annotated[
    str | None,
    typer.Option("--queue", metavar="NAME", help="Only in this queue.", show_default=False),
]
Revision = Annotated[
    str | None,
    typer.Option("--revision", help="Of the identity, when it has several.", show_default=False),
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
    str | None, typer.Option("--identity", help="In any spelling.", show_default=False)
]
ByWorker = Annotated[
    str | None,
    typer.Option(
        "--worker",
        help="The worker that holds the batch; with a finished state, that finished it.",
        show_default=False,
    ),
]
Since = Annotated[
    str | None,
    typer.Option("--since", metavar="TIME", help="2026-03-01T08:00, or 2h.", show_default=False),
]
Until = Annotated[
    str | None,
    typer.Option("--until", metavar="TIME", help="Before this time.", show_default=False),
]
After = Annotated[
    str | None,
    typer.Option(
        "--after", metavar="CURSOR", help="Continue after this cursor.", show_default=False
    ),
]


def register(parent: typer.Typer) -> None:
    parent.add_typer(app, name="batch")


@app.command("list")
@connection.over_http
def _list(
    *,
    queue: InQueue = None,
    state: Annotated[
        State | None, typer.Option("--state", case_sensitive=False, show_default=False)
    ] = None,
    failure: Failure = None,
    identity: InIdentity = None,
    worker: ByWorker = None,
    run: Annotated[
        int | None,
        typer.Option("--run", min=1, max=2**63 - 1, help="Only of this run.", show_default=False),
    ] = None,
    since: Since = None,
    until: Until = None,
    limit: Annotated[
        int, typer.Option("--limit", min=1, max=pages.LIMIT_MAX, help="Maximum number of rows.")
    ] = 50,
    after: After = None,
    tenant: connection.Tenant = None,
    dsn: connection.Dsn = None,
    data: connection.Data = None,
    as_json: connection.AsJson = False,
) -> None:
    """List batches, newest first.

    Finished states are ordered by when the batch finished, all else by when it was submitted;
    --since and --until mean that time. A page ends with the cursor of the next.
    """
    with connection.reached(dsn, data) as there:
        read = partial(
            there.reads.batches,
            tenant=connection.tenant_to_read(there, tenant),
            queue=queue,
            state=state,
            failure=failure,
            identity=identity,
            worker=worker,
            run=run,
            since=None if since is None else times.moment(since),
            until=None if until is None else times.moment(until),
        )
        rows, onward = pages.as_many(there, read, limit, after)
    if as_json:
        show.as_json({"batches": [shapes.batch(row) for row in rows], "next": onward})
        return
    show.table(
        ("batch", "queue", "identity", "state", "try", "submitted", "what"),
        [_row(row) for row in rows],
        [show.STYLES[row.state] for row in rows],
    )
    pages.tell_more(onward)


def _row(row: BatchRow) -> tuple[str, ...]:
    what = ""
    if row.worker is not None:
        what = f"leased to {row.worker} until {times.seconds(row.deadline)}"
    elif row.cause is not None:
        what = f"{row.cause}{' until ' + times.seconds(row.due) if row.due else ''}"
    elif row.finished_at is not None:
        failure = " ".join(part for part in (row.failure, row.detail) if part)
        what = f"{times.seconds(row.finished_at)} by {row.finished_by}"
        if row.state == State.FAILED and row.last_worker not in {None, row.finished_by}:
            what += f", last held by {row.last_worker}"
        what += failure and f": {failure}"
    return (
        str(row.batch_id), row.queue, unicode_diff.shown(row.raw, row.revision), row.state,
        str(row.attempt), times.seconds(row.created_at), what,
    )  # fmt: skip


@app.command("show")
@connection.over_http
def _show(
    batch: Ref,
    *,
    queue: InQueue = None,
    revision: Revision = None,
    payload: Annotated[
        bool, typer.Option("--payload", help="Also the payload and the result.")
    ] = False,
    tenant: connection.Tenant = None,
    dsn: connection.Dsn = None,
    data: connection.Data = None,
    as_json: connection.AsJson = False,
) -> None:
    """Tell everything on record about one batch.

    Attempts and leases, events with their reasons and actors, refused writes with both workers,
    duplicates, and the identity in both spellings. Ends with 1 when there is no such batch.
    """
    with connection.reached(dsn, data) as there:
        found = _found(there, batch, tenant, queue, revision)
        told = there.run(there.reads.batch_detail(found, payload=payload))
    if told is None:
        raise NoSuchBatch(f"no batch has the id {found}, among those this role may see")
    if as_json:
        show.as_json(shapes.story(told, payload=payload))
    else:
        batch_report.tell(told)


def _found(
    there: connection.Reached, ref: str, tenant: str | None, queue: str | None, revision: str | None
) -> uuid.UUID:
    of = connection.tenant_to_read(there, tenant)
    return batch_ref.find(there, ref, tenant=of, queue=queue, revision=revision)


SomeRefs = Annotated[
    list[str] | None,
    typer.Argument(metavar="[BATCH...]", help="Ids, keys, or identities; none: use filters."),
]
Most = Annotated[
    int | None,
    typer.Option(
        "--limit",
        min=1,
        max=pages.LIMIT_MAX,
        help="Maximum number of batches that filters take; all by default.",
        show_default=False,
    ),
]
DryRun = Annotated[
    bool, typer.Option("--dry-run", help="List the batches and answers, change nothing.")
]


@app.command("retry")
@connection.over_http
def _retry(
    batches: SomeRefs = None,
    *,
    reason: connection.Reason,
    actor: connection.Actor = None,
    queue: InQueue = None,
    failure: Failure = None,
    identity: InIdentity = None,
    worker: ByWorker = None,
    since: Since = None,
    until: Until = None,
    limit: Most = None,
    after: After = None,
    dry_run: DryRun = False,
    tenant: connection.Tenant = None,
    dsn: connection.Dsn = None,
    data: connection.Data = None,
    as_json: connection.AsJson = False,
) -> None:
    """Retry failed batches, by name or by filter.

    They get all their attempts again. Filters take the latest failures first; --since and
    --until refer to the time of failure.
    Exits with 1 if a batch is not FAILED or does not exist.
    """
    filters = {
        "failure": failure, "identity": identity, "worker": worker, "since": since, "until": until,
    }  # fmt: skip
    selection = Selection(batches, queue, filters, limit, after)
    with connection.reached(dsn, data) as there:
        act(
            there,
            "retry",
            selection,
            tenant=tenant,
            reason=reason,
            actor=actor,
            dry_run=dry_run,
            as_json=as_json,
        )


@app.command("cancel")
@connection.over_http
def _cancel(
    batches: SomeRefs = None,
    *,
    reason: connection.Reason,
    actor: connection.Actor = None,
    queue: InQueue = None,
    state: Annotated[
        State | None,
        typer.Option(
            "--state",
            case_sensitive=False,
            help="PENDING, ASSIGNED or RUNNING; required with filters.",
            show_default=False,
        ),
    ] = None,
    identity: InIdentity = None,
    worker: ByWorker = None,
    since: Since = None,
    until: Until = None,
    limit: Most = None,
    after: After = None,
    dry_run: DryRun = False,
    tenant: connection.Tenant = None,
    dsn: connection.Dsn = None,
    data: connection.Data = None,
    as_json: connection.AsJson = False,
) -> None:
    """Cancel batches that have not finished, by name or by filter.

    The writes of a worker that holds one are refused from then on. Exits with 1 if a batch has
    finished already or does not exist.
    """
    filters = {
        "state": state, "identity": identity, "worker": worker, "since": since, "until": until,
    }  # fmt: skip
    selection = Selection(batches, queue, filters, limit, after)
    with connection.reached(dsn, data) as there:
        act(
            there,
            "cancel",
            selection,
            tenant=tenant,
            reason=reason,
            actor=actor,
            dry_run=dry_run,
            as_json=as_json,
        )


def _decision(name: str, told: str, *, call: str | None = None) -> None:
    """A command by which a person decides about batches; all of them take the same options."""

    @app.command(name, help=told)
    @connection.over_http
    def decide(
        batches: Refs,
        *,
        reason: connection.Reason,
        actor: connection.Actor = None,
        queue: InQueue = None,
        tenant: connection.Tenant = None,
        dsn: connection.Dsn = None,
        data: connection.Data = None,
        as_json: connection.AsJson = False,
    ) -> None:
        with connection.reached(dsn, data) as there:
            ids = [_found(there, ref, tenant, queue, None) for ref in batches]
            build = getattr(there.calls, call or name)
            # A service is asked about one batch at a time; a database about all at once.
            several = [[one] for one in ids] if there.is_service else [ids]
            verdicts = [
                verdict
                for some in several
                for verdict in there.run(build(ids=some, reason=reason, actor=actor))
            ]
        show_results(verdicts, as_json=as_json)


_decision(
    "release",
    """Take batches back from workers that are gone.

    They go back to their queue at no cost of an attempt, and whoever held them is refused from then
    on. Ends with 1 when nobody holds one of them, or there is no such batch.
    """,
    call="release_by_id",
)
_decision(
    "erase",
    """Empty payload and result of finished batches, for good.

    The ledger stays. Ends with 1 when one of them has not finished, or there is no such batch.
    """,
)
