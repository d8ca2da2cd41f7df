"""Labels of a lane that never meet, at any width of the page.

A lane is as wide as the page allows, and its texts keep their size. So a label is tried at several
widths: it is left out where it would meet another one or leave the lane, and it is `minor` (the
stylesheet hides it in a narrow timeline) if it fits only where there is room.
"""

from __future__ import annotations

from typing import Literal, NamedTuple
from unicodedata import east_asian_width

from markupsafe import Markup

Anchor = Literal["start", "middle", "end"]
# Widths of a lane in pixels: on a phone; where minor labels begin to show; on wide screens. Between
# two widths the space between anchors changes evenly, so what fits at both fits between them.
NARROW, WIDE = 290, (690, 1_100, 2_200)
_CHAR = 6.9  # pixels of a character at 12 px: above the average of the fonts, with the gap
_GAP = 6
_ABOVE, _BELOW = 11, 4  # pixels of a text around its base line


class Label(NamedTuple):
    words: str
    x: float  # percent
    y: int
    style: str = ""
    anchors: tuple[Anchor, ...] = ("start", "end")  # tried in this order
    dx: int = 0  # away from x, in the direction of the text
    left: float = 0  # the part of the lane that it must stay in, in percent
    right: float = 100


class _Placed(NamedTuple):
    label: Label
    anchor: Anchor
    minor: bool


class Labels:
    """The labels of one lane; the first that is added has the first choice."""

    def __init__(self) -> None:
        self._placed: list[_Placed] = []

    def add(self, label: Label) -> None:
        """Place a label, or leave it out."""
        for minor in (False, True):
            for anchor in label.anchors:
                placed = _Placed(label, anchor, minor)
                if all(self._fits(placed, width) for width in _widths(placed)):
                    self._placed.append(placed)
                    return

    def _fits(self, new: _Placed, width: int) -> bool:
        left, right = _extent(new, width)
        label = new.label
        slack = 8 if label.right == 100 and label.left == 0 else 0  # beside the outermost marks
        if left < label.left * width / 100 - slack or right > label.right * width / 100 + slack:
            return False
        for other in self._placed:
            if width not in _widths(other):
                continue
            if abs(label.y - other.label.y) >= _ABOVE + _BELOW:
                continue
            begin, end = _extent(other, width)
            if left < end + _GAP and begin < right + _GAP:
                return False
        return True

    def draw(self) -> Markup:
        return Markup().join(_draw(placed) for placed in self._placed)


def _widths(placed: _Placed) -> tuple[int, ...]:
    return WIDE if placed.minor else (NARROW, *WIDE)


def _extent(placed: _Placed, width: int) -> tuple[float, float]:
    label, anchor, _ = placed
    at = label.x * width / 100 + _shift(label, anchor)
    length = sum(_CHAR * (1 + (east_asian_width(char) in "WF")) for char in label.words)
    begin = {"start": at, "middle": at - length / 2, "end": at - length}[anchor]
    return begin, begin + length


def _shift(label: Label, anchor: Anchor) -> int:
    return {"start": label.dx, "middle": 0, "end": -label.dx}[anchor]


def _draw(placed: _Placed) -> Markup:
    label, anchor, minor = placed
    style = " ".join(filter(None, (label.style, "minor" if minor else "")))
    dx = _shift(label, anchor)
    return Markup('<text{} x="{:.2f}%" y="{}"{}{}>{}</text>').format(
        Markup(' class="{}"').format(style) if style else "",
        label.x,
        label.y,
        Markup(' dx="{}"').format(dx) if dx else "",
        Markup(' text-anchor="{}"').format(anchor) if anchor != "start" else "",
        label.words,
    )
