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

Json: TypeAlias = "dict[str, Json] | list[Json] | str | int | float | bool | None"

MAX_TEXT_BYTES: Final = 1024 * 1024  # of UTF-8, as received and as canonical text
MAX_DEPTH: Final = 64  # arrays and objects inside one another
MAX_NAMES_PER_OBJECT: Final = 10_000
MAX_SAFE_INTEGER: Final = 2**53 - 1  # beyond it doubles skip integers: two numbers become one
# Every value takes two bytes of text or more, so a larger count cannot fit. Counting while walking
# stops values that refer to one list many times over and would unfold without end.
MAX_VALUES: Final = MAX_TEXT_BYTES // 2
MAX_SHOWN_CHARS: Final = 80  # of a value or a path inside an error message

# From here on RFC 8785 writes an exponent; a whole number below it is written in digits.
_FIRST_EXPONENT = 1e21
# Within these, every version of orjson and `repr` write a fraction as RFC 8785 does: the shortest
# digits, no exponent. Beyond, they write other exponents, and the two differ between themselves.
_PLAIN_FRACTION_FROM, _PLAIN_FRACTION_TO = 1e-4, 1e16
_LAST_NEGATIVE_EXPONENT = -7  # RFC 8785 writes larger fractions in digits

_SURROGATE = re.compile("[\ud800-\udfff]")

_Path: TypeAlias = "tuple[str | int, ...]"


def canonical_text(value: object) -> str:
    """Write a value as RFC 8785 text, or raise `InvalidPayload`.

    For most payloads orjson writes the text of RFC 8785 (property tests compare the two), and is
    ten times as fast as a general implementation. The other payloads are checked value by value,
    for the path of an error, and written by `rfc8785`.
    """
    survey = _survey(value)
    if survey is not None:
        _, odd_floats = survey
        text = _orjson_text(_with_number_texts(value) if odd_floats else value)
        if text is not None:
            return text
    text = rfc8785.dumps(_Walk().plain(value, (), 0)).decode()
    if len(text.encode()) > MAX_TEXT_BYTES:
        _refuse_size(f"{len(text.encode())} bytes as canonical text")
    return text


def loads(data: bytes | str) -> Json:
    """Read strict JSON, or raise `InvalidPayload`.

    Most texts are simple, and those orjson reads in a third of the time.
    """
    text = _decoded(data)
    with suppress(orjson.JSONDecodeError):  # the other reader says what is wrong, and where
        simple: Json = orjson.loads(text)
        if _is_all_of(text, simple):
            return simple
    try:
        value: Json = _decode(text)
    except json.JSONDecodeError as error:
        _refuse("syntax", (), f"JSON; got a syntax error at offset {error.pos}: {error.msg}")
    except RecursionError:
        _refuse("depth", (), f"at most {MAX_DEPTH} arrays and objects inside one another; got more")
    # Without escapes in well-formed text there is no way to a NUL or a lone surrogate.
    if "\\u" not in text and _survey(value) is not None and not _SURROGATE.search(text):
        return value
    return _Walk().plain(value, (), 0)


def _is_all_of(text: str, value: object) -> bool:
    """Say whether orjson read all that a text says: of two equal names it drops the first.

    Where nothing is escaped every string stands in two quotes, so a dropped name would be missed.
    Odd floats are left to the other reader: a zero may stand for a number too small for a double.
    """
    return "\\" not in text and _survey(value) == (text.count('"') / 2, False)


def _survey(value: object) -> tuple[int, bool] | None:
    """Count the strings of a value, names included, and say whether it has odd floats.

    Odd are those that orjson writes in another way than RFC 8785. None if the value needs the walk,
    for its text or for the error. The content of strings is left to orjson.

    Level by level instead of by recursion: it bounds the depth, and is faster.
    """
    strings, odd_floats = 0, False
    level: list[Any] = [value]
    for _ in range(MAX_DEPTH):
        below: list[Any] = []
        for each in level:
            kind = type(each)
            if kind is str:
                strings += 1
            elif kind is dict and len(below) <= MAX_VALUES and _has_simple_names(each):
                strings += len(each)
                below.extend(each.values())
            elif kind is list and len(below) <= MAX_VALUES:
                below.extend(each)
            elif kind is float and _is_plain_fraction(each):
                continue
            elif kind is float and _is_legal(each):
                odd_floats = True
            elif not (
                (kind is int and -MAX_SAFE_INTEGER <= each <= MAX_SAFE_INTEGER)
                or each is None
                or kind is bool
            ):
                return None
        if not below:
            return strings, odd_floats
        level = below
    return None  # near the bound or beyond it: the walk decides, and names the place


def _is_legal(value: float) -> bool:
    return abs(value) <= MAX_SAFE_INTEGER or _FIRST_EXPONENT <= abs(value) < math.inf


def _is_plain_fraction(value: float) -> bool:
    return _PLAIN_FRACTION_FROM <= abs(value) < _PLAIN_FRACTION_TO and not value.is_integer()


def _has_simple_names(names: dict[object, object]) -> bool:
    """Whether orjson sorts them as RFC 8785 does.

    It sorts by code point instead of UTF-16 code unit, which is the same up to U+FFFF.
    """
    for name in names:  # not all(): it would make a generator for each object
        if type(name) is not str or not (name.isascii() or max(name) <= "\uffff"):
            return False
    return len(names) <= MAX_NAMES_PER_OBJECT


def _with_number_texts(value: Any) -> Any:  # noqa: ANN401 - any JSON
    """Copy a value; odd floats become integers or texts, which orjson writes as they are."""
    kind = type(value)
    if kind is dict:
        return {name: _with_number_texts(item) for name, item in value.items()}
    if kind is list:
        return [_with_number_texts(item) for item in value]
    if kind is not float or _is_plain_fraction(value):
        return value
    if abs(value) <= MAX_SAFE_INTEGER and value.is_integer():
        return int(value)
    return orjson.Fragment(_exponent_text(value))


def _exponent_text(value: float) -> str:
    """Write a float below 1e-4 or from 1e21 on as ECMAScript does, and therefore RFC 8785.

    `repr` gives the same shortest digits, always with an exponent in these ranges.
    """
    digits, _, exponent = repr(value).partition("e")
    power = int(exponent)
    if power > 0 or power <= _LAST_NEGATIVE_EXPONENT:
        return f"{digits}e{power:+}"
    sign = "-" if value < 0 else ""
    return f"{sign}0.{'0' * (-power - 1)}{digits.lstrip('-').replace('.', '')}"


def _orjson_text(value: object) -> str | None:
    """Write it and check what `_survey` left aside: the size, lone surrogates, NUL.

    A backslash before "u0000" in the value looks like a NUL here; then the walk decides.
    """
    try:
        data = orjson.dumps(value, option=orjson.OPT_SORT_KEYS)
    except orjson.JSONEncodeError:
        return None
    text = data.decode()
    return None if len(data) > MAX_TEXT_BYTES or "\\u0000" in text else text


class _Unreadable(NamedTuple):
    """Stands in the parsed value for what the parser must not decide; the walk finds its place."""

    code: str
    name: str | None  # of the member inside the object, for a duplicate
    expected: str


class _Walk:
    """Copies a value into plain types; refuses whatever is not strict JSON, with its path."""

    def __init__(self) -> None:
        self._values = 0

    def plain(self, value: object, path: _Path, depth: int) -> Json:
        self._values += 1
        if self._values > MAX_VALUES:
            _refuse_size(f"more than {MAX_VALUES} values")
        if value is None or isinstance(value, bool):
            return value
        if isinstance(value, str):
            return _string(value, path)
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
        if isinstance(value, dict):
            return self._object(value, path, depth)
        return [self.plain(item, (*path, index), depth) for index, item in enumerate(value)]

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


def _string(value: str, path: _Path) -> str:
    if "\0" in value:
        _refuse("nul", path, "strings and names without U+0000; PostgreSQL cannot store it")
    if found := _SURROGATE.search(value):
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
    if MAX_SAFE_INTEGER < abs(value) < _FIRST_EXPONENT:
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
