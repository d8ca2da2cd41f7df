"""`helixq letter list | show | redrive`."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

import typer

from helixqueue.cli import (
    batch,
    batch_ref,
    batch_report,
    connection,
    pages,
    shapes,
    show,
    times,
    unicode_diff,
)
from helixqueue.cli.exits import NoSuchBatch
from helixqueue.engine.cursors import PAGE_ROWS_MAX
from helixqueue.records.read_rows import Letter

if TYPE_CHECKING:
    from helixqueue.records.rows import ActionResult

app = typer.Typer(no_args_is_help=True, help="Dead letters: list, show, redrive.")
DRIVEN_UNLESS_SAID = 100

Failure = Annotated[
    str | None,
    typer.Option("--failure", metavar="CLASS", help="Only of this class.", show_default=False),
]
Before = Annotated[
    str | None,
    typer.Option("--before", metavar="TIME", help="Failed before that.", show_default=False),
]
After = Annotated[
    str | None,
    typer.Option("--after", metavar="CURSOR", help="Go on behind a page.", show_default=False),
]


def register(parent: typer.Typer) -> None:
    parent.add_typer(app, name="letter")


@app.command("list")
@connection.over_http
def _list(
    *,
    queue: batch.InQueue = None,
    failure: Failure = None,
    since: Annotated[
        str | None,
        typer.Option(
            "--since", metavar="TIME", help="2026-03-01T08:00, or 2h.", show_default=False
        ),
    ] = None,
    before: Before = None,
    limit: Annotated[
        int, typer.Option("--limit", min=1, max=pages.LIMIT_MAX, help="So many rows.")
    ] = 50,
    after: After = None,
    tenant: connection.Tenant = None,
    dsn: connection.Dsn = None,
    data: connection.Data = None,
    as_json: connection.AsJson = False,
) -> None:
    """List what nobody tries any more, newest first.

    Batches that failed for good, or as often as their queue lets them try. A page ends with the
    cursor of the next; it may be short, or empty, and have one.
    """
    with connection.reached(dsn, data) as there:
        read = partial(
            there.reads.letters,
            tenant=connection.tenant_to_read(there, tenant),
            queue=queue,
            failure=failure,
            since=None if since is None else times.moment(since),
            before=None if before is None else times.moment(before),
        )
        rows, onward = pages.as_many(there, read, limit, after)
    if as_json:
        show.as_json({"letters": [shapes.letter(row) for row in rows], "next": onward})
        return
    show.table(
        ("batch", "queue", "identity", "try", "failed", "worker", "failure"),
        [_row(row) for row in rows],
        [show.STYLES["FAILED"]] * len(rows),
    )
    pages.tell_more(onward)


def _row(row: Letter) -> tuple[str, ...]:
    return (
        str(row.batch_id), row.queue, unicode_diff.shown(row.identity, row.revision),
        str(row.attempt),
        times.seconds(row.failed_at), row.worker or "",
        f"{row.failure} {row.detail or ''}".strip(),
    )  # fmt: skip


@app.command("show")
@connection.over_http
def _show(
    letter: batch.Ref,
    *,
    queue: batch.InQueue = None,
    revision: batch.Revision = None,
    tenant: connection.Tenant = None,
    dsn: connection.Dsn = None,
    data: connection.Data = None,
    as_json: connection.AsJson = False,
) -> None:
    """Tell how one dead letter came to be, try by try.

    Ends with 1 when there is no such batch, or it is no dead letter (any more).
    """
    with connection.reached(dsn, data) as there:
        of = connection.tenant_to_read(there, tenant)
        batch_id = batch_ref.find(there, letter, tenant=of, queue=queue, revision=revision)
        told = there.run(there.reads.batch_detail(batch_id))
    found = None if told is None else Letter.of(told)
    if found is None:
        stands = "" if told is None else f": it is {told.state}"
        raise NoSuchBatch(f"no dead letter has the id {batch_id}{stands}")
    if as_json:
        show.as_json(
            shapes.letter(found) | {"attempts": shapes.story(told, payload=False)["leases"]}
        )
    else:
        batch_report.tell(told)


@app.command("redrive")
@connection.over_http
def _redrive(
    letters: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[BATCH...]", help="Ids, keys, or identities; none: all of --queue."
        ),
    ] = None,
    *,
    reason: connection.Reason,
    queue: batch.InQueue = None,
    failure: Failure = None,
    before: Before = None,
    after: After = None,
    limit: Annotated[
        int | None,
        typer.Option(
            "--limit",
            min=1,
            max=PAGE_ROWS_MAX,
            help="At most so many of the queue; 100 unless said.",
            show_default=False,
        ),
    ] = None,
    actor: connection.Actor = None,
    tenant: connection.Tenant = None,
    dsn: connection.Dsn = None,
    data: connection.Data = None,
    as_json: connection.AsJson = False,
) -> None:
    """Give dead letters all their tries again.

    Those that are named, or those of a queue. Of a queue they are taken from the newest on;
    --before keeps out what fails again meanwhile. Ends with 1 when one of them was refused.
    """
    if not letters and queue is None:
        raise typer.BadParameter("expected BATCH..., or --queue; got neither")
    if letters and (failure, before, after, limit) != (None,) * 4:
        raise typer.BadParameter(
            "--failure, --before, --after and --limit are for all of a --queue; name no BATCH"
        )
    onward = None
    with connection.reached(dsn, data) as there:
        of = connection.tenant_to_read(there, tenant)
        if letters:
            ids = [batch_ref.find(there, name, tenant=of, queue=queue) for name in letters]
            verdicts = there.run(there.calls.redrive(ids=ids, reason=reason, actor=actor))
        else:
            asked = {
                "queue": queue,
                "failure": failure,
                "before": None if before is None else times.moment(before),
                "after": after,
                "limit": limit or DRIVEN_UNLESS_SAID,
            }
            verdicts, onward = _of_queue(there, of, asked, reason, actor)
    if not as_json:
        pages.tell_more(onward)
    batch.tell_verdicts(verdicts, as_json=as_json, more={"next": onward})


def _of_queue(
    there: connection.Reached,
    tenant: str | None,
    asked: dict[str, Any],
    reason: str,
    actor: str | None,
) -> tuple[list[ActionResult], str | None]:
    """What became of each, and where to go on. A service does it in one request."""
    if there.is_service:
        driven: tuple[list[ActionResult], str | None] = there.run(
            there.calls.redrive_queue(reason=reason, **asked)
        )
        return driven
    page = there.run(there.reads.letters(tenant=tenant, **asked))
    ids = [row.batch_id for row in page.rows]
    call = there.calls.redrive(ids=ids, reason=reason, actor=actor)
    return (there.run(call) if ids else []), page.next
