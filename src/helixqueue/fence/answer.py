"""Results as bytes and back: what a repeat returns is what the first call returned.

The first caller, too, gets the result as it reads back from its bytes, so the two cannot differ.
With a return annotation pydantic writes and reads it; without one, what JSON keeps exactly (None,
true, numbers, strings, lists, dicts) and bytes. No pickle: an answer is data, never code.
"""

from __future__ import annotations

from typing import Any, Final

from pydantic import TypeAdapter, ValidationError
from pydantic_core import PydanticSerializationError, from_json, to_json

from helixqueue.errors import Refused

BYTES: Final = "bytes"
JSON: Final = "json"
UNTYPED: Final = object()


class NotKept(Refused):
    """This result has no bytes that would read back as itself."""


class Codec:
    """Writes and reads the results of one function."""

    def __init__(self, kind: Any = UNTYPED) -> None:  # noqa: ANN401 - any annotation
        # `-> None` is annotated as None itself.
        self._adapter: TypeAdapter[Any] | None = None
        if kind is not UNTYPED and kind is not Any:
            self._adapter = TypeAdapter(type(None) if kind is None else kind)

    def write(self, value: object) -> tuple[str, bytes]:
        """The form and the bytes; raises `NotKept`."""
        if type(value) is bytes:
            return BYTES, value
        try:
            data = to_json(value) if self._adapter is None else self._adapter.dump_json(value)
            same = self.read(JSON, data)
        except (PydanticSerializationError, ValidationError, UnicodeDecodeError) as error:
            raise NotKept(_lost(value, str(error).splitlines()[0])) from error
        if not _equal(same, value):
            raise NotKept(_lost(value, "it reads back as something else"))
        return JSON, data

    def read(self, form: str, data: bytes) -> Any:  # noqa: ANN401 - whatever was written
        """Raises `ValueError` for what is not of this form, or of none that is known here."""
        if form == BYTES:
            return data
        if form != JSON:
            raise ValueError(f"expected the form {JSON} or {BYTES}, got {form}")
        return from_json(data) if self._adapter is None else self._adapter.validate_json(data)


def _lost(value: object, why: str) -> str:
    return (
        f"expected a result that can be kept and read back, got {type(value).__name__}: {why}; "
        "annotate the return type with a pydantic model or a standard type"
    )


def _equal(one: object, other: object) -> bool:
    """Equal with the same types inside: a tuple is no list, True is no 1."""
    if type(one) is not type(other):
        return False
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(_equal(v, other[k]) for k, v in one.items())
    if isinstance(one, list | tuple) and isinstance(other, list | tuple):
        return len(one) == len(other) and all(map(_equal, one, other))
    return one == other or (one != one and other != other)  # noqa: PLR0124 - NaN
