"""Reads idempotency.yml. Reports all faults at once: line, place, expected, got."""

from __future__ import annotations

import logging
from dataclasses import dataclass, fields
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal

import yaml
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError
from pydantic_core import PydanticCustomError, to_json

from helixqueue.errors import Refused
from helixqueue.fence.decision_log import DEFAULT_FIELDS
from helixqueue.fence.policy import (
    HeaderName,
    LogField,
    Matching,
    OnConflict,
    Policy,
    Route,
    Ttl,
    Unlisted,
    unreachable,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pydantic_core import ErrorDetails

log = logging.getLogger("helixqueue.fence")
_MAX_NODES: Final = 10_000  # aliases can multiply a small file
_Loc = tuple[int | str, ...]
_CONFIG = ConfigDict(extra="forbid")
_Store = Literal["postgresql", "postgres", "redis", "valkey"]


def _must_be_true(value: bool) -> bool:  # noqa: FBT001 - pydantic's
    if not value:
        raise PydanticCustomError(
            "expected", "true: another body under the same key is never applied nor answered"
        )
    return value


class _Stores(BaseModel):
    model_config = _CONFIG
    fence: _Store = "postgresql"
    seal: _Store = "postgresql"


class _Logging(BaseModel):
    model_config = _CONFIG
    include_fields: tuple[LogField, ...] = DEFAULT_FIELDS


class _PolicyFile(BaseModel):
    model_config = _CONFIG
    version: Literal[1] = 1
    require_headers: Annotated[tuple[HeaderName, ...], Field(min_length=1, max_length=1)] = (
        "Idempotency-Key",
    )
    reject_on_body_mismatch: Annotated[bool, AfterValidator(_must_be_true)] = True
    stores: _Stores = _Stores()
    ttl: Ttl = Ttl()
    logging: _Logging = _Logging()
    on_conflict: OnConflict = OnConflict()
    keep_requests: bool = True
    documentation: Annotated[str, Matching(r"https?://\S+|/\S*", "a URL")] | None = None
    status_path: (
        Annotated[str, Matching(r"(/[^/\s{}]+)+", "a path such as /idempotency")] | None
    ) = None
    unlisted: Unlisted = "refuse"
    routes: Annotated[tuple[Route, ...], Field(min_length=1)] = (Route(),)

    def policy(self) -> Policy:
        return Policy(
            header=self.require_headers[0],
            routes=self.routes,
            ttl=self.ttl,
            on_conflict=self.on_conflict,
            log_fields=self.logging.include_fields,
            keep_requests=self.keep_requests,
            documentation=self.documentation,
            status_path=self.status_path,
            unlisted=self.unlisted,
        )


# The names that each mapping may have; the key is the member of the file that it is.
_NAMES: Final[dict[int | str | None, list[str]]] = {
    None: list(_PolicyFile.model_fields),
    "stores": list(_Stores.model_fields),
    "logging": list(_Logging.model_fields),
    **{
        member: [field.name for field in fields(kind)]
        for member, kind in (("ttl", Ttl), ("on_conflict", OnConflict), ("routes", Route))
    },
}
# What pydantic's error types expected, where its own words name Python types.
_EXPECTED: Final = {
    "bool_type": "true or false",
    "tuple_type": "a list",
    "frozen_set_type": "a list",
    "dataclass_type": "a mapping",
    "model_type": "a mapping",
    "string_type": "a text",
    "too_short": "at least one",
    "too_long": "one header, which carries the key",
}


@dataclass(frozen=True, slots=True)
class Fault:
    line: int
    path: str
    expected: str
    got: str

    def __str__(self) -> str:
        return f"line {self.line}: {self.path}: expected {self.expected}, got {self.got}"


class InvalidPolicy(Refused):
    """The policy file is invalid; `faults` has every place."""

    def __init__(self, source: str, faults: list[Fault]) -> None:
        faults = sorted(faults, key=lambda fault: fault.line)
        count = "1 fault" if len(faults) == 1 else f"{len(faults)} faults"
        super().__init__("\n".join([f"{source}: {count}", *map(str, faults)]))
        self.faults = faults


def read_policy(source: str | Path) -> Policy:
    """The policy in a file."""
    path = Path(source)
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise Refused(f"expected a policy file at {path}, got {error}") from error
    return parse_policy(text, str(path))


def parse_policy(text: str, source: str = "idempotency.yml") -> Policy:
    """The policy in a text; raises `InvalidPolicy` with all faults."""
    try:
        node = yaml.compose(text, Loader=yaml.SafeLoader)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = 1 if mark is None else mark.line + 1
        got = getattr(error, "problem", None) or "something else"
        raise InvalidPolicy(source, [Fault(line, "(file)", "YAML", str(got))]) from error
    if node is None:
        return Policy()
    document = _Document(node)
    try:
        # JSON, because its strict mode has exact scalars and still takes lists for tuples and sets.
        file = _PolicyFile.model_validate_json(to_json(document.data, fallback=str), strict=True)
    except ValidationError as error:
        document.add_errors(error.errors())
        raise InvalidPolicy(source, document.faults) from None
    for index, hidden in unreachable(file.routes).items():
        document.add(("routes", index), "a route that can match", hidden)
    if document.faults:
        raise InvalidPolicy(source, document.faults)
    _explain_stores(file, document, source)
    return file.policy()


def _explain_stores(file: _PolicyFile, document: _Document, source: str) -> None:
    for name, store in file.stores:
        if store in {"redis", "valkey"}:
            log.warning(
                "%s: line %d: stores.%s: %s is read as postgresql: only PostgreSQL grants and "
                "seals fences. Pass hint=SealedCache(url, secret) to the middleware to repeat "
                "sealed answers from %s",
                *(source, document.line(("stores", name)), name, store, store.capitalize()),
            )


class _Document:
    """The data of a YAML tree, with the line of every value and every key."""

    def __init__(self, root: yaml.Node) -> None:
        self.faults: list[Fault] = []
        self._lines: dict[_Loc, int] = {}
        self._key_lines: dict[_Loc, int] = {}
        self._loader = yaml.SafeLoader("")
        self._open: list[yaml.Node] = []
        self.data = self._read(root, ())

    def line(self, loc: _Loc) -> int:
        return next(self._lines[part] for part in _prefixes(loc) if part in self._lines)

    def add(self, loc: _Loc, expected: str, got: str) -> None:
        # Validators add parts of their own to a place; the longest known part is the place.
        known = next(part for part in _prefixes(loc) if part in self._lines)
        self.faults.append(Fault(self._lines[known], _shown(known), expected, got))

    def add_errors(self, errors: list[ErrorDetails]) -> None:
        places = {detail["loc"] for detail in errors}
        for detail in errors:
            loc = detail["loc"]
            # A list whose items are invalid also counts as too short.
            inside = any(len(place) > len(loc) and place[: len(loc)] == loc for place in places)
            if detail["type"] in {"extra_forbidden", "unexpected_keyword_argument"}:
                self._add_unknown_name(loc)
            elif detail["type"] != "too_short" or not inside:
                expected = detail["msg"].removeprefix("Input should be ")
                self.add(loc, _EXPECTED.get(detail["type"], expected), ascii(detail["input"])[:60])

    def _add_unknown_name(self, loc: _Loc) -> None:
        names = _NAMES[loc[0] if len(loc) > 1 else None]
        near = get_close_matches(str(loc[-1]), names, 1)
        hint = f" (did you mean {near[0]}?)" if near else ""
        expected = f"one of {', '.join(names)}{hint}"
        got = f"the name {loc[-1]!r}"
        self.faults.append(Fault(self._key_lines[loc], _shown(loc), expected, got))

    def _read(self, node: yaml.Node, loc: _Loc) -> Any:  # noqa: ANN401 - whatever YAML makes of it
        self._lines[loc] = node.start_mark.line + 1
        if node in self._open or len(self._lines) > _MAX_NODES:
            self.add(loc, f"at most {_MAX_NODES} values and none inside itself", "more")
            return None
        self._open.append(node)
        try:
            if isinstance(node, yaml.MappingNode) and node.tag.endswith(":map"):
                return self._read_mapping(node, loc)
            if isinstance(node, yaml.SequenceNode) and node.tag.endswith(":seq"):
                return [self._read(item, (*loc, index)) for index, item in enumerate(node.value)]
            return self._loader.construct_object(node)
        except yaml.YAMLError:
            self.add(loc, "a plain value", node.tag)
            return None
        finally:
            self._open.pop()

    def _read_mapping(self, node: yaml.MappingNode, loc: _Loc) -> dict[str, Any]:
        data: dict[str, Any] = {}
        for key, value in node.value:
            name = str(key.value)
            place = (*loc, name)
            if name in data:
                line = key.start_mark.line + 1
                self.faults.append(Fault(line, _shown(place), "each name once", "it again"))
                continue
            self._key_lines[place] = key.start_mark.line + 1
            data[name] = self._read(value, place)
        return data


def _prefixes(loc: _Loc) -> Iterator[_Loc]:
    return (loc[:length] for length in range(len(loc), -1, -1))


def _shown(loc: _Loc) -> str:
    text = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in loc)
    return text.lstrip(".") or "(file)"
