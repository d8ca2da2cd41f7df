"""Output: JSON, tables on a terminal, tab-separated lines in a pipe; progress on standard error."""

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

# Columns that are never folded on a narrow terminal.
_NO_WRAP = {"batch", "state", "time", "version", "submitted", "answer"}
# Row colours by batch state.
STYLES = {
    "PENDING": "cyan",
    "ASSIGNED": "blue",
    "RUNNING": "yellow",
    "COMPLETED": "green",
    "FAILED": "bold red",
    "CANCELLED": "magenta",
}


def progress(message: str) -> None:
    """Print to standard error, so that standard output can be piped."""
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
    *,
    empty: str = "",
) -> None:
    """Print a table; `styles` colours its rows, `empty` is the message for a table without rows.

    In a pipe a row is one line with tabs, never truncated, after a line with the column names.
    """
    if not rows:
        if empty:
            progress(empty)
        return
    if not sys.stdout.isatty():
        for row in [columns, *rows]:
            sys.stdout.write("\t".join(_single_line(cell) for cell in row) + "\n")
        return
    grid = Table()
    for name in columns:
        grid.add_column(name, no_wrap=name in _NO_WRAP, overflow="fold")
    for number, row in enumerate(rows):
        # Escaped: square brackets in a value are not markup.
        grid.add_row(
            *(escape(plain(cell)) for cell in row), style=styles[number] if styles else None
        )
    Console().print(grid)


def _single_line(cell: str) -> str:
    return plain(cell.replace("\n", " ").replace("\t", " "))


@contextmanager
def bar(label: str, unit: str, total: int | None) -> Iterator[Callable[[int, int], None]]:
    """A progress bar on standard error, if that is a terminal.

    Yields a function that takes the progress towards `total` and the number of `unit`. `total` may
    be an estimate.
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
    ) as display:
        task = display.add_task(label, total=total or None, count=0)

        def update(done: int, count: int) -> None:
            display.update(
                task, completed=done, count=count, total=max(total, done) if total else None
            )

        yield update
