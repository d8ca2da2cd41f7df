"""Answers: JSON for programs, tables on a terminal, plain lines in a pipe. Progress goes aside."""

from __future__ import annotations

import json
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from helixqueue.cli.sanitize import plain

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

# Columns that are copied or compared: a terminal that is narrow folds the others.
_WHOLE = {"batch", "state", "at", "step", "submitted", "answer"}
# The colour of a row by the state of its batch.
STYLES = {
    "PENDING": "cyan",
    "ASSIGNED": "blue",
    "RUNNING": "yellow",
    "COMPLETED": "green",
    "FAILED": "bold red",
    "CANCELLED": "magenta",
}


def progress(message: str) -> None:
    """To standard error, so that an answer can be piped."""
    sys.stderr.write(f"{plain(message)}\n")


def as_json(value: object) -> None:
    sys.stdout.write(json.dumps(value, ensure_ascii=False, default=str) + "\n")


def line(text: str, style: str = "") -> None:
    if sys.stdout.isatty():
        Console().print(escape(plain(text)), style=style or None, highlight=False, soft_wrap=True)
    else:
        sys.stdout.write(f"{plain(text)}\n")


def table(
    columns: Sequence[str],
    rows: Sequence[Sequence[str]],
    styles: Sequence[str] = (),
) -> None:
    """`styles` colours the rows; in a pipe a row is one line with tabs, and nothing is cut off.

    The first line of a pipe has the names of the columns; where there are no rows there is none.
    """
    if not sys.stdout.isatty():
        for row in [columns, *rows] if rows else []:
            sys.stdout.write("\t".join(_one_line(cell) for cell in row) + "\n")
        return
    shown = Table()
    for name in columns:
        shown.add_column(name, no_wrap=name in _WHOLE, overflow="fold")
    for number, row in enumerate(rows):
        # As plain text: square brackets in a value are not markup.
        shown.add_row(
            *(escape(plain(cell)) for cell in row), style=styles[number] if styles else None
        )
    Console().print(shown)


def _one_line(cell: str) -> str:
    return plain(cell.replace("\n", " ").replace("\t", " "))


@contextmanager
def bar(label: str, unit: str, total: int | None) -> Iterator[Callable[[int, int], None]]:
    """A progress bar on a terminal's standard error, and nothing elsewhere.

    Told how far it is of `total` (which may be an estimate: the bar grows with the truth) and how
    many `unit` there were.
    """
    columns = (
        TextColumn(label),
        BarColumn(),
        TextColumn("{task.fields[count]:,} " + unit),
        TimeElapsedColumn(),
    )
    console = Console(stderr=True)
    with Progress(
        *columns, console=console, disable=not sys.stderr.isatty(), transient=True
    ) as shown:
        task = shown.add_task(label, total=total or None, count=0)

        def told(done: int, count: int) -> None:
            shown.update(
                task, completed=done, count=count, total=max(total, done) if total else None
            )

        yield told
