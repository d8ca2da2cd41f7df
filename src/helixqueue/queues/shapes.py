"""A Python type as the shape of JSON: pydantic models, dataclasses, TypedDicts, plain types.

A typed value is stored whole, defaults included: the record says what was meant even after the
default has changed in the code.
"""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from helixqueue.errors import InvalidPayload, Refused
from helixqueue.identity.strictjson import pointer
from helixqueue.queues.schema_bounds import check_bounds

if TYPE_CHECKING:
    from pydantic import TypeAdapter, ValidationError

T = TypeVar("T")
MAX_SHOWN_CHARS = 200


class Shape(Generic[T]):
    """What a queue's payload or result looks like; `what` names it in errors."""

    def __init__(self, kind: type[T], what: str) -> None:
        self.kind = kind
        self.what = what

    @cached_property
    def _adapter(self) -> TypeAdapter[T]:
        # Importing pydantic takes longer than the rest of the package together.
        from pydantic import PydanticUserError, TypeAdapter  # noqa: PLC0415

        try:
            return TypeAdapter(self.kind)
        except (PydanticUserError, NameError, TypeError) as error:
            raise Refused(
                f"{self.what}: expected a pydantic model, dataclass, TypedDict or plain type, "
                f"got {self.kind!r}: {str(error).partition(chr(10))[0][:MAX_SHOWN_CHARS]}"
            ) from error

    @cached_property
    def schema(self) -> dict[str, Any]:
        """The JSON Schema of what can be read as this type."""
        from pydantic import PydanticInvalidForJsonSchema  # noqa: PLC0415

        try:
            document = self._adapter.json_schema(mode="validation")
        except PydanticInvalidForJsonSchema as error:
            raise Refused(f"{self.what}: {self.kind!r} has no JSON form: {error}") from error
        check_bounds(document, f"{self.what}: JSON Schema of {self.kind!r}")
        return document

    def to_json(self, value: Any) -> Any:  # noqa: ANN401 - any value in, any JSON out
        """Check a value (or what can be read as one) and give its JSON."""
        from pydantic_core import PydanticSerializationError  # noqa: PLC0415

        typed = self.read(value)
        try:
            # Models check their fields when they are made, not when one is assigned later.
            return self._adapter.dump_python(typed, mode="json", warnings="error")
        except PydanticSerializationError as error:
            raise InvalidPayload(
                f"{self.what}: {str(error)[:MAX_SHOWN_CHARS]}", code="schema"
            ) from None

    def read(self, value: Any) -> T:  # noqa: ANN401 - any JSON
        """The value as the declared type."""
        from pydantic import ValidationError  # noqa: PLC0415

        try:
            return self._adapter.validate_python(value)
        except ValidationError as error:
            raise _explained(error, value, self.what) from None


def _explained(error: ValidationError, value: object, what: str) -> InvalidPayload:
    first = error.errors(include_url=False, include_context=False)[0]
    path = pointer(_places(first["loc"], value, missing=first["type"] == "missing"))
    got = "" if first["type"] == "missing" else f", got {ascii(first['input'])[:80]}"
    more = f" (and {error.error_count() - 1} more)" if error.error_count() > 1 else ""
    return InvalidPayload(
        f"{what}{' at ' + path if path else ''}: {first['msg']}{got}{more}",
        code="schema",
        path=path,
    )


def _places(location: tuple[str | int, ...], value: object, *, missing: bool) -> tuple[Any, ...]:
    """The steps of a location that lead through the value; unions add steps of their own."""
    walked: list[str | int] = []
    for place, step in enumerate(location):
        inside = step in value if isinstance(value, dict) else isinstance(value, list)
        if inside:
            value = value[step]  # type: ignore[index]
        if inside or (missing and place == len(location) - 1):
            walked.append(step)
    return tuple(walked)
