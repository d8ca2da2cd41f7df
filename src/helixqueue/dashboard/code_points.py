"""Two spellings of an identity, character by character, with the code points where they differ."""

from __future__ import annotations

import unicodedata
from itertools import zip_longest
from typing import NamedTuple


class Cell(NamedTuple):
    text: str
    points: str  # hexadecimal, "" where both spellings agree


def cells(raw: str, canonical: str) -> tuple[list[Cell], list[Cell]]:
    """The characters of both spellings."""
    pairs = list(zip_longest(_characters(raw), _characters(canonical), fillvalue=""))
    return (
        [_cell(left, right) for left, right in pairs if left],
        [_cell(right, left) for left, right in pairs if right],
    )


def _characters(text: str) -> list[str]:
    """A base character and the marks that follow it are one."""
    found: list[str] = []
    for char in text:
        if found and unicodedata.combining(char):
            found[-1] += char
        else:
            found.append(char)
    return found


def _cell(text: str, other: str) -> Cell:
    points = "" if text == other else " ".join(f"{ord(char):04X}" for char in text)
    return Cell(text, points)
