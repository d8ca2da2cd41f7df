"""Lays out a table for the width of a terminal; nothing that it keeps is cut.

Columns that are too wide wrap inside their column. Where even that does not fit, optional columns
are left out, and then the last columns move below their row, each as a line with its name.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final, NamedTuple

from rich.cells import cell_len, chop_cells, set_cell_size

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

GAP: Final = 2  # between columns
COMFORTABLE: Final = 32  # optional columns are left out before a column gets narrower
LEAST: Final = 16  # a wider column wraps, but not below this width
LEAST_LAST: Final = 28  # of the last column, which mostly holds sentences
LONGEST_WORD: Final = 24  # a column is not narrower than its words up to this length
INDENT: Final = "  "


class Layout(NamedTuple):
    """The widths of the columns of a row, by place, and the places of the cells below it."""

    widths: dict[int, int]
    below: tuple[int, ...]


def lay_out(
    columns: Sequence[str],
    rows: Sequence[Sequence[str]],
    order: Sequence[int],
    optional: Sequence[str],
    width: int,
) -> Layout:
    """The layout for `width`; `order` has the places from left to right."""
    cells = [[name, *(row[place] for row in rows)] for place, name in enumerate(columns)]
    natural = [
        max(cell_len(line) for cell in column for line in cell.split("\n")) for column in cells
    ]
    words = [max(map(cell_len, " ".join(column).split()), default=0) for column in cells]
    # A tenant is left out only if all rows have the same.
    droppable = [
        columns.index(name) for name in optional
        if name != "tenant" or len({row[columns.index(name)] for row in rows}) == 1
    ]  # fmt: skip
    kept, below = list(order), list[int]()

    def spare(wrapped: int) -> int:
        return width - sum(least(p, wrapped) for p in kept) - GAP * (len(kept) - 1)

    def least(place: int, wrapped: int) -> int:
        wanted = min(natural[place], LEAST_LAST if place == kept[-1] else wrapped)
        return max(cell_len(columns[place]), wanted, min(words[place], LONGEST_WORD))

    while droppable and spare(COMFORTABLE) < 0:
        kept.remove(droppable.pop())
    while len(kept) > 1 and spare(LEAST) < 0:
        below.insert(0, kept.pop())
    widths = {place: least(place, LEAST) for place in kept}
    left = max(spare(LEAST), 0)
    # The columns that need least first, so that few of them wrap.
    for place in sorted(kept, key=lambda place: natural[place] - widths[place]):
        more = min(max(natural[place] - widths[place], 0), left)
        widths[place] = min(widths[place] + more, width)
        left -= more
    return Layout(widths, tuple(below))


def row_lines(
    columns: Sequence[str], row: Sequence[str], layout: Layout, width: int
) -> Iterator[str]:
    """The lines of one row."""
    wrapped = [wrap(row[place], room) for place, room in layout.widths.items()]
    for number in range(max(map(len, wrapped))):
        parts = (
            set_cell_size(lines[number] if number < len(lines) else "", room)
            for lines, room in zip(wrapped, layout.widths.values(), strict=True)
        )
        yield (" " * GAP).join(parts).rstrip()
    for place in layout.below:
        if row[place]:
            first, *more = wrap(f"{columns[place]}: {row[place]}", width - 2 * len(INDENT))
            yield INDENT + first
            yield from (2 * INDENT + line for line in more)


def wrap(text: str, width: int) -> list[str]:
    """Lines of at most `width` cells, broken between words where possible."""
    found: list[str] = []
    for paragraph in text.split("\n"):
        line = ""
        for word in re.findall(r"\s*\S+", paragraph):
            if cell_len(line + word) <= width:
                line += word
                continue
            if line:
                found.append(line)
            *full, line = chop_cells(word.lstrip(), width)
            found += full
        found.append(line)
    return found
