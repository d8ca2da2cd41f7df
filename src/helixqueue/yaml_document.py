"""YAML files with the line of every value. Reports all faults at once: line, place, got."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

import yaml
from pydantic import BaseModel, ValidationError
from pydantic_core import to_json

from helixqueue.errors import Refused

if TYPE_CHECKING:
    from pydantic_core import ErrorDetails

_MAX_NODES: Final = 10_000  # aliases can multiply a small file
Loc = tuple[int | str, ...]
Names = Callable[[Loc], list[str]]  # the names that the mapping around a place may have
File = TypeVar("File", bound=BaseModel)
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


class InvalidYaml(Refused):
    """The file is invalid; `faults` has every place."""

    def __init__(self, source: str, faults: list[Fault]) -> None:
        faults = sorted(faults, key=lambda fault: fault.line)
        count = "1 fault" if len(faults) == 1 else f"{len(faults)} faults"
        super().__init__("\n".join([f"{source}: {count}", *map(str, faults)]))
        self.faults = faults


def read_text(source: str | Path, what: str) -> str:
    path = Path(source)
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise Refused(f"expected {what} at {path}, got {error}") from error


def read_document(
    text: str, source: str, names: Names, invalid: type[InvalidYaml] = InvalidYaml
) -> YamlDocument | None:
    """The document in a text; None if it is empty."""
    try:
        node = yaml.compose(text, Loader=yaml.SafeLoader)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = 1 if mark is None else mark.line + 1
        got = getattr(error, "problem", None) or "something else"
        raise invalid(source, [Fault(line, "(file)", "YAML", str(got))]) from error
    return None if node is None else YamlDocument(node, source, names, invalid)


class YamlDocument:
    """The data of a YAML tree, with the line of every value and every key."""

    def __init__(
        self, root: yaml.Node, source: str, names: Names, invalid: type[InvalidYaml]
    ) -> None:
        self._source, self._names, self._invalid = source, names, invalid
        self.faults: list[Fault] = []
        self._lines: dict[Loc, int] = {}
        self._key_lines: dict[Loc, int] = {}
        self._loader = yaml.SafeLoader("")
        self._open: list[yaml.Node] = []
        self.data = self._read(root, ())

    def model(self, kind: type[File]) -> File:
        """The data as a model; raises with all faults."""
        try:
            # JSON: its strict mode has exact scalars and still takes lists for tuples and sets.
            file = kind.model_validate_json(to_json(self.data, fallback=str), strict=True)
        except ValidationError as error:
            self.add_errors(error.errors())
            raise self._invalid(self._source, self.faults) from None
        self.demand_no_fault()
        return file

    def demand_no_fault(self) -> None:
        if self.faults:
            raise self._invalid(self._source, self.faults)

    def line(self, loc: Loc) -> int:
        return next(self._lines[part] for part in _prefixes(loc) if part in self._lines)

    def add(self, loc: Loc, expected: str, got: str) -> None:
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
                self.add(loc, *expected_and_got(detail))

    def _add_unknown_name(self, loc: Loc) -> None:
        names = self._names(loc)
        lowered = {name.lower(): name for name in names}
        near = get_close_matches(str(loc[-1]).lower(), lowered, 1)
        suggestion = f" (did you mean {lowered[near[0]]}?)" if near else ""
        expected = f"one of {', '.join(names)}{suggestion}"
        got = f"the name {loc[-1]!r}"
        self.faults.append(Fault(self._key_lines[loc], _shown(loc), expected, got))

    def _read(self, node: yaml.Node, loc: Loc) -> Any:  # noqa: ANN401 - whatever YAML makes of it
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
            return _encodable(self._loader.construct_object(node))
        except UnicodeEncodeError:
            self.add(loc, "a text of Unicode characters", "half of a surrogate pair")
            return None
        except yaml.YAMLError:
            self.add(loc, "a plain value", node.tag)
            return None
        finally:
            self._open.pop()

    def _read_mapping(self, node: yaml.MappingNode, loc: Loc) -> dict[str, Any]:
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


def expected_and_got(detail: ErrorDetails) -> tuple[str, str]:
    """The words of a fault that pydantic found. The value of an unknown name may be a secret."""
    if detail["type"] == "missing":
        return f"a value for {detail['loc'][-1]}", "none"
    if detail["type"] == "extra_forbidden":
        return "no member of this name", "one"
    expected = detail["msg"].removeprefix("Input should be ")
    return _EXPECTED.get(detail["type"], expected), ascii(detail["input"])[:60]


def _encodable(value: Any) -> Any:  # noqa: ANN401 - whatever YAML makes of it
    str(value).encode()  # fails for half of a surrogate pair, which YAML can write as an escape
    return value


def _prefixes(loc: Loc) -> Iterator[Loc]:
    return (loc[:length] for length in range(len(loc), -1, -1))


def _shown(loc: Loc) -> str:
    text = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in loc)
    return text.lstrip(".") or "(file)"
