"""The size of a regular expression with counted repetitions written out.

A linear-time matcher takes at most that number of steps per character. `a{5000}` is 5,000 states,
and `(a{70}){70}` as well.
"""

from __future__ import annotations

import re
from typing import Final

CLASS_SIZE: Final = 8  # of a Unicode class such as \w, which is hundreds of ranges of bytes
_GROUP: Final = re.compile(r"\((?:\?(?:P?<[A-Za-z_]\w*>|:))?")
_CLASS: Final = re.compile(r"\[\^?\]?(?:[^\[\]\\]|\\.)*\]", re.DOTALL)
_ESCAPE: Final = re.compile(r"\\(?:[pP]\{[^}]*\}|[xuU]\{[0-9A-Fa-f]+\}|.)", re.DOTALL)
_REPEAT: Final = re.compile(r"\{\s*(\d{1,9})\s*(?:(,)\s*(\d{1,9})?\s*)?\}\??")


def pattern_size(pattern: str) -> int | None:
    """The size, or None for flags and nested classes, which this reader does not follow."""
    totals = [0]  # of the open groups
    last = 0  # size of the last atom, which a repetition multiplies
    place = 0
    while place < len(pattern):
        char = pattern[place]
        if repeat := _REPEAT.match(pattern, place):
            low, more, high = repeat.groups()
            times = int(high) if high else int(low) + bool(more)
            totals[-1] += last * max(times - 1, 0)
            last *= max(times, 1)
            place = repeat.end()
        elif char == "(":
            group = _GROUP.match(pattern, place)
            if group is None or pattern.startswith("?", group.end()):
                return None
            totals.append(0)
            place = group.end()
        elif char == ")" and len(totals) > 1:
            last = totals.pop() + 1
            totals[-1] += last
            place += 1
        else:
            atom = {"[": _CLASS, "\\": _ESCAPE}.get(char)
            match = atom.match(pattern, place) if atom else None
            if atom and match is None:
                return None
            text = match[0] if match else char
            if text not in {"*", "+", "?"}:
                last = len(text) + CLASS_SIZE * text.count("\\")
                totals[-1] += last
            place += len(text)
    return sum(totals)
