"""What a client can be told besides its database and tenant. Every wait has a bound."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Self, TypedDict

from helixqueue.errors import Refused


class Settings(TypedDict, total=False):
    actor: str | None  # who submits, for the record; the login role unless said
    connections: int  # at most so many at a time: 10
    connect_seconds: float  # to reach a server, each of several: 10
    statement_seconds: float  # for one call: 30
    wait_seconds: float  # for a free connection: 10
    patience_seconds: float  # in all, over repeats while the database is away: 30
    pooled: bool  # the DSN leads through pgbouncer in transaction mode


@dataclass(frozen=True)
class Chosen:
    actor: str | None = None
    connections: int = 10
    connect_seconds: float = 10.0
    statement_seconds: float = 30.0
    wait_seconds: float = 10.0
    patience_seconds: float = 30.0
    pooled: bool = False

    @classmethod
    def of(cls, settings: Settings) -> Self:
        chosen = cls(**settings)
        for name in ("connections", "connect_seconds", "statement_seconds", "wait_seconds"):
            value = getattr(chosen, name)
            if not isinstance(value, int | float) or isinstance(value, bool) or not value > 0:
                raise Refused(f"{name}: expected a number above 0, got {value!r}")
        actor = chosen.actor
        if actor is not None and not (isinstance(actor, str) and 1 <= len(actor) <= 255):
            raise Refused(f"actor: expected a name of 1 to 255 characters, got {actor!r}")
        return chosen

    def connection(self, tenant: str) -> dict[str, Any]:
        """What `Database.connect` takes."""
        return {
            "tenant": tenant,
            "pooled": self.pooled,
            "timeout_seconds": self.connect_seconds,
            "statement_seconds": self.statement_seconds,
        }
