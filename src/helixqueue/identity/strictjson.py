"""Strict JSON: in from text or from Python objects, out as the one text of RFC 8785.

The fingerprint of a payload is computed over that text, so two payloads that mean the same must
give the same text, and two that differ must not. Ordinary parsers break both: they keep the last
of two equal names, read 1e400 and 1e500 as the same infinity, and round large integers. Here such
input is refused, with a JSON Pointer to the place.

`loads(canonical_text(value))` always succeeds: what was stored can be read and judged again.
"""

from __future__ import annotations

import json
import math
import re
from contextlib import suppress
from typing import Any, Final, NamedTuple, NoReturn, TypeAlias

import orjson
import rfc8785

from helixqueue.errors import InvalidPayload
from helixqueue.identity.survey import (
    FIRST_EXPONENT,
    MAX_DEPTH,
    MAX_NAMES_PER_OBJECT,
    MAX_SAFE_INTEGER,
    MAX_TEXT_BYTES,
    MAX_VALUES,
    Survey,
    is_rewritten,
    survey,
)

Json: TypeAlias = "dict[str, Json] | list[Json] | str | int | float | bool | None"

MAX_SHOWN_CHARS: Final = 80  # of a value or a path inside an error message

_SURROGATE = re.compile("[\ud800-\udfff]")

_Path: TypeAlias = "tuple[str | int, ...]"


def canonical_text(value: object) -> str:
    """Write a value as RFC 8785 text, or raise `InvalidPayload`.

    orjson writes the text of RFC 8785 (property tests compare the two) after a survey of the value
    and, for a few values, a copy. What the survey rejects is checked value by value, for the path
    of an error, and written by `rfc8785`.
    """
    found = survey(value)
    if found is not None:
        text = _orjson_text(value, found)
        if text is not None:
            return text
    text = rfc8785.dumps(_Walk().plain(value, (), 0)).decode()
    if len(text.encode()) > MAX_TEXT_BYTES:
        _refuse_size(f"{len(text.encode())} bytes as canonical text")
    return text


def loads(data: bytes | str) -> Json:
    """Read strict JSON, or raise `InvalidPayload`.

    orjson reads the text; if it may have lost anything, a slower reader decides, and says what is
    wrong and where.
    """
    text = _decoded(data)
    with suppress(orjson.JSONDecodeError):
        value: Json = orjson.loads(text)
        found = survey(value)
        if found is None:
            _Walk().plain(value, (), 0)  # finds what is wrong, unless orjson has dropped it
        elif _is_all_of(text, found):
            return value
    try:
        value = _decode(text)
    except json.JSONDecodeError as error:
        _refuse("syntax", (), f"JSON; got a syntax error at offset {error.pos}: {error.msg}")
    except RecursionError:
        _refuse("depth", (), f"at most {MAX_DEPTH} arrays and objects inside one another; got more")
    return _Walk().plain(value, (), 0)


def _is_all_of(text: str, found: Survey) -> bool:
    """Whether orjson read all that a text says, and nothing that strict JSON refuses."""
    if "\\" in text:
        text = text.replace("\\\\", "")
        if "\\u0000" in text:
            return False
        text = text.replace('\\"', "")
    # Of two equal names orjson drops the first.
    return (
        text.count('"') == 2 * found.strings
        and not (found.has_zero and _MAY_UNDERFLOW.search(text))
        and not (found.has_huge and _MANY_DIGITS.search(text))
    )


# Every number that rounds to zero has one of these: 1e-324 is the product of its parts.
_MAY_UNDERFLOW = re.compile(r"[eE]-0*(?:1[6-9]\d|[2-9]\d\d|\d{4})|0{160}")
_MANY_DIGITS = re.compile(r"\d{20}")  # orjson reads an integer of 64 bits or more as a float


def _rewritten(value: Any, *, resorted: bool) -> Any:  # noqa: ANN401 - any JSON
    """Copy a value; some floats become integers or texts, which orjson writes as they are."""
    kind = type(value)
    if kind is float:
        return _number(value)
    if kind is list:
        return [
            item if type(item) in _KEPT_KINDS else _rewritten(item, resorted=resorted)
            for item in value
        ]
    if kind is dict:
        names = sorted(value, key=_utf16) if resorted else value
        return {name: _rewritten(value[name], resorted=resorted) for name in names}
    return value


_KEPT_KINDS = frozenset({str, int, bool, type(None)})


def _utf16(name: str) -> bytes:
    return name.encode("utf-16-be", "surrogatepass")


def _number(value: float) -> float | orjson.Fragment:
    if not is_rewritten(value):
        return value
    if abs(value) >= 1:
        return int(value) if abs(value) <= MAX_SAFE_INTEGER else value
    if value == 0:
        return 0
    digits = repr(abs(value))[: -len("e-06")].replace(".", "")
    return orjson.Fragment(f"{'-' if value < 0 else ''}0.00000{digits}")


def _orjson_text(value: object, found: Survey) -> str | None:
    """Write it and check what `survey` left aside: the size, lone surrogates, NUL."""
    if found.is_rewritten or found.is_resorted:
        value = _rewritten(value, resorted=found.is_resorted)
    try:
        data = orjson.dumps(value, option=0 if found.is_resorted else orjson.OPT_SORT_KEYS)
    except orjson.JSONEncodeError:
        return None
    if len(data) > MAX_TEXT_BYTES:
        _refuse_size(f"{len(data)} bytes as canonical text")
    text = data.decode()
    has_nul = "\\u0000" in text and "\\u0000" in text.replace("\\\\", "")
    return None if has_nul else text


class _Unreadable(NamedTuple):
    """Stands in the parsed value for what the parser must not decide; the walk finds its place."""

    code: str
    name: str | None  # of the member inside the object, for a duplicate
    expected: str


class _Walk:
    """Copies a value into plain types; refuses whatever is not strict JSON, with its path."""

    def __init__(self) -> None:
        self._values = 1

    def plain(self, value: object, path: _Path, depth: int) -> Json:
        if type(value) is list or type(value) is dict:  # faster than isinstance, for most values
            return self._container(value, path, depth + 1)
        if isinstance(value, str):
            return _string(value, path)
        if value is None or isinstance(value, bool):
            return value
        if isinstance(value, int):
            return _integer(value, path)
        if isinstance(value, float):
            return _float(value, path)
        if isinstance(value, _Unreadable):
            place = path if value.name is None else (*path, _string(value.name, path))
            _refuse(value.code, place, value.expected)
        return self._container(value, path, depth + 1)

    def _container(self, value: object, path: _Path, depth: int) -> Json:
        if not isinstance(value, dict | list | tuple):
            _refuse(
                "type",
                path,
                "an object, array, string, number, true, false or null; got "
                f"{type(value).__name__}. Convert it first, for example with "
                "`model_dump(mode='json')` or `isoformat()`",
            )
        if depth > MAX_DEPTH:
            _refuse("depth", path, f"at most {MAX_DEPTH} arrays and objects inside one another")
        self._values += len(value)
        if self._values > MAX_VALUES:
            _refuse_size(f"more than {MAX_VALUES} values")
        if isinstance(value, dict):
            return self._object(value, path, depth)
        return [
            item if type(item) in _CONSTANTS else self.plain(item, (*path, index), depth)
            for index, item in enumerate(value)
        ]

    def _object(self, value: dict[object, object], path: _Path, depth: int) -> Json:
        if len(value) > MAX_NAMES_PER_OBJECT:
            got = f"at most {MAX_NAMES_PER_OBJECT} names in one object; got {len(value)}"
            _refuse("names", path, got)
        plain: dict[str, Json] = {}
        for name, item in value.items():
            if not isinstance(name, str):
                got = f"names that are strings; got {_shown(repr(name))}, {type(name).__name__}"
                _refuse("name-type", path, got)
            good_name = _string(name, path)  # before it becomes part of a path
            plain[good_name] = self.plain(item, (*path, good_name), depth)
        return plain


_CONSTANTS = frozenset({bool, type(None)})


def _string(value: str, path: _Path) -> str:
    if "\0" in value:
        _refuse("nul", path, "strings and names without U+0000; PostgreSQL cannot store it")
    if not value.isascii() and (found := _SURROGATE.search(value)):
        got = f"well-formed Unicode; got the lone surrogate U+{ord(found[0]):04X}"
        _refuse("surrogate", path, f"{got} at offset {found.start()} of a string or name")
    return "".join(value)  # a plain string also from StrEnum


def _integer(value: int, path: _Path) -> int:
    if not -MAX_SAFE_INTEGER <= value <= MAX_SAFE_INTEGER:
        _refuse("number", path, _SAFE_INTEGER)
    return int(value)


def _float(value: float, path: _Path) -> float:
    if not math.isfinite(value):
        _refuse("number", path, f"a finite number; got {value}. Use null for 'no value'")
    if MAX_SAFE_INTEGER < abs(value) < FIRST_EXPONENT:
        # Its canonical text is an integer that `loads` must refuse.
        _refuse("number", path, _SAFE_INTEGER)
    return float(value)


_SAFE_INTEGER = (
    f"whole numbers within {-MAX_SAFE_INTEGER}..{MAX_SAFE_INTEGER}, which every JSON reader keeps "
    "exactly; got a larger one. Send it as a string"
)


def _decoded(data: bytes | str) -> str:
    if not isinstance(data, bytes | str):
        _refuse("type", (), f"JSON text as bytes or str; got {type(data).__name__}")
    if len(data) > MAX_TEXT_BYTES:
        _refuse_size(f"{len(data)} bytes or more")
    if isinstance(data, str):
        size = len(data.encode(errors="surrogatepass"))
        if size > MAX_TEXT_BYTES:
            _refuse_size(f"{size} bytes")
        return data
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        _refuse("encoding", (), f"UTF-8; got other bytes at offset {error.start}")


def _read_object(pairs: list[tuple[str, object]]) -> dict[str, object] | _Unreadable:
    members = dict(pairs)
    if len(members) == len(pairs):
        return members
    names: set[str] = set()
    for name, _ in pairs:
        if name in names:
            expected = "each name once in an object; got it again. Keep one of the two"
            return _Unreadable("duplicate-name", name, expected)
        names.add(name)
    raise AssertionError("expected a duplicate among pairs that shrank in a dict")


def _read_integer(digits: str) -> int | _Unreadable:
    # By length first: `int` itself refuses very long texts, with an error of its own.
    if len(digits) > len(str(-MAX_SAFE_INTEGER)):
        return _Unreadable("number", None, _SAFE_INTEGER)
    return int(digits)


def _read_float(text: str) -> float | _Unreadable:
    value = float(text)
    if math.isinf(value) or (value == 0 and text.lower().split("e")[0].strip("-0.")):
        got = f"a number within the range of doubles; got {_shown(text)}. Send it as a string"
        return _Unreadable("number", None, got)
    return value


def _read_constant(text: str) -> _Unreadable:
    return _Unreadable("number", None, f"a number; got {text}, which is not JSON. Use null")


_decode = json.JSONDecoder(
    object_pairs_hook=_read_object,
    parse_int=_read_integer,
    parse_float=_read_float,
    parse_constant=_read_constant,
).decode


def pointer(path: _Path) -> str:
    """Write a path as a JSON Pointer (RFC 6901)."""
    return "".join(f"/{str(key).replace('~', '~0').replace('/', '~1')}" for key in path)


def _shown(text: str) -> str:
    safe = ascii(text)[1:-1]
    return safe if len(safe) <= MAX_SHOWN_CHARS else safe[:MAX_SHOWN_CHARS] + "..."


def _refuse(code: str, path: _Path, expected_and_got: str) -> NoReturn:
    place = pointer(path)
    where = f" at '{_shown(place)}'" if place else ""
    raise InvalidPayload(f"payload{where}: expected {expected_and_got}", code=code, path=place)


def _refuse_size(got: str) -> NoReturn:
    remedy = "Store the data elsewhere and send a reference"
    _refuse("too-large", (), f"at most {MAX_TEXT_BYTES} bytes of UTF-8; got {got}. {remedy}")
