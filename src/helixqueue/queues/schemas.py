"""JSON against a stored JSON Schema (draft 2020-12).

The schema comes from the database, written by any login that may set a queue. It must not load
other documents (no reference leaves the document) or run for long (regular expressions without
backtracking). See docs/decisions/0009-json-schemas.md for the choice of the library.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from helixqueue.errors import InvalidPayload, Refused
from helixqueue.identity.strictjson import pointer

if TYPE_CHECKING:
    from collections.abc import Mapping

MAX_SHOWN_CHARS = 200


class Schema:
    """A compiled schema."""

    def __init__(self, document: Mapping[str, Any]) -> None:
        # Here and not above: it is 40 ms that most programs never need.
        from jsonschema_rs import Draft202012Validator, RegexOptions  # noqa: PLC0415
        from jsonschema_rs import ValidationError as SchemaError  # noqa: PLC0415

        self.document = document
        try:
            self._validator = Draft202012Validator(
                dict(document),
                offline=True,
                pattern_options=RegexOptions(),
            )
        except (SchemaError, ValueError) as error:
            raise Refused(
                f"expected a JSON Schema (draft 2020-12) without outside references, "
                f"got one that says: {str(error)[:MAX_SHOWN_CHARS]}"
            ) from None

    def check(self, value: Any, what: str = "payload") -> None:  # noqa: ANN401 - any JSON
        """Raise `InvalidPayload` for the first place that breaks the schema."""
        error = next(iter(self._validator.iter_errors(value)), None)
        if error is not None:
            path = pointer(tuple(error.instance_path))
            raise InvalidPayload(
                f"{what}{' at ' + path if path else ''}: {error.message[:MAX_SHOWN_CHARS]}; "
                "the queue's schema says what is expected",
                code="schema",
                path=path,
            )
