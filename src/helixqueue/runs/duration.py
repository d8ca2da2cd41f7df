"""Durations as texts such as `2h 30m`, with the units of the Rust crate humantime."""

from __future__ import annotations

import re
from typing import Annotated, Any, Final

from pydantic import BeforeValidator, WithJsonSchema
from pydantic_core import PydanticCustomError

DAY: Final = 86_400
# `M` is a month and `m` a minute.
_UNITS: Final = {
    "nsec ns nanos": 1e-9,
    "usec us": 1e-6,
    "msec ms millis": 1e-3,
    "seconds second secs sec s": 1,
    "minutes minute mins min m": 60,
    "hours hour hrs hr h": 3_600,
    "days day d": DAY,
    "weeks week wks wk w": 7 * DAY,
    "months month M": 30.44 * DAY,
    "years year y": 365.25 * DAY,
}
_SECONDS: Final = {name: size for names, size in _UNITS.items() for name in names.split()}
_PART: Final = r"\s*(\d{1,18})\s*([A-Za-z]+)\s*"
_MAX_SECONDS: Final = 100 * 365.25 * DAY


def seconds(text: str) -> float:
    """The length of a duration; `ValueError` for what is none."""
    if re.fullmatch(f"(?:{_PART})+", text) is None:
        raise ValueError(text)
    total = 0.0
    for number, unit in re.findall(_PART, text):
        if unit not in _SECONDS:
            raise ValueError(text)
        total += int(number) * _SECONDS[unit]
    if not 0 < total <= _MAX_SECONDS:
        raise ValueError(text)
    return total


def _checked(value: Any) -> Any:
    """A duration as text; a whole number is in seconds."""
    text = f"{value}s" if type(value) is int else value
    try:
        seconds(text)
    except (TypeError, ValueError):
        raise PydanticCustomError(
            "expected",
            "a duration above zero such as 5m or 2h 30m (units ns, us, ms, s, m, h, d, w, M, y), "
            "or a number of seconds",
        ) from None
    return text


Duration = Annotated[
    str,
    BeforeValidator(_checked),
    WithJsonSchema(
        {
            "anyOf": [
                {"type": "string", "pattern": r"^(\s*\d+\s*[A-Za-z]+\s*)+$"},
                {"type": "integer", "minimum": 1},
            ],
            "examples": ["5m", "2h 30m", "3d"],
        }
    ),
]
