"""A survey of a JSON value: whether orjson reads and writes it as strict JSON and RFC 8785 do.

The survey takes a value level by level, which bounds the depth. Its steps run in C for all values
of a level, because a request may carry half a million values.
"""

from __future__ import annotations

import math
from itertools import chain
from typing import Any, Final, NamedTuple

MAX_TEXT_BYTES: Final = 1024 * 1024  # of UTF-8, as received and as canonical text
MAX_DEPTH: Final = 64  # arrays and objects inside one another
MAX_NAMES_PER_OBJECT: Final = 10_000
MAX_SAFE_INTEGER: Final = 2**53 - 1  # beyond it doubles skip integers: two numbers become one
# Every value takes two bytes of text or more, so a larger count cannot fit. Counting while walking
# stops values that refer to one list many times over and would unfold without end.
MAX_VALUES: Final = MAX_TEXT_BYTES // 2

# From here on RFC 8785 writes an exponent; a whole number below it is written in digits.
FIRST_EXPONENT: Final = 1e21
# The last fractions that RFC 8785 writes in digits; orjson writes an exponent.
_LAST_DIGITS_FROM, _LAST_DIGITS_TO = 1e-6, 1e-5
# Bounds of the values that `_count_strings` takes.
_SMALL_LENGTH, _SMALL_DEPTH = 32, 8
# Values in one step: each is a call in C, during which no other thread runs.
_PART_LENGTH = 8192
_PLAIN_KINDS = frozenset({str, int, float, bool, type(None), dict, list})


class Survey(NamedTuple):
    """What orjson may treat in another way than strict JSON or RFC 8785."""

    strings: int  # names included
    has_zero: bool = False  # a float; in a text it may be a number too small for a double
    has_huge: bool = False  # a float from 1e21 on; in a text it may be an integer
    is_rewritten: bool = False  # a float that orjson writes in another way
    is_resorted: bool = False  # a name that orjson sorts in another way


class _Unfit(Exception):
    """The value is not strict JSON, or consists of subclasses."""


def survey(value: object) -> Survey | None:
    """Survey a value. None: the value must be checked one by one, for the place of an error.

    The content of strings is left to orjson.
    """
    strings = _count_strings(value)
    if strings is not None:
        return Survey(strings)
    try:
        return _survey_levels(value)
    except _Unfit:
        return None


def _count_strings(value: object) -> int | None:
    """Count the strings of a small value that orjson treats as strict JSON; None for any other.

    Most payloads are small. For them a loop in Python is faster than the steps below.
    """
    strings = 0
    level: list[Any] = [value]
    for _ in range(_SMALL_DEPTH):
        below: list[Any] = []
        for item in level:
            kind = type(item)
            if kind is str:
                strings += 1
            elif kind is dict and _has_simple_names(item):
                strings += len(item)
                below.extend(item.values())
            elif kind is list and len(item) <= _SMALL_LENGTH:
                below.extend(item)
            elif not (
                (kind is int and -MAX_SAFE_INTEGER <= item <= MAX_SAFE_INTEGER)
                or (kind is float and is_legal(item) and item and not is_rewritten(item))
                or item is None
                or kind is bool
            ):
                return None
        if not below:
            return strings
        if len(below) > _SMALL_LENGTH:
            return None
        level = below
    return None


def _has_simple_names(names: dict[object, object]) -> bool:
    for name in names:  # not all(): it would make a generator for each object
        if type(name) is not str or not name.isascii():
            return False
    return len(names) <= _SMALL_LENGTH


def _survey_levels(value: object) -> Survey:
    found = Survey(0)
    level: list[Any] = [value]
    for _ in range(MAX_DEPTH):
        below: list[Any] = []
        for start in range(0, len(level), _PART_LENGTH):
            part = _survey_part(level[start : start + _PART_LENGTH], below)
            found = Survey(found.strings + part.strings, *map(max, found[1:], part[1:]))
        if not below:
            return found
        level = below
    raise _Unfit


def _survey_part(values: list[Any], below: list[Any]) -> Survey:
    """Survey some values of a level, and collect what they contain."""
    kinds = list(map(type, values))
    present = set(kinds)
    if not present <= _PLAIN_KINDS:
        raise _Unfit
    _check_integers(_of_kind(int, values, kinds, present))
    objects = _of_kind(dict, values, kinds, present)
    arrays = _of_kind(list, values, kinds, present)
    # Before they unfold: a value may refer to one list many times over.
    if len(below) + sum(map(len, objects)) + sum(map(len, arrays)) > MAX_VALUES:
        raise _Unfit
    floats = _survey_floats(_of_kind(float, values, kinds, present))
    names = _survey_names(objects)
    below.extend(chain.from_iterable(arrays))
    below.extend(chain.from_iterable(map(dict.values, objects)))
    return Survey(kinds.count(str) + names.strings, *map(max, floats[1:], names[1:]))


def _of_kind(kind: type, level: list[Any], kinds: list[type], present: set[type]) -> list[Any]:
    if kind not in present:
        return []
    if len(present) == 1:
        return level
    return [value for value, its in zip(level, kinds, strict=True) if its is kind]


def _check_integers(integers: list[int]) -> None:
    if integers and not -MAX_SAFE_INTEGER <= min(integers) <= max(integers) <= MAX_SAFE_INTEGER:
        raise _Unfit


def _survey_floats(floats: list[float]) -> Survey:
    if not floats:
        return Survey(0)
    if not all(map(math.isfinite, floats)):
        raise _Unfit
    is_huge = max(floats) > MAX_SAFE_INTEGER or min(floats) < -MAX_SAFE_INTEGER
    if is_huge and not all(map(is_legal, floats)):
        raise _Unfit
    rewritten = any(map(float.is_integer, floats)) or any(map(is_rewritten, floats))
    return Survey(0, 0.0 in floats, is_huge, rewritten)


def _survey_names(objects: list[dict[object, object]]) -> Survey:
    """Up to U+FFFF the order of code points, which orjson uses, is that of UTF-16 units."""
    if not objects:
        return Survey(0)
    names: list[Any] = [*chain.from_iterable(objects)]
    if max(map(len, objects)) > MAX_NAMES_PER_OBJECT or set(map(type, names)) - {str}:
        raise _Unfit
    is_resorted = not all(map(str.isascii, names)) and max(map(max, filter(None, names))) > "\uffff"
    return Survey(len(names), is_resorted=is_resorted)


def is_legal(value: float) -> bool:
    return abs(value) <= MAX_SAFE_INTEGER or FIRST_EXPONENT <= abs(value) < math.inf


def is_rewritten(value: float) -> bool:
    """Whether orjson writes a float in another way than RFC 8785."""
    return value.is_integer() or _LAST_DIGITS_FROM <= abs(value) < _LAST_DIGITS_TO
