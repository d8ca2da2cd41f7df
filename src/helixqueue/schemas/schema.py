"""`Schema`: a stored JSON Schema, and where JSON is checked against it.

jsonschema-rs holds the interpreter lock while it validates, and its errors under `anyOf` and
`oneOf` list every error of every alternative. So the first error is taken from a schema that
reports such alternatives as one error, and validation of unknown cost runs in another process.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from helixqueue.errors import InvalidPayload, Refused
from helixqueue.identity.strictjson import pointer
from helixqueue.queues.schema_bounds import SCHEMA_LISTS, SCHEMA_MAPS, SCHEMAS, expanded_cost

if TYPE_CHECKING:
    from jsonschema_rs import Draft202012Validator

MAX_SHOWN_CHARS: Final = 200
# Steps of a validation that may hold the interpreter lock: at most 30 ms.
MAX_INLINE_STEPS: Final = 500_000
# Cost of a schema that is compiled in this process: at most 20 ms.
MAX_INLINE_COST: Final = 10_000
PATTERN_BYTES: Final = 1024 * 1024  # of one compiled pattern


class Failure(NamedTuple):
    """The first place that breaks a schema."""

    path: str
    message: str


class Schema:
    def __init__(self, document: Mapping[str, Any]) -> None:
        """Raise `Refused` for a document that is not a schema, if that is known without limits."""
        self.document = document
        self.cost = expanded_cost(document)
        self._validator = self._compiled()

    def _compiled(self) -> Draft202012Validator | None:
        if self.cost is None or self.cost > MAX_INLINE_COST:
            return None
        return compiled(self.document)

    @cached_property
    def _text(self) -> str:
        return json.dumps(self.document)

    def is_inline(self, chars: int) -> bool:
        """Whether JSON of this length is checked within milliseconds, in this process."""
        return (
            self._validator is not None
            and self.cost is not None
            and self.cost * max(chars, 1) <= MAX_INLINE_STEPS
        )

    def check(self, text: str, what: str = "payload") -> None:
        """Raise `InvalidPayload` for the first place that breaks the schema."""
        if self._validator is not None and self.is_inline(len(text)):
            failure = first_failure(self._validator, json.loads(text))
        else:
            from helixqueue.schemas.processes import PROCESSES  # noqa: PLC0415 - rarely needed

            failure = PROCESSES.check(self._text, text)
        if failure is not None:
            raise InvalidPayload(
                f"{what}{' at ' + failure.path if failure.path else ''}: {failure.message}; "
                "the queue's schema says what is expected",
                code="schema",
                path=failure.path,
            )

    def check_compiles(self) -> None:
        """Raise `Refused` unless the schema is one; for schemas that are about to be stored."""
        if self._validator is None:
            from helixqueue.schemas.processes import PROCESSES  # noqa: PLC0415 - rarely needed

            PROCESSES.check(self._text, None)


def compiled(document: Mapping[str, Any]) -> Draft202012Validator:
    """Compile a schema; no reference leaves the document, and patterns match in linear time."""
    # Here and not above: it is 40 ms that most programs never need.
    from jsonschema_rs import Draft202012Validator, RegexOptions  # noqa: PLC0415
    from jsonschema_rs import ValidationError as SchemaError  # noqa: PLC0415

    try:
        return Draft202012Validator(
            with_single_errors(document),
            offline=True,
            pattern_options=RegexOptions(size_limit=PATTERN_BYTES, dfa_size_limit=PATTERN_BYTES),
        )
    except (SchemaError, ValueError, RecursionError) as error:
        raise Refused(
            f"expected a JSON Schema (draft 2020-12) without outside references, "
            f"got one that says: {str(error)[:MAX_SHOWN_CHARS]}"
        ) from None


def with_single_errors(document: Mapping[str, Any]) -> dict[str, Any]:
    """The same schema, whose alternatives (`anyOf`, `oneOf`) fail with one error each.

    `not` has no errors of the schemas inside it. It passes no annotations on either, so schemas
    with `unevaluated...` stay as they are, and so do those with references into alternatives.
    """
    text = json.dumps(document)
    if any(part in text for part in ("unevaluated", "/anyOf/", "/oneOf/")):
        return dict(document)
    rewritten: dict[str, Any] = _with_single_errors(dict(document))
    return rewritten


def _with_single_errors(schema: Any) -> Any:  # noqa: ANN401 - a schema, or what stands in its place
    if not isinstance(schema, dict):
        return schema
    rewritten: dict[str, Any] = {}
    alternatives = []
    for name, value in schema.items():
        if name in {*SCHEMA_MAPS, "$defs", "definitions"} and isinstance(value, dict):
            rewritten[name] = {key: _with_single_errors(item) for key, item in value.items()}
        elif name in SCHEMA_LISTS and isinstance(value, list):
            items = [_with_single_errors(item) for item in value]
            if name in {"anyOf", "oneOf"}:
                alternatives.append({"not": {"not": {name: items}}})
            else:
                rewritten[name] = items
        else:
            rewritten[name] = _with_single_errors(value) if name in SCHEMAS else value
    if alternatives and isinstance(rewritten.get("allOf", []), list):
        rewritten["allOf"] = [*rewritten.get("allOf", []), *alternatives]
    return rewritten


def first_failure(validator: Draft202012Validator, value: Any) -> Failure | None:  # noqa: ANN401 - any JSON
    from jsonschema_rs import ValidationError, ValidationErrorKind  # noqa: PLC0415

    try:
        validator.validate(value)
    except ValidationError as error:
        message = error.message[:MAX_SHOWN_CHARS]
        if isinstance(error.kind, ValidationErrorKind.Not) and isinstance(error.kind.schema, dict):
            alternatives = error.kind.schema.get("not")
            if isinstance(alternatives, dict) and "anyOf" in alternatives:
                message = "expected one of the alternatives of the schema (anyOf), got none of them"
            elif isinstance(alternatives, dict) and "oneOf" in alternatives:
                message = "expected exactly one of the alternatives of the schema (oneOf)"
        return Failure(pointer(tuple(error.instance_path)), message)
    return None
