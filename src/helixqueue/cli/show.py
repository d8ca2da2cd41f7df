"""Output: JSON, tables on a terminal, tab-separated lines in a pipe; progress on standard error."""

from __future__ import annotations

import json
import logging
import re
import sys
import textwrap
from contextlib import contextmanager
from datetime import datetime
from typing import TYPE_CHECKING, Final
from uuid import UUID

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from helixqueue.cli import times
from helixqueue.cli.table_layout import GAP, lay_out, row_lines
from helixqueue.log import terminal
from helixqueue.log.lines import message_line
from helixqueue.log.terminal import plain

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

SHORT_ID: Final = 8  # hexadecimal digits of an id; every command accepts them
SHORT_KEY: Final = 15  # characters of a key, as v1:6ead468e01c2; commands accept them, too
_KEY: Final = re.compile(r"v1:[0-9a-f]{64}")
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
    terminal.write(message)


def warning(message: str) -> None:
    """As `progress`; a log has it as a warning."""
    terminal.write(message, logging.WARNING)


def json_line(message: str, **fields: object) -> None:
    """Print what a long-running command reports as a line of its log: with time and level."""
    sys.stdout.write(f"{message_line(logging.INFO, message, **fields)}\n")


def as_json(value: object) -> None:
    sys.stdout.write(json.dumps(value, ensure_ascii=False, default=str) + "\n")


def line(text: str, style: str = "") -> None:
    if sys.stdout.isatty():
        Console().print(escape(plain(text)), style=style or None, highlight=False, soft_wrap=True)
    else:
        sys.stdout.write(f"{plain(text)}\n")


def facts(values: Mapping[str, str], styles: Mapping[str, str] | None = None) -> None:
    """Print names and values; on a terminal, long values wrap between words."""
    width = max(map(len, values))
    for name, value in values.items():
        if not value:
            continue
        room = Console().width - width - 1 if sys.stdout.isatty() else 0
        lines = textwrap.wrap(value, room, break_on_hyphens=False) if 20 < room < len(value) else []
        text = f"\n{' ' * (width + 1)}".join(lines or [value])
        line(f"{name:<{width}} {text}", (styles or {}).get(name, ""))


Cell = str | UUID | datetime | None


def table(
    columns: Sequence[str],
    rows: Sequence[Sequence[Cell]],
    styles: Sequence[str] = (),
    *,
    empty: str = "",
    first: str | None = None,
    optional: Sequence[str] = (),
) -> None:
    """Print a table; `styles` colours its rows, `empty` is the message for a table without rows.

    In a pipe a row is one line with tabs, never truncated, after a line with the column names. A
    terminal shows short ids, short keys and relative times. There `first` is the first column, and
    `optional` columns are left out from the last on until the rest fits (cli/table_layout.py).
    """
    if not rows:
        if empty:
            progress(empty)
        return
    if not sys.stdout.isatty():
        for row in [columns, *rows]:
            sys.stdout.write("\t".join(_single_line(_full_text(cell)) for cell in row) + "\n")
        return
    console = Console()
    order = sorted(range(len(columns)), key=lambda place: columns[place] != first)
    texts = [[_short_text(cell) for cell in row] for row in rows]
    layout = lay_out(columns, texts, order, optional, console.width)

    def print_line(text: str, style: str = "") -> None:
        # Escaped: square brackets in a value are not markup.
        console.print(escape(text), style=style or None, highlight=False, soft_wrap=True)

    [header] = row_lines(columns, columns, layout._replace(below=()), console.width)
    print_line(header, "bold")
    print_line(
        "─" * min(sum(layout.widths.values()) + GAP * (len(layout.widths) - 1), console.width)
    )
    for number, row in enumerate(texts):
        for text in row_lines(columns, row, layout, console.width):
            print_line(text, styles[number] if styles else "")


def time_text(time: datetime | None) -> str:
    """A time inside a text: relative on a terminal, else the local time."""
    return times.ago(time) if sys.stdout.isatty() else times.to_seconds(time)


def clock(time: datetime | None, day_of: datetime | None) -> str:
    """A time with milliseconds; a terminal shows no date if it is the date of `day_of`."""
    if sys.stdout.isatty() and day_of is not None:
        return times.without_date(time, day_of)
    return times.to_milliseconds(time)


def _full_text(cell: Cell) -> str:
    return times.to_seconds(cell) if isinstance(cell, datetime) else str(cell or "")


def _short_text(cell: Cell) -> str:
    if isinstance(cell, UUID):
        return str(cell)[:SHORT_ID]
    if isinstance(cell, datetime):
        return times.ago(cell)
    return cell[:SHORT_KEY] if cell and _KEY.fullmatch(cell) else plain(cell or "")


def _single_line(cell: str) -> str:
    return plain(cell.replace("\n", " ").replace("\t", " "))


@contextmanager
def bar(label: str, unit: str, total: int | None) -> Iterator[Callable[..., None]]:
    """A progress bar on standard error, if that is a terminal.

    Yields a function that takes the progress towards `total` and the number of `unit`. `total` may
    be an estimate. A `note` is shown behind the bar.
    """
    columns = (
        TextColumn(label),
        BarColumn(),
        TextColumn("{task.fields[count]:,} " + unit),
        TimeElapsedColumn(),
        TextColumn("{task.fields[note]}"),
    )
    console = Console(stderr=True)
    with Progress(
        *columns, console=console, disable=not sys.stderr.isatty(), transient=True
    ) as display:
        task = display.add_task(label, total=total or None, count=0, note="")

        def update(done: int, count: int, note: str = "") -> None:
            size = max(total, done) if total else None
            display.update(task, completed=done, count=count, total=size, note=escape(plain(note)))

        yield update
