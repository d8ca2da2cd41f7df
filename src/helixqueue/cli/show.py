"""Answers: JSON for programs, tables on a terminal, plain lines in a pipe. Progress goes aside."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table

if TYPE_CHECKING:
    from collections.abc import Sequence


def progress(message: str) -> None:
    """To standard error, so that an answer can be piped."""
    sys.stderr.write(f"{message}\n")


def as_json(value: object) -> None:
    sys.stdout.write(json.dumps(value, ensure_ascii=False, default=str) + "\n")


def table(
    columns: Sequence[str], rows: Sequence[Sequence[str]], styles: Sequence[str] = ()
) -> None:
    """`styles` colours the rows; in a pipe a row is one line with tabs, and nothing is cut off."""
    if not sys.stdout.isatty():
        for row in rows:
            sys.stdout.write("\t".join(cell.replace("\n", " ") for cell in row) + "\n")
        return
    shown = Table(*columns)
    for number, row in enumerate(rows):
        # As plain text: square brackets in a value are not markup.
        shown.add_row(*(_plain(cell) for cell in row), style=styles[number] if styles else None)
    Console().print(shown)


def _plain(cell: str) -> str:
    return cell.replace("[", "\\[")
