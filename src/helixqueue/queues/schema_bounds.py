"""Bounds of a JSON Schema, computed without a validator.

`check_bounds` refuses a schema that a queue must not store. `expanded_cost` estimates how often the
parts of a schema are applied to one value: validation takes at most about that number of steps per
character of JSON. Every reference is counted as a copy of its target, so nested references to
references have the cost that they cause.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final
from urllib.parse import unquote

from helixqueue.errors import Refused
from helixqueue.queues.pattern_size import pattern_size

MAX_SCHEMA_BYTES: Final = 65_536  # as the table has it
MAX_DEPTH: Final = 64  # nested arrays and objects, and schemas inside schemas with references
MAX_REFERENCES: Final = 500
MAX_PATTERNS: Final = 200
MAX_COST: Final = 100_000
UNIQUE_ITEMS_COST: Final = 32  # per value, measured against a type check
DRAFT: Final = "https://json-schema.org/draft/2020-12/schema"

SCHEMA_LISTS: Final = frozenset({"allOf", "anyOf", "oneOf", "prefixItems"})
SCHEMA_MAPS: Final = frozenset({"properties", "patternProperties", "dependentSchemas"})
SCHEMAS: Final = frozenset(
    {"not", "if", "then", "else", "items", "contains", "propertyNames", "additionalProperties"}
)
# They depend on what other keywords have matched, or on where a reference came from.
_UNPROVEN: Final = frozenset({"unevaluatedItems", "unevaluatedProperties", "$dynamicRef"})
_DEFINITION: Final = re.compile(r"#(/(\$defs|definitions)/[^/]+)?")
_ANNOTATIONS: Final = frozenset(
    {"$defs", "definitions", "$comment", "$anchor", "$schema", "$id", "title", "description",
     "default", "examples", "deprecated", "readOnly", "writeOnly", "format"}
)  # fmt: skip


def check_bounds(document: Mapping[str, Any], what: str = "schema") -> None:
    """Raise `Refused` for a schema that is too large or cannot be bounded."""
    size = len(json.dumps(document, ensure_ascii=False).encode())
    if size > MAX_SCHEMA_BYTES:
        raise Refused(f"{what}: expected at most {MAX_SCHEMA_BYTES} bytes of JSON, got {size}")
    if _depth(document) > MAX_DEPTH:
        raise Refused(f"{what}: expected at most {MAX_DEPTH} nested arrays and objects, got more")
    survey = _survey(document)
    if survey.fault is not None:
        raise Refused(f"{what}: {survey.fault}")
    for name, number, most in (
        ("references", survey.references, MAX_REFERENCES),
        ("patterns", survey.patterns, MAX_PATTERNS),
        ("steps per value, with references and patterns written out", survey.cost, MAX_COST),
    ):
        if number > most:
            raise Refused(f"{what}: expected at most {most} {name}, got {number}")


def expanded_cost(document: Mapping[str, Any]) -> int | None:
    """The steps per character of JSON; None for a schema whose cost depends on the depth of it."""
    if _depth(document) > MAX_DEPTH:
        return None
    survey = _survey(document)
    return survey.cost if survey.is_proven and survey.fault is None else None


@dataclass
class _Survey:
    """What a walk through the evaluated parts of a schema found."""

    document: Mapping[str, Any]
    cost: int = 0
    references: int = 0
    patterns: int = 0
    fault: str | None = None  # the first
    is_proven: bool = True  # that the cost per character does not depend on the value
    costs: dict[int, int] = field(default_factory=dict)  # by id of the subschema
    open: set[int] = field(default_factory=set)

    def add_fault(self, fault: str) -> int:
        self.fault = self.fault or fault
        return 0

    def schema(self, schema: object) -> int:
        """The cost of one schema with all that it refers to."""
        if not isinstance(schema, dict):
            return 1
        key = id(schema)
        if key in self.open:
            self.is_proven = False  # recursive: the value decides how often
            return 1
        if key not in self.costs:
            if len(self.open) > MAX_DEPTH:
                return self.add_fault(
                    f"expected schemas and references nested at most {MAX_DEPTH} deep, got more"
                )
            self.open.add(key)
            self.costs[key] = 1 + sum(self.keyword(*item) for item in schema.items())
            self.open.remove(key)
            self._check_resource(schema)
        return self.costs[key]

    def keyword(self, name: str, value: Any) -> int:  # noqa: ANN401 - JSON
        if name == "$ref":
            return self.reference(value)
        if name == "pattern":
            return self.pattern(value)
        if name in SCHEMA_LISTS and isinstance(value, list):
            return sum(self.schema(item) for item in value)
        if name in SCHEMA_MAPS and isinstance(value, dict):
            patterns = value if name == "patternProperties" else ()
            own = sum(self.pattern(pattern) for pattern in patterns)
            return own + sum(1 + self.schema(item) for item in value.values())
        if name in SCHEMAS or name in _UNPROVEN:
            self.is_proven = self.is_proven and name not in _UNPROVEN
            return self.schema(value)
        return _assertion_cost(name, value)

    def reference(self, reference: object) -> int:
        self.references += 1
        found, target = _resolve(self.document, reference)
        if not found:
            return self.add_fault(
                "expected references to a place in the document, such as #/$defs/name; "
                f"got {ascii(reference)[:80]}"
            )
        if not _DEFINITION.fullmatch(str(reference)):
            self.is_proven = False  # it may be a place that is no schema otherwise
        return self.schema(target)

    def pattern(self, pattern: object) -> int:
        self.patterns += 1
        size = pattern_size(pattern) if isinstance(pattern, str) else None
        if size is None:
            self.is_proven = False
        return size or 1

    def _check_resource(self, schema: Mapping[str, Any]) -> None:
        """Another base or draft would give references and keywords another meaning."""
        if "$id" in schema and schema is not self.document:
            self.add_fault("expected $id at the top of the document only")
        if schema.get("$schema", DRAFT) not in {DRAFT, DRAFT + "#"}:
            self.add_fault(f"expected $schema {DRAFT}, got {ascii(schema['$schema'])[:80]}")


def _assertion_cost(name: str, value: object) -> int:
    if name == "uniqueItems":
        return UNIQUE_ITEMS_COST
    return 0 if name in _ANNOTATIONS else sum(1 for _ in _values(value))


def _survey(document: Mapping[str, Any]) -> _Survey:
    survey = _Survey(document)
    survey.cost = survey.schema(document)
    return survey


def _resolve(document: Mapping[str, Any], reference: object) -> tuple[bool, object]:
    """Follow a JSON Pointer from the top of the document."""
    if not isinstance(reference, str) or not (reference == "#" or reference.startswith("#/")):
        return False, None
    target: Any = document
    for part in reference[2:].split("/") if len(reference) > 1 else ():
        name = unquote(part).replace("~1", "/").replace("~0", "~")
        if isinstance(target, dict) and name in target:
            target = target[name]
        elif isinstance(target, list) and name.isdecimal() and int(name[:9]) < len(target):
            target = target[int(name)]
        else:
            return False, None
    return isinstance(target, dict | bool), target


def _values(value: object) -> Iterator[object]:
    """A JSON value and all values inside it."""
    rest = [value]
    while rest:
        value = rest.pop()
        yield value
        if isinstance(value, dict):
            rest.extend(value.values())
        elif isinstance(value, list):
            rest.extend(value)


def _depth(document: object) -> int:
    """Nested arrays and objects, counted up to one more than the limit."""
    level: list[Any] = [document]
    for depth in range(MAX_DEPTH + 1):
        level = [
            item
            for value in level
            if isinstance(value, dict | list)
            for item in (value.values() if isinstance(value, dict) else value)
        ]
        if not level:
            return depth
    return MAX_DEPTH + 1
