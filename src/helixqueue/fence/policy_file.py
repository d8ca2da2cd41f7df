"""Reads `idempotency.yml` and tells of every fault in it at once: line, place, expected, got."""

from __future__ import annotations

import re
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import yaml

from helixqueue.errors import Refused
from helixqueue.fence.policy import (
    BEFORE_THE_EFFECT,
    LOG_FIELDS,
    OnConflict,
    Policy,
    Route,
    Ttl,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

T = TypeVar("T")
_PATH_BYTES_MAX = 240  # it becomes the name of a fence
_TOKEN = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")


@dataclass(frozen=True, slots=True)
class Fault:
    line: int
    path: str
    expected: str
    got: str

    def __str__(self) -> str:
        return f"line {self.line}: {self.path}: expected {self.expected}, got {self.got}"


class InvalidPolicy(Refused):
    """The policy file says what makes no sense; `faults` has every place."""

    def __init__(self, source: str, faults: list[Fault]) -> None:
        super().__init__("\n".join([f"{source}: {len(faults)} faults", *map(str, faults)]))
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
    faults: list[Fault] = []
    policy = _policy(_Place(node, "", faults))
    if faults:
        raise InvalidPolicy(source, sorted(faults, key=lambda fault: fault.line))
    return policy


class _Place:
    """One node of the file, and where it stands."""

    def __init__(self, node: yaml.Node, path: str, faults: list[Fault]) -> None:
        self.node = node
        self.path = path
        self._faults = faults

    @property
    def value(self) -> Any:  # noqa: ANN401 - whatever YAML makes of it
        loader = yaml.SafeLoader("")
        try:
            return loader.construct_object(self.node, deep=True)
        except yaml.YAMLError:
            return self.node.tag  # a tag that nobody here makes an object of
        finally:
            loader.dispose()

    def fault(self, expected: str, got: str | None = None) -> None:
        shown = ascii(self.value)[:60] if got is None else got
        line = self.node.start_mark.line + 1
        self._faults.append(Fault(line, self.path or "(file)", expected, shown))

    def members(self, readers: Mapping[str, Callable[[_Place], Any]]) -> dict[str, Any]:
        """Each member by its reader; unknown names, doubled ones and bad values are faults."""
        if not isinstance(self.node, yaml.MappingNode) or not self.node.tag.endswith(":map"):
            self.fault("a mapping")
            return {}
        found: dict[str, Any] = {}
        for name_node, node in self.node.value:
            name = str(name_node.value)
            place = _Place(node, f"{self.path}.{name}".lstrip("."), self._faults)
            if name not in readers:
                near = get_close_matches(name, readers, 1)
                hint = f" (did you mean {near[0]}?)" if near else ""
                where = _Place(name_node, place.path, self._faults)
                where.fault(f"one of {', '.join(readers)}{hint}", f"the name {name!r}")
            elif name in found:
                _Place(name_node, place.path, self._faults).fault("each name once", "it again")
            else:
                found[name] = readers[name](place)
        return {name: value for name, value in found.items() if value is not None}

    def items(self) -> list[_Place] | None:
        if not isinstance(self.node, yaml.SequenceNode):
            self.fault("a list")
            return None
        return [
            _Place(node, f"{self.path}[{index}]", self._faults)
            for index, node in enumerate(self.node.value)
        ]


def _number(low: float, high: float, unit: str) -> Callable[[_Place], float | None]:
    def read(place: _Place) -> float | None:
        value = place.value
        if isinstance(value, int | float) and not isinstance(value, bool) and low <= value <= high:
            return value
        place.fault(f"a number of {unit} from {low:g} to {high:g}")
        return None

    return read


def _whole(low: int, high: int, unit: str) -> Callable[[_Place], int | None]:
    def read(place: _Place) -> int | None:
        value = place.value
        if type(value) is int and low <= value <= high:
            return value
        place.fault(f"a whole number of {unit} from {low} to {high}")
        return None

    return read


def _choice(*words: object) -> Callable[[_Place], Any]:
    def read(place: _Place) -> Any:  # noqa: ANN401 - one of the words
        value = place.value
        if any(type(value) is type(word) and value == word for word in words):
            return value
        place.fault(f"one of {', '.join(map(str, words))}")
        return None

    return read


def _flag(place: _Place) -> bool | None:
    flag: bool | None = _choice(True, False)(place)  # noqa: FBT003 - the words themselves
    return flag


def _matching(pattern: str, expected: str) -> Callable[[_Place], str | None]:
    def read(place: _Place) -> str | None:
        value = place.value
        if isinstance(value, str) and re.fullmatch(pattern, value) is not None:
            return value
        place.fault(expected)
        return None

    return read


def _list(one: Callable[[_Place], T | None]) -> Callable[[_Place], tuple[T, ...] | None]:
    def read(place: _Place) -> tuple[T, ...] | None:
        places = place.items()
        if places is None:
            return None
        return tuple(value for each in places if (value := one(each)) is not None)

    return read


_pointer = _matching(r"(/[^/\s]*)+", "a JSON Pointer such as /card/number")
_header = _matching(_TOKEN.pattern, "the name of a header")


def _path(place: _Place) -> str | None:
    path = _matching(r"\*|/\S*", "a path such as /orders/{id}/refunds, or *")(place)
    if path is not None and len(path.encode()) > _PATH_BYTES_MAX:
        place.fault(f"a path of at most {_PATH_BYTES_MAX} bytes", f"{len(path.encode())}")
    return path


def _always(place: _Place) -> bool | None:
    if place.value is not True:
        place.fault("true: another body under the same key is never applied nor answered")
    return True


def _required_headers(place: _Place) -> str | None:
    names = _list(_header)(place)
    if names is not None and len(names) != 1:
        place.fault("one header, which carries the key")
    return names[0] if names else None


def _diff_mode(place: _Place) -> str | None:
    if type(place.value) is bool:
        return "paths" if place.value else "none"
    mode: str | None = _choice("none", "paths", "values")(place)
    return mode


def _ttl(place: _Place) -> Ttl:
    # The lower bounds are the retry horizons: a shorter memory would run late retries again.
    readers = {
        "webhook_days": _number(7, 3650, "days"),
        "api_hours": _number(24, 87_600, "hours"),
        "batch_days": _number(1, 3650, "days"),
        "tombstone_days": _number(1, 36_500, "days"),
        "lease_seconds": _number(1, 86_400, "seconds"),
        "quiet_seconds": _number(0, 604_800, "seconds"),
        "limit_seconds": _number(1, 604_800, "seconds"),
    }
    return Ttl(**place.members(readers))


def _on_conflict(place: _Place) -> OnConflict:
    readers: dict[str, Callable[[_Place], Any]] = {
        "status": _choice(409, 422),
        "include_diff": _diff_mode,
        "mask": _list(_pointer),
    }
    return OnConflict(**place.members(readers))


def _route(place: _Place) -> Route | None:
    readers: dict[str, Callable[[_Place], Any]] = {
        "path": _path,
        "methods": _list(_choice("POST", "PATCH", "PUT", "DELETE")),
        "required": _flag,
        "kind": _choice("api", "webhook", "batch"),
        "strict": _flag,
        "min_key_chars": _whole(1, 255, "characters"),
        "wait_ms": _whole(0, 60_000, "milliseconds"),
        "ignore": _list(_pointer),
        "only": _list(_pointer),
        "keep_headers": _list(_header),
        "max_body_bytes": _whole(0, 64 * 1024 * 1024, "bytes"),
        "max_answer_bytes": _whole(0, 15 * 1024 * 1024, "bytes"),
        "replayable": _flag,
        "max_attempts": _whole(1, 100, "tries"),
        "before_the_effect": _list(_whole(400, 499, "a status")),
    }
    found = place.members(readers)
    if found.get("ignore") and found.get("only"):
        place.fault("ignore or only", "both")
    found["methods"] = frozenset(found.get("methods", ("POST", "PATCH")))
    found["before_the_effect"] = frozenset(found.get("before_the_effect", BEFORE_THE_EFFECT))
    return Route(**found)


def _policy(place: _Place) -> Policy:
    stores: dict[str, Callable[[_Place], Any]] = {"fence": _choice("postgresql")}
    logging: dict[str, Callable[[_Place], Any]] = {"include_fields": _list(_choice(*LOG_FIELDS))}
    found = place.members(
        {
            "version": _choice(1),
            "require_headers": _required_headers,
            "reject_on_body_mismatch": _always,
            "stores": lambda here: here.members(stores),
            "ttl": _ttl,
            "logging": lambda here: here.members(logging).get("include_fields"),
            "on_conflict": _on_conflict,
            "keep_requests": _flag,
            "documentation": _matching(r"https?://\S+|/\S*", "a URL"),
            "status_path": _matching(r"(/[^/\s{}]+)+", "a path such as /idempotency"),
            "routes": _list(_route),
        }
    )
    names = {"require_headers": "header", "logging": "log_fields"}
    known = {names.get(name, name): value for name, value in found.items()}
    for unused in ("version", "reject_on_body_mismatch", "stores"):
        known.pop(unused, None)
    return Policy(**known)
