"""What a client can be told besides its database and tenant. Every wait has a bound."""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields
from typing import Any, Self, TypedDict

from helixqueue.errors import Refused

MOST_SECONDS = 86_400
MOST_CONNECTIONS = 10_000
# PostgreSQL counts in milliseconds, and 0 of them are no bound at all.
_LEAST_SECONDS = {
    "connect_seconds": 0.001,
    "statement_seconds": 0.001,
    "wait_seconds": 0.001,
    "retry_seconds": 0.0,
}


class ClientSettings(TypedDict, total=False):
    actor: str | None  # who submits, for the record; the login role unless said
    connections: int  # at most so many at a time: 10
    connect_seconds: float  # to reach a server, each of several: 10
    statement_seconds: float  # for one call: 30
    wait_seconds: float  # for a free connection: 10
    retry_seconds: float  # in all, over repeats while the database is away: 30
    pooled: bool  # the DSN leads through pgbouncer in transaction mode


@dataclass(frozen=True)
class ResolvedSettings:
    actor: str | None = None
    connections: int = 10
    connect_seconds: float = 10.0
    statement_seconds: float = 30.0
    wait_seconds: float = 10.0
    retry_seconds: float = 30.0
    pooled: bool = False

    @classmethod
    def of(cls, settings: ClientSettings) -> Self:
        known = [field.name for field in fields(cls)]
        unknown = next((name for name in settings if name not in known), None)
        if unknown is not None:
            raise TypeError(f"unknown setting {unknown!r}; known are {', '.join(known)}")
        chosen = cls(**settings)
        for name, least in _LEAST_SECONDS.items():
            _demand_number(name, getattr(chosen, name), least, MOST_SECONDS)
        _demand_connections(chosen.connections)
        actor = chosen.actor
        size = len(actor.encode("utf-8", "surrogatepass")) if isinstance(actor, str) else 0
        if actor is not None and not 1 <= size <= 255:
            raise Refused(f"actor: expected a name of 1 to 255 bytes, got {actor!r}")
        return chosen

    def connection(self, tenant: str) -> dict[str, Any]:
        """What `Database.connect` takes."""
        return {
            "tenant": tenant,
            "pooled": self.pooled,
            "timeout_seconds": self.connect_seconds,
            "statement_seconds": self.statement_seconds,
        }


class HttpSettings(TypedDict, total=False):
    connections: int  # at most so many at a time: 10
    connect_seconds: float  # to reach the service: 10
    answer_seconds: float  # for one request: 30
    wait_seconds: float  # for a free connection: 10
    retry_seconds: float  # in all, over repeats while the service or its database is away: 30


@dataclass(frozen=True)
class ResolvedHttpSettings:
    connections: int = 10
    connect_seconds: float = 10.0
    answer_seconds: float = 30.0
    wait_seconds: float = 10.0
    retry_seconds: float = 30.0

    @classmethod
    def of(cls, settings: HttpSettings) -> Self:
        known = [field.name for field in fields(cls)]
        unknown = next((name for name in settings if name not in known), None)
        if unknown is not None:
            raise TypeError(f"unknown setting {unknown!r}; known are {', '.join(known)}")
        chosen = cls(**settings)
        for name in ("connect_seconds", "answer_seconds", "wait_seconds"):
            _demand_number(name, getattr(chosen, name), 0.001, MOST_SECONDS)
        _demand_number("retry_seconds", chosen.retry_seconds, 0.0, MOST_SECONDS)
        _demand_connections(chosen.connections)
        return chosen

    def where(self, url: str, token: str) -> dict[str, Any]:
        """What `Where` takes."""
        told = asdict(self)
        del told["retry_seconds"]
        return {"url": url, "token": token, **told}


def _demand_connections(value: int) -> None:
    _demand_number("connections", value, 1, MOST_CONNECTIONS)
    if not isinstance(value, int):
        raise Refused(f"connections: expected a whole number, got {value!r}")


def _demand_number(name: str, value: float, least: float, most: float) -> None:
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if not number or not least <= value <= most:
        raise Refused(f"{name}: expected a number from {least:g} to {most:g}, got {value!r}")
