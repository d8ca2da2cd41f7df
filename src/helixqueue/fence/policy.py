"""What `idempotency.yml` says: which routes are fenced, how long, and what a conflict looks like.

Everything has a default, so an empty file is a policy. `policy_file.py` reads it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from functools import cached_property
from typing import Final, Literal, get_args

from helixqueue.engine.fences import Times

DAY: Final = 86_400.0
Kind = Literal["api", "webhook", "batch"]
DiffMode = Literal["none", "paths", "values"]
LOG_FIELDS: Final = (
    "key", "decision", "effect_id", "source_type", "source_id", "tenant", "route", "receipt",
    "attempt", "status", "seconds", "diff_ops",
)  # fmt: skip
# Answers that routers, authentication and limits give before a handler runs: nothing happened.
BEFORE_THE_EFFECT: Final = frozenset({401, 403, 405, 413, 415, 429})


@dataclass(frozen=True, slots=True)
class Ttl:
    """How long answers can be repeated, by what kind of caller; and the clocks around that."""

    webhook_days: float = 14
    api_hours: float = 24
    batch_days: float = 8
    tombstone_days: float = 30
    lease_seconds: float = 30
    quiet_seconds: float = 90
    limit_seconds: float = 3600  # a handler that hangs longer is in doubt

    def times(self, kind: Kind) -> Times:
        answer = {
            "webhook": self.webhook_days * DAY,
            "api": self.api_hours * 3600,
            "batch": self.batch_days * DAY,
        }[kind]
        # The key outlives the answer: a retry at the end of the horizon must still meet it.
        tombstone = max(self.tombstone_days * DAY, 2 * answer)
        return Times(self.lease_seconds, self.quiet_seconds, answer, tombstone, self.limit_seconds)


@dataclass(frozen=True)
class Route:
    """One kind of request that is fenced."""

    path: str = "*"  # a template such as /orders/{id}/refunds, or * for any
    methods: frozenset[str] = frozenset({"POST", "PATCH"})
    required: bool = True
    kind: Kind = "api"
    strict: bool = False  # the header must be a structured field: a quoted string
    min_key_chars: int = 16
    wait_ms: int = 2_000
    ignore: tuple[str, ...] = ()  # JSON Pointers that may differ between two tries
    only: tuple[str, ...] = ()  # or: what alone must be the same
    keep_headers: tuple[str, ...] = ()  # besides those that are always repeated
    max_body_bytes: int = 1024 * 1024
    max_answer_bytes: int = 1024 * 1024
    replayable: bool = False
    max_attempts: int = 5
    before_the_effect: frozenset[int] = BEFORE_THE_EFFECT

    @property
    def name(self) -> str:
        """The fence's name: what a key is unique within.

        Not the methods: to fence one more must not make all keys new.
        """
        return f"http {self.path}"

    def fits(self, method: str, path: str) -> bool:
        return method in self.methods and self._pattern.fullmatch(path) is not None

    @cached_property
    def _pattern(self) -> re.Pattern[str]:
        if self.path == "*":
            return re.compile(".*", re.DOTALL)
        parts = re.split(r"(\{[^{}/]+\})", self.path)
        return re.compile(
            "".join("[^/]+" if part.startswith("{") else re.escape(part) for part in parts)
        )


@dataclass(frozen=True, slots=True)
class OnConflict:
    status: int = 409
    include_diff: DiffMode = "paths"
    mask: tuple[str, ...] = ()  # JSON Pointers whose values are never shown


@dataclass(frozen=True)
class Policy:
    header: str = "Idempotency-Key"
    routes: tuple[Route, ...] = (Route(),)
    ttl: Ttl = field(default_factory=Ttl)
    on_conflict: OnConflict = field(default_factory=OnConflict)
    log_fields: tuple[str, ...] = ("key", "decision", "effect_id", "source_type", "source_id")
    keep_requests: bool = True  # the first body, for the difference
    documentation: str | None = None  # where the rules are published, for clients
    # Where clients ask how a request stands: GET {status_path}/{fence}. None: nowhere.
    status_path: str | None = None

    @cached_property
    def clocks(self) -> dict[Kind, Times]:
        """The clocks of each kind of caller; every request needs them."""
        return {kind: self.ttl.times(kind) for kind in get_args(Kind)}

    def route(self, method: str, path: str) -> Route | None:
        """The first that fits; None: not fenced."""
        return next((route for route in self.routes if route.fits(method, path)), None)
