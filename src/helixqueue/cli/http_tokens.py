"""Tokens over HTTP. The service makes them: what is shown once is in its answer."""

from __future__ import annotations

from dataclasses import fields
from datetime import datetime
from typing import TYPE_CHECKING, Any, NamedTuple

from helixqueue.store.tokens import TokenRow
from helixqueue.transport.http.call import HttpCall, at, get, post, unless

if TYPE_CHECKING:
    from collections.abc import Sequence

_FIELDS = [one.name for one in fields(TokenRow)]
_TIMES = {"created_at", "expires_at", "revoked_at", "last_used_at"}


class Made(NamedTuple):
    token: str
    row: TokenRow

    def __repr__(self) -> str:
        return f"Made(hx_..., {self.row!r})"


def create(
    *, name: str, scopes: Sequence[str], queues: Sequence[str] | None, days: int
) -> HttpCall[Made | None]:
    """None when the name was ever used."""
    body = {"name": name, "scopes": list(scopes), "queues": queues and list(queues), "days": days}
    call: HttpCall[Made | None] = post(at("tokens"), body, _read_made)
    return unless("name-taken", call, lambda _: None)


def rotate(*, name: str, days: int, overlap_seconds: float) -> HttpCall[Made | None]:
    """None when there is none to rotate."""
    body = {"days": days, "overlap_seconds": overlap_seconds}
    call: HttpCall[Made | None] = post(at("tokens", name, "rotate"), body, _read_made)
    return unless("no-such-token", call, lambda _: None)


def revoke(*, name: str, reason: str) -> HttpCall[int]:
    """How many were good."""
    call = post(at("tokens", name, "revoke"), {"reason": reason}, lambda told: int(told["revoked"]))
    return unless("no-such-token", call, lambda _: 0)


def listed() -> HttpCall[list[TokenRow]]:
    """The first thousand."""
    return get(
        at("tokens"), lambda told: [_row(one) for one in told["tokens"]], [("limit", "1000")]
    )


def _read_made(told: dict[str, Any]) -> Made:
    return Made(told["token"], _row(told))


def _row(told: dict[str, Any]) -> TokenRow:
    return TokenRow(**{name: _value(name, told) for name in _FIELDS})


def _value(name: str, told: dict[str, Any]) -> Any:  # noqa: ANN401 - JSON
    value = told.get(name, "")  # the tenant is the token's, and not said
    return datetime.fromisoformat(value) if name in _TIMES and value is not None else value
