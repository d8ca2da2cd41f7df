"""`helixq batch list --by-cause`: failed batches grouped by failure class and message."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from helixqueue.cli import pages, show, unicode_diff

if TYPE_CHECKING:
    from collections.abc import Callable
    from datetime import datetime

    from helixqueue.cli.connection import Target
    from helixqueue.records.batch import BatchRow

_DIGITS: Final = re.compile(r"\d+")
_TEXT_MAX: Final = 300


@dataclass
class FailureCause:
    """FAILED batches of one queue with the same failure class and, up to names, the same text."""

    queue: str
    failure: str
    text: str
    batches: int
    example: str  # identity of the newest
    newest: datetime | None


def group(target: Target, read: Callable[..., Any]) -> list[FailureCause]:
    """Group all batches of a list, which are FAILED and come newest first."""
    causes: dict[tuple[str, str, str], FailureCause] = {}
    for row in pages.read_all(target, read):
        key = (row.queue, row.failure or "", _text(row))
        if key in causes:
            causes[key].batches += 1
        else:
            example = unicode_diff.identity_text(row.identity, row.revision)
            causes[key] = FailureCause(*key, 1, example, row.finished_at)
    return sorted(causes.values(), key=lambda cause: -cause.batches)


def _text(row: BatchRow) -> str:
    """The first line of the message, without what differs from batch to batch."""
    text = (row.detail or "").strip().partition("\n")[0][:_TEXT_MAX]
    for part in sorted({*row.identity, *row.raw}, key=len, reverse=True):
        text = text.replace(part, "(identity)")
    return _DIGITS.sub("N", text)


def print_causes(causes: list[FailureCause], *, as_json: bool) -> None:
    if as_json:
        show.as_json({"causes": [vars(cause) for cause in causes]})
        return
    show.table(
        ("batches", "queue", "failure", "message", "example", "newest"),
        [
            (
                str(cause.batches), cause.queue, cause.failure, cause.text, cause.example,
                cause.newest,
            )
            for cause in causes
        ],
        empty="no failed batches",
        optional=("newest", "queue"),
    )  # fmt: skip
    if causes:
        show.progress('retry a class: helixq batch retry --failure CLASS --reason "..."')
