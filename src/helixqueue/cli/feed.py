"""`helixq feed list|show|pause|resume|rewind|run`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import typer

from helixqueue.cli import show
from helixqueue.cli.derived_commands import verb
from helixqueue.operations import feeds

if TYPE_CHECKING:
    from helixqueue.records.ledger import FeedRow
    from helixqueue.records.page import Page

app = typer.Typer(no_args_is_help=True, help="Feeds: list, show, pause, resume, rewind, run.")


def register(parent: typer.Typer) -> None:
    from helixqueue.cli import feed_run  # noqa: PLC0415 - registers run

    feed_run.register(app)
    parent.add_typer(app, name="feed")


@verb(app, "list", feeds.list_feeds, example="helixq feed list", every_tenant=True)
def _list(page: Page[FeedRow]) -> None:
    show.table(
        ("tenant", "feed", "source", "lag", "oldest", "delivered", "status"),
        [
            (
                *(row.tenant, row.name, _source(row), str(row.lag), row.oldest_at),
                *(str(row.delivered), _status(row)),
            )
            for row in page.rows
        ],
        empty="no feeds",
        first="feed",
        optional=("tenant", "delivered"),
    )


@verb(app, "show", feeds.show_feed, example="helixq feed show notify")
def _show(row: FeedRow) -> None:
    show.facts(
        {
            "feed": row.name,
            "source": _source(row),
            "status": _status(row),
            "lag": f"{row.lag:,}{' or more' if row.lag >= feeds.PAGE_MAX else ''} events",
            "oldest": show.time_text(row.oldest_at) if row.oldest_at else "",
            "delivered": f"{row.delivered:,} events",
            "moved": show.time_text(row.moved_at) if row.moved_at else "never",
        }
    )


@verb(
    app,
    "pause",
    feeds.pause_feed,
    example='helixq feed pause notify --reason "the pager is down"',
)
def _pause(row: FeedRow) -> None:
    show.line(f"feed {row.name}: {_status(row)}, {row.lag:,} events behind")


@verb(
    app,
    "resume",
    feeds.resume_feed,
    example='helixq feed resume notify --reason "the pager is back"',
)
def _resume(row: FeedRow) -> None:
    _pause(row)


@verb(
    app,
    "rewind",
    feeds.rewind_feed,
    example='helixq feed rewind notify --since 2h --reason "lost messages"',
)
def _rewind(row: FeedRow) -> None:
    _pause(row)


def _source(row: FeedRow) -> str:
    return f"ledger {row.ledger}" if row.ledger else f"queue {row.queue or '*'}"


def _status(row: FeedRow) -> str:
    if row.paused:
        return "paused"
    return f"run by {row.holder}" if row.holder else "open"
