"""The policy of the HTTP middleware: fenced routes, durations, and the response to a conflict.

Every field has a default. `policy_file.py` reads a policy from idempotency.yml; the same checks
apply to a policy that is made in Python, so that no rule can silently fence nothing.
"""

from __future__ import annotations

import re
from dataclasses import field
from functools import cached_property
from typing import Annotated, Any, Final, Literal, Self, get_args

from pydantic import AfterValidator, BeforeValidator, ConfigDict, Field, model_validator
from pydantic.dataclasses import dataclass
from pydantic_core import CoreSchema, PydanticCustomError, core_schema

from helixqueue.engine.fences import Times
from helixqueue.fence.decision_log import DEFAULT_FIELDS

HTTP_PREFIX: Final = "http "  # of the names of fences that guard HTTP routes
UNLISTED: Final = f"{HTTP_PREFIX}(unlisted)"  # in counts, of requests that no route fences
DAY: Final = 86_400.0
MIB: Final = 1024 * 1024
# Statuses that routers, authentication and limits answer before a handler runs: no effect.
BEFORE_THE_EFFECT: Final = frozenset({401, 403, 405, 413, 415, 429})
_PATH_BYTES_MAX = 240  # the path becomes the name of a fence
_PARAMETER = re.compile(r"\{\w+\}")
_PATH = re.compile(r"\*|(?:/(?:[^/\s{}*?#]|\{\w+\})*)+")
_CONFIG = ConfigDict(extra="forbid")


class Between:
    """A number within bounds; every error names them."""

    def __init__(self, low: float, high: float, unit: str) -> None:
        self._low, self._high, self._unit = low, high, unit

    def __get_pydantic_core_schema__(self, source: type, _: object) -> CoreSchema:
        bounds: Any = {"ge": self._low, "le": self._high}
        whole = source is int
        number = core_schema.int_schema(**bounds) if whole else core_schema.float_schema(**bounds)
        text = f"a {'whole ' if whole else ''}number of {self._unit} from {self._low:g} to "
        return _with_error(number, f"{text}{self._high:g}")


class Matching:
    """A text that fits a pattern; every error says what was expected."""

    def __init__(self, pattern: str, expected: str) -> None:
        self._pattern, self._text = rf"^(?:{pattern})$", expected

    def __get_pydantic_core_schema__(self, source: type, _: object) -> CoreSchema:
        return _with_error(core_schema.str_schema(pattern=self._pattern), self._text)


def _with_error(schema: CoreSchema, expected: str) -> CoreSchema:
    return core_schema.custom_error_schema(schema, "expected", custom_error_message=expected)


Pointer = Annotated[str, Matching(r"(/[^/\s]*)+", "a JSON Pointer such as /card/number")]
HeaderName = Annotated[str, Matching(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+", "the name of a header")]
Method = Annotated[str, Matching("POST|PATCH|PUT|DELETE", "POST, PATCH, PUT or DELETE")]
Kind = Literal["api", "webhook", "batch"]
DiffMode = Literal["none", "paths", "values"]
# Where the effect of a request is. request: anywhere; it may start with the request. marked: the
# endpoint calls `helix_effect` before it starts. session: in the session of the request, only.
Effect = Literal["request", "marked", "session"]
Unlisted = Literal["refuse", "pass"]
LogField = Annotated[
    Literal[
        "key", "decision", "effect_id", "source_type", "source_id", "tenant", "route", "receipt",
        "attempt", "status", "seconds", "diff_ops",
    ],
    # Names of other systems for the same fields.
    BeforeValidator(
        lambda name: {"idempotency_key": "key", "tenant_id": "tenant", "endpoint": "route"}.get(
            name, name
        )
        if isinstance(name, str)
        else name
    ),
]  # fmt: skip


def _check_path(path: str) -> str:
    if len(path.encode()) > _PATH_BYTES_MAX:
        raise PydanticCustomError("expected", f"a path of at most {_PATH_BYTES_MAX} bytes")
    if _PATH.fullmatch(path) is None:
        # A `*` or a `{` inside a path would be compared literally, and fence nothing.
        raise PydanticCustomError(
            "expected",
            "a path such as /orders/{id}, where {id} is one segment, or * for every path",
        )
    return path


@dataclass(frozen=True, config=_CONFIG)
class Ttl:
    """How long answers are kept, by kind of caller, and the other durations of a fence.

    The lower bounds are the retry horizons: a shorter retention would execute late retries again.
    """

    webhook_days: Annotated[float, Between(7, 3650, "days")] = 14
    api_hours: Annotated[float, Between(24, 87_600, "hours")] = 24
    batch_days: Annotated[float, Between(1, 3650, "days")] = 8
    tombstone_days: Annotated[float, Between(1, 36_500, "days")] = 30
    lease_seconds: Annotated[float, Between(0.05, 86_400, "seconds")] = 30
    quiet_seconds: Annotated[float, Between(0, 604_800, "seconds")] = 90
    # A handler that runs longer is in doubt.
    limit_seconds: Annotated[float, Between(0.05, 604_800, "seconds")] = 3600
    # Of `effect: session`: how long the transaction may take before the server ends it.
    transaction_seconds: Annotated[float, Between(1, 86_400, "seconds")] = 60

    def times(self, kind: Kind) -> Times:
        answer = {
            "webhook": self.webhook_days * DAY,
            "api": self.api_hours * 3600,
            "batch": self.batch_days * DAY,
        }[kind]
        # The key outlives the answer, for retries at the end of the horizon.
        tombstone = max(self.tombstone_days * DAY, 2 * answer)
        return Times(self.lease_seconds, self.quiet_seconds, answer, tombstone, self.limit_seconds)


@dataclass(frozen=True, config=_CONFIG)
class Route:
    """One fenced route."""

    # A template such as /orders/{id}/refunds, or * for every path.
    path: Annotated[str, AfterValidator(_check_path)] = "*"
    methods: Annotated[frozenset[Method], Field(min_length=1)] = frozenset({"POST", "PATCH"})
    required: bool = True
    kind: Kind = "api"
    effect: Effect = "request"
    strict: bool = False  # the header must be a structured field: a quoted string
    min_key_chars: Annotated[int, Between(1, 255, "characters")] = 16
    wait_ms: Annotated[int, Between(0, 60_000, "milliseconds")] = 2_000
    ignore: tuple[Pointer, ...] = ()  # members that may differ between two attempts
    only: tuple[Pointer, ...] = ()  # or: the only members that must be equal
    keep_headers: tuple[HeaderName, ...] = ()  # repeated in addition to the standard ones
    max_body_bytes: Annotated[int, Between(0, 64 * MIB, "bytes")] = MIB
    max_answer_bytes: Annotated[int, Between(0, 15 * MIB, "bytes")] = MIB
    replayable: bool = False
    max_attempts: Annotated[int, Between(1, 100, "attempts")] = 5
    before_the_effect: frozenset[Annotated[int, Field(ge=400, le=499)]] = BEFORE_THE_EFFECT

    @model_validator(mode="after")
    def _check_selection(self) -> Self:
        if self.ignore and self.only:
            raise PydanticCustomError("expected", "ignore or only, not both")
        return self

    @property
    def name(self) -> str:
        """The name of the fence, within which a key is unique.

        Without the methods: fencing one more method must not make existing keys new.
        """
        return f"{HTTP_PREFIX}{self.path}"

    def fits(self, method: str, segments: list[str]) -> bool:
        """Whether the route fences a request; `segments` are the parts of its path."""
        return method in self.methods and self._matches(segments)

    def covers(self, other: Route) -> bool:
        """Whether every path of `other` is a path of this route."""
        return self._matches(_PARAMETER.sub("\ue000", other.path).split("/"))

    def can_match(self, path: str) -> bool:
        """Whether a path of this route can be one of the application's `path`, with parameters."""
        if self._template is None:
            return True
        theirs = path.split("/")
        for index, segment in enumerate(theirs):
            if ":path}" in segment:  # the rest, of any length
                return True
            if index >= len(self._template):
                return False
            if "{" not in segment and not _segment_matches(self._template[index], segment):
                return False
        return len(theirs) == len(self._template)

    def _matches(self, segments: list[str]) -> bool:
        # Not a regular expression: with several parameters in a segment its time would grow with a
        # power of the length of the path, which any client chooses.
        return self._template is None or (
            len(segments) == len(self._template)
            and all(map(_segment_matches, self._template, segments))
        )

    @cached_property
    def _template(self) -> list[list[str]] | None:
        """For each segment of the path, the texts between its parameters. None: every path."""
        if self.path == "*":
            return None
        return [_PARAMETER.split(segment) for segment in self.path.split("/")]

    @cached_property
    def ignored(self) -> dict[str, Any]:
        """`ignore` as a tree of names; a name that is ignored has no tree below it."""
        tree: dict[str, Any] = {}
        for pointer in self.ignore:
            *parents, name = pointer_names(pointer)
            below: dict[str, Any] | None = tree
            for parent in parents:
                # An ignored name hides what is below it.
                below = None if below is None else below.setdefault(parent, {})
            if below is not None:
                below[name] = None
        return tree


def _segment_matches(literals: list[str], text: str) -> bool:
    """Whether the texts follow each other in `text`, with at least one character in between."""
    if len(literals) == 1:
        return text == literals[0]
    first, *middle, last = literals
    if not (text.startswith(first) and text.endswith(last)):
        return False
    place, end = len(first), len(text) - len(last)
    for literal in middle:  # the leftmost place leaves the most for the others
        place = text.find(literal, place + 1, end)
        if place < 0:
            return False
        place += len(literal)
    return place < end


def pointer_names(pointer: str) -> list[str]:
    """The names in a JSON Pointer."""
    return [name.replace("~1", "/").replace("~0", "~") for name in pointer.split("/")[1:]]


@dataclass(frozen=True, config=_CONFIG)
class OnConflict:
    status: Literal[409, 422] = 409
    # true and false are the names of other systems for paths and none.
    include_diff: Annotated[
        DiffMode,
        BeforeValidator(
            lambda mode: ("paths" if mode else "none") if isinstance(mode, bool) else mode
        ),
    ] = "paths"
    mask: tuple[Pointer, ...] = ()  # members whose values are never shown

    def hides(self, path: str) -> bool:
        """Whether a member of the body at `path` is, contains or is inside a masked one."""
        place = tuple(path.split("/"))
        return place in self._around_masked or any(
            place[:length] in self._masked for length in range(1, len(place) + 1)
        )

    @cached_property
    def _masked(self) -> frozenset[tuple[str, ...]]:
        return frozenset(tuple(pointer.split("/")) for pointer in self.mask)

    @cached_property
    def _around_masked(self) -> frozenset[tuple[str, ...]]:
        """The masked members and all that contain one."""
        return frozenset(
            place[:length] for place in self._masked for length in range(1, len(place) + 1)
        )


def unreachable(routes: tuple[Route, ...]) -> dict[int, str]:
    """The routes that earlier ones hide, by index: the first match decides."""
    found = {}
    for index, route in enumerate(routes):
        for earlier in routes[:index]:
            hidden = route.methods & earlier.methods
            if hidden and earlier.covers(route):
                methods = ", ".join(sorted(hidden))
                found[index] = f"{methods} {route.path}, which {earlier.path} above matches first"
                break
    return found


@dataclass(frozen=True, config=_CONFIG)
class Policy:
    header: HeaderName = "Idempotency-Key"
    routes: Annotated[tuple[Route, ...], Field(min_length=1)] = (Route(),)
    ttl: Ttl = field(default_factory=Ttl)
    on_conflict: OnConflict = field(default_factory=OnConflict)
    log_fields: tuple[LogField, ...] = DEFAULT_FIELDS
    keep_requests: bool = True  # the first body, for the diff of a conflict
    documentation: str | None = None  # where the rules are published, for clients
    # Where clients read the state of a request: GET {status_path}/{fence}. None: nowhere.
    status_path: str | None = None
    # A request with a key to a route that is not listed, where the key would protect nothing.
    unlisted: Unlisted = "refuse"

    @model_validator(mode="after")
    def _check_routes(self) -> Self:
        for hidden in unreachable(self.routes).values():
            raise ValueError(f"expected routes that can match, got {hidden}")
        return self

    @cached_property
    def clocks(self) -> dict[Kind, Times]:
        """The durations of each kind of caller; every request needs them."""
        return {kind: self.ttl.times(kind) for kind in get_args(Kind)}

    def route(self, method: str, path: str) -> Route | None:
        """The first route that matches; None: not fenced."""
        segments = path.split("/")
        return next((route for route in self.routes if route.fits(method, segments)), None)
