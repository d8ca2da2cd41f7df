"""Parameters of operations: one description for HTTP, the command line and Python callers.

    Letter = Annotated[int, Param("Number of the dead letter.", least=1, example=7)]

The service makes a pydantic field of it, the command line an option, and `check_value` refuses
what a Python program passes. This module imports none of their libraries.
"""

from __future__ import annotations

import math
import re
import unicodedata
from base64 import b64decode, b64encode
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, NamedTuple, Union, get_args, get_origin

from helixqueue.errors import Refused

NAME_PATTERN = r"^[a-z0-9][a-z0-9_.-]{0,62}$"
MAX_PAGE = 500
# The default of a JSON parameter that may be left out: null is a value.
ABSENT: Any = ...


@dataclass(frozen=True, slots=True)
class Param:
    """What a value means and which values are allowed."""

    text: str
    example: Any = field(default=None, hash=False)  # unions of annotations need a hash
    least: float | None = None  # of a number
    most: float | None = None
    # Maximum of a text, list or object, which is then not empty, unless `least` is 0.
    length: int | None = None
    pattern: str | None = None
    check: Callable[[Any], Any] | None = None  # returns the value, or raises ValueError
    read: Callable[[Any], Any] | None = None  # the value of what a Python caller may also pass
    option: str | None = None  # on the command line; default: --name without _seconds
    metavar: str | None = None
    sealed: bool = False  # contains numbers of all tenants: a service encrypts it

    def __get_pydantic_core_schema__(self, source: Any, handler: Any) -> Any:  # noqa: ANN401 - pydantic's
        """The limits, as pydantic validates them."""
        schema = handler(source)
        limits: dict[str, Any]
        if schema["type"] in {"int", "float"}:
            limits = {"ge": self.least, "le": self.most}
            limits |= {"allow_inf_nan": False} if schema["type"] == "float" else {}
        else:
            least = None if self.length is None else 1 if self.least is None else self.least
            limits = {"pattern": self.pattern, "max_length": self.length, "min_length": least}
        schema |= {name: limit for name, limit in limits.items() if limit is not None}
        from pydantic_core import core_schema  # noqa: PLC0415 - only the service needs it

        if schema["type"] == "datetime":
            schema = core_schema.no_info_before_validator_function(iso_text, schema)
        if self.check is None:
            return schema
        return core_schema.no_info_after_validator_function(self.check, schema)

    def __get_pydantic_json_schema__(self, schema: Any, handler: Any) -> dict[str, Any]:  # noqa: ANN401
        about: dict[str, Any] = {"description": self.text} if self.text else {}
        about |= {} if self.example is None else {"examples": [self.example]}
        return {**handler(schema), **about}


class Payload:
    """Marks a field of a record that holds or quotes a payload: hidden without that scope."""


class Base64Json:
    """Tells pydantic to send bytes as base64."""

    @classmethod
    def __get_pydantic_core_schema__(cls, source: object, handler: object) -> Any:  # noqa: ANN401
        from pydantic_core import core_schema  # noqa: PLC0415 - only the service needs it

        return core_schema.no_info_plain_validator_function(
            lambda value: value if isinstance(value, bytes) else b64decode(value, validate=True),
            serialization=core_schema.plain_serializer_function_ser_schema(
                lambda value: b64encode(value).decode()
            ),
        )

    @classmethod
    def __get_pydantic_json_schema__(cls, schema: object, handler: object) -> dict[str, Any]:
        return {"type": "string", "format": "byte"}


class ParameterKind(NamedTuple):
    """An annotation in its parts: `Annotated[int, Param(...)] | None`."""

    base: Any
    param: Param
    optional: bool


def kind_of(annotation: Any) -> ParameterKind:  # noqa: ANN401 - an annotation
    if get_origin(annotation) is Annotated:
        base, *marks = get_args(annotation)
        inner = kind_of(base)
        param = next((mark for mark in reversed(marks) if isinstance(mark, Param)), inner.param)
        return inner._replace(param=param)
    if get_origin(annotation) in {Union, UnionType}:
        parts = [part for part in get_args(annotation) if part is not NoneType]
        optional = len(parts) < len(get_args(annotation))
        if len(parts) == 1:
            return kind_of(parts[0])._replace(optional=optional)
        return ParameterKind(annotation, Param(""), optional)
    return ParameterKind(annotation, Param(""), optional=False)


def check_value(name: str, annotation: Any, value: Any) -> None:  # noqa: ANN401 - any parameter
    """Refuse a value that does not fit; lists and objects are left to the operation."""
    base, param, optional = kind_of(annotation)
    if value is None and optional:
        return
    number = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    expected, fits = "", True
    words = words_of(base)
    if words:
        expected, fits = f"one of {', '.join(words)}", value in words
    elif base in {int, float}:
        fits = number and (base is float or isinstance(value, int))
        fits = fits and (param.least is None or value >= param.least)
        fits = fits and (param.most is None or value <= param.most)
        expected = f"a {'whole ' if base is int else ''}number from {param.least} to {param.most}"
    elif base is bool:
        expected, fits = "true or false", isinstance(value, bool)
    elif base is str:
        expected = f"a text of 1 to {param.length} characters" if param.length else "a text"
        fits = isinstance(value, str) and (not param.length or 0 < len(value) <= param.length)
        if fits and param.pattern:
            expected, fits = f"a text like {param.example}", bool(re.match(param.pattern, value))
    if fits and param.check is not None:
        try:
            param.check(value)
        except ValueError as error:
            expected, fits = str(error).removeprefix("expected "), False
    if not fits:
        raise Refused(f"{name}: expected {expected}, got {ascii(value)[:80]}")


def iso_text(value: object) -> object:
    """Reject numbers: pydantic would guess seconds or milliseconds from their size."""
    if not isinstance(value, str) or not re.match(r"\d{4}-\d\d-\d\d", value):
        raise ValueError("expected a time with its zone, such as 2026-11-16T12:00:00Z")
    return value


def aware(value: object) -> object:
    """Reject times without a zone."""
    if not isinstance(value, datetime) or value.tzinfo is None:
        raise ValueError("expected a time with its zone, such as 2026-11-16T12:00:00Z")
    return value


def words_of(base: Any) -> tuple[str, ...]:  # noqa: ANN401 - an annotation
    """The words of a Literal, of an enumeration, or of a union of them."""
    if get_origin(base) is Literal:
        return get_args(base)
    if isinstance(base, type) and issubclass(base, StrEnum):
        return tuple(base)
    parts = [words_of(part) for part in get_args(base)]
    is_union = get_origin(base) in {Union, UnionType}
    return sum(parts, ()) if is_union and all(parts) else ()


def printable(text: str) -> str:
    if not text.strip() or any(unicodedata.category(char) == "Cc" for char in text):
        raise ValueError("expected text without control characters")
    return text


def _stated(text: str) -> str:
    if not text.strip():
        raise ValueError("expected a reason for the record")
    return printable(text)


# Parameters of several subjects.

QueueName = Annotated[
    str,
    Param("Name of the queue.", example="basecall", pattern=NAME_PATTERN, metavar="QUEUE"),
]
Reason = Annotated[
    str,
    Param(
        "Reason to record in the ledger.",
        example="reads were contaminated",
        length=200,
        check=_stated,
        metavar="TEXT",
    ),
]
Cursor = Annotated[
    str, Param("Continue after this cursor.", length=400, metavar="CURSOR", sealed=True)
]
Limit = Annotated[
    int, Param("Maximum number of rows.", example=50, least=1, most=MAX_PAGE, metavar="N")
]
ActionLimit = Annotated[
    int,
    Param("Maximum number of batches that filters select.", least=1, most=MAX_PAGE, metavar="N"),
]
IdentityText = Annotated[str, Param("", length=1024)]
Json = Annotated[Any, Param("Any JSON.")]
Requirements = Annotated[
    Mapping[str, Any],
    Param("Resources that a worker must have.", example={"gpus": 1}, metavar="JSON"),
]
