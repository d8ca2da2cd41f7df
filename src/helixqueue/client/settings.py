"""Settings of clients. Every wait has an upper bound."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any, Self, TypedDict, TypeVar

from helixqueue.errors import Refused

MOST_SECONDS = 86_400
MOST_CONNECTIONS = 10_000
T = TypeVar("T", bound="ResolvedSettings | ResolvedHttpSettings")


class ClientSettings(TypedDict, total=False):
    actor: str | None  # submitter for the ledger; the login role by default
    connections: int  # maximum number of connections: 10
    connect_seconds: float  # to connect to one server: 10
    statement_seconds: float  # for one call: 30
    wait_seconds: float  # for a free connection: 10
    retry_seconds: float  # total, while the database is unavailable: 30
    pooled: bool  # the DSN points to pgbouncer in transaction mode


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
        resolved = _resolved(cls, settings)
        actor = resolved.actor
        size = len(actor.encode("utf-8", "surrogatepass")) if isinstance(actor, str) else 0
        if actor is not None and not 1 <= size <= 255:
            raise Refused(f"actor: expected a name of 1 to 255 bytes, got {actor!r}")
        return resolved

    def connection(self, tenant: str | None) -> dict[str, Any]:
        """Return the arguments of `Database.connect`."""
        return {
            "tenant": tenant,
            "pooled": self.pooled,
            "timeout_seconds": self.connect_seconds,
            "statement_seconds": self.statement_seconds,
        }


class HttpSettings(TypedDict, total=False):
    connections: int  # maximum number of connections: 10
    connect_seconds: float  # to connect to the service: 10
    answer_seconds: float  # for one request: 30
    wait_seconds: float  # for a free connection: 10
    retry_seconds: float  # total, while the service or its database is unavailable: 900


@dataclass(frozen=True)
class ResolvedHttpSettings:
    connections: int = 10
    connect_seconds: float = 10.0
    answer_seconds: float = 30.0
    wait_seconds: float = 10.0
    retry_seconds: float = 900.0  # about 20 tries (operations/instructions.py)

    @classmethod
    def of(cls, settings: HttpSettings) -> Self:
        return _resolved(cls, settings)

    def where(self, url: str, token: str) -> dict[str, Any]:
        """Return the arguments of `ServiceAddress`."""
        values = asdict(self)
        del values["retry_seconds"]
        return {"url": url, "token": token, **values}


def _resolved(kind: type[T], settings: Mapping[str, Any]) -> T:
    """The settings with defaults; raises for unknown names and for values out of bounds."""
    known = [field.name for field in fields(kind)]
    unknown = next((name for name in settings if name not in known), None)
    if unknown is not None:
        raise TypeError(f"unknown setting {unknown!r}; known are {', '.join(known)}")
    resolved = kind(**settings)
    for name in known:
        if name.endswith("_seconds"):
            # PostgreSQL counts in milliseconds, and 0 means no limit.
            least = 0.0 if name == "retry_seconds" else 0.001
            _demand_number(name, getattr(resolved, name), least, MOST_SECONDS)
    _demand_number("connections", resolved.connections, 1, MOST_CONNECTIONS)
    if not isinstance(resolved.connections, int):
        raise Refused(f"connections: expected a whole number, got {resolved.connections!r}")
    return resolved


def _demand_number(name: str, value: float, least: float, most: float) -> None:
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if not number or not least <= value <= most:
        raise Refused(f"{name}: expected a number from {least:g} to {most:g}, got {value!r}")
