"""`helixq feed list|show|pause|resume|rewind|run`."""

from __future__ import annotations

from dataclasses import asdict
from datetime import datetime  # noqa: TC003 - Typer reads the annotations
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

import typer

from helixqueue.cli import connection, operation, options, shapes, show, times
from helixqueue.cli.command import command
from helixqueue.operations import feeds

if TYPE_CHECKING:
    from helixqueue.records.ledger import FeedRow

app = typer.Typer(no_args_is_help=True, help="Feeds: list, show, pause, resume, rewind, run.")
FeedName = Annotated[str, typer.Argument(metavar="FEED", help="Name of the feed.")]


def register(parent: typer.Typer) -> None:
    from helixqueue.cli import feed_run  # noqa: PLC0415 - registers run

    feed_run.register(app)
    parent.add_typer(app, name="feed")


@app.callback()
def _feeds() -> None:
    """Feeds: list, show, pause, resume, rewind, run."""


@command(app, "list", example="helixq feed list")
@connection.service_or_database
def _list(
    *,
    tenant: options.Tenant = None,
    as_json: options.AsJson = False,
) -> None:
    """List feeds and how far each is behind.

    Counts stop at 10,000 events.
    """
    with connection.open_target() as target:
        rows: list[FeedRow] = target.run(
            target.call_set.ledgers.feeds(tenant=connection.tenant_to_change(target, tenant))
        )
    if as_json:
        show.as_json({"feeds": [_shape(row) for row in rows]})
        return
    show.table(
        ("feed", "source", "behind", "oldest", "delivered", "status"),
        [_row(row) for row in rows],
        empty="no feeds",
        optional=("delivered",),
    )


@command(app, "show", example="helixq feed show notify")
@connection.service_or_database
def _show(
    *,
    feed: FeedName,
    tenant: options.Tenant = None,
    as_json: options.AsJson = False,
) -> None:
    """Show a feed: its source, its holder and how far it is behind."""
    with connection.open_target() as target:
        row = operation.run(target, tenant, None, partial(feeds.status, feed=feed))
    if as_json:
        show.as_json(_shape(row))
        return
    show.facts(
        {
            "feed": row.name,
            "source": _source(row),
            "status": _status(row),
            "behind": f"{row.lag:,}{' or more' if row.lag >= feeds.PAGE_MAX else ''} events",
            "oldest": show.time_text(row.oldest_at) if row.oldest_at else "",
            "delivered": f"{row.delivered:,} events",
            "moved": show.time_text(row.moved_at) if row.moved_at else "never",
        }
    )


@command(app, "pause", example='helixq feed pause notify --reason "the pager is down"')
@connection.service_or_database
def _pause(
    *,
    feed: FeedName,
    reason: options.Reason,
    actor: options.Actor = None,
    tenant: options.Tenant = None,
    as_json: options.AsJson = False,
) -> None:
    """Deliver nothing until `feed resume`."""
    change = partial(feeds.change, feed=feed, reason=reason, paused=True)
    _change((tenant, actor, feed), change, as_json=as_json)


@command(app, "resume", example='helixq feed resume notify --reason "the pager is back"')
@connection.service_or_database
def _resume(
    *,
    feed: FeedName,
    reason: options.Reason,
    actor: options.Actor = None,
    tenant: options.Tenant = None,
    as_json: options.AsJson = False,
) -> None:
    """Deliver again after `feed pause`."""
    change = partial(feeds.change, feed=feed, reason=reason, paused=False)
    _change((tenant, actor, feed), change, as_json=as_json)


@command(app, "rewind", example='helixq feed rewind notify --since 2h --reason "lost messages"')
@connection.service_or_database
def _rewind(
    *,
    feed: FeedName,
    reason: options.Reason,
    since: Annotated[
        datetime | None,
        typer.Option(
            "--since",
            metavar="TIME",
            parser=times.moment,
            help=f"Events at or after this time, {options.TIME_HELP}. [default: all]",
        ),
    ] = None,
    actor: options.Actor = None,
    tenant: options.Tenant = None,
    as_json: options.AsJson = False,
) -> None:
    """Deliver events again, with the same keys.

    An effect behind a fence, as of `feed run`, does not take place again.
    """
    change = partial(feeds.change, feed=feed, reason=reason, rewind=True, since=since)
    _change((tenant, actor, feed), change, as_json=as_json)


def _change(
    names: tuple[str | None, str | None, str],
    change: Any,  # noqa: ANN401 - an operation
    *,
    as_json: bool,
) -> None:
    tenant, actor, feed = names
    with connection.open_target() as target:
        operation.run(target, tenant, actor, partial(feeds.status, feed=feed))
        operation.run(target, tenant, actor, change)
        row = operation.run(target, tenant, actor, partial(feeds.status, feed=feed))
    if as_json:
        show.as_json(_shape(row))
    else:
        show.line(f"feed {row.name}: {_status(row)}, {row.lag:,} events behind")


def _shape(row: FeedRow) -> dict[str, Any]:
    members = shapes.plain_members(asdict(row))
    del members["position"]
    return members


def _row(row: FeedRow) -> tuple[Any, ...]:
    return (row.name, _source(row), str(row.lag), row.oldest_at, str(row.delivered), _status(row))


def _source(row: FeedRow) -> str:
    return f"ledger {row.ledger}" if row.ledger else f"queue {row.queue or '*'}"


def _status(row: FeedRow) -> str:
    if row.paused:
        return "paused"
    return f"run by {row.holder}" if row.holder else "open"
