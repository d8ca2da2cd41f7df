"""Tokens over HTTP. The service makes them: what is shown once is in its answer."""

from __future__ import annotations

from dataclasses import fields
from datetime import datetime
from typing import TYPE_CHECKING, Any, NamedTuple

from helixqueue.records.token import TokenRow
from helixqueue.transport.http.call import HttpCall, at, get, post, unless

if TYPE_CHECKING:
    from collections.abc import Sequence

PAGE_ROWS = 1_000  # the most that the service gives
_FIELDS = [item.name for item in fields(TokenRow)]
_TIMES = {"created_at", "expires_at", "revoked_at", "last_used_at"}


class CreatedToken(NamedTuple):
    token: str
    row: TokenRow

    def __repr__(self) -> str:
        return f"Made(hx_..., {self.row!r})"


class Login(NamedTuple):
    """The code of a link, which logs in once."""

    code: str
    tenant: str
    until: datetime

    def __repr__(self) -> str:
        return f"Login(hl_..., {self.tenant!r})"


def own_tenant() -> HttpCall[str]:
    """Whose the token is that asks."""
    return get(at("token"), lambda document: str(document["tenant"]))


def create(
    *, name: str, scopes: Sequence[str], queues: Sequence[str] | None, days: int
) -> HttpCall[CreatedToken | None]:
    """None when the name was ever used."""
    body = {"name": name, "scopes": list(scopes), "queues": queues and list(queues), "days": days}
    call: HttpCall[CreatedToken | None] = post(at("tokens"), body, _read_made)
    return unless("name-taken", call, lambda _: None)


def rotate(*, name: str, days: int, overlap_seconds: float) -> HttpCall[CreatedToken | None]:
    """None when there is none to rotate."""
    body = {"days": days, "overlap_seconds": overlap_seconds}
    call: HttpCall[CreatedToken | None] = post(at("tokens", name, "rotate"), body, _read_made)
    return unless("no-such-token", call, lambda _: None)


def revoke(*, name: str, reason: str) -> HttpCall[int]:
    """How many were good."""
    call = post(
        at("tokens", name, "revoke"), {"reason": reason}, lambda document: int(document["revoked"])
    )
    return unless("no-such-token", call, lambda _: 0)


def list_tokens(
    *,
    tenant: str | None = None,  # noqa: ARG001 - the token's
    after: tuple[str, str, int] | None = None,
    limit: int = PAGE_ROWS,
) -> HttpCall[list[TokenRow]]:
    """By name and generation, from behind `after` on: tenant, name and generation of a row."""
    query = [("limit", str(limit))]
    if after is not None:
        _, name, generation = after
        query.append(("after", f"{name}~{generation}"))
    return get(at("tokens"), lambda document: [_row(item) for item in document["tokens"]], query)


def offer_login() -> HttpCall[Login]:
    return post(
        at("links"),
        b"",
        lambda document: Login(
            document["code"], document["tenant"], datetime.fromisoformat(document["until"])
        ),
    )


def _read_made(document: dict[str, Any]) -> CreatedToken:
    return CreatedToken(document["token"], _row(document))


def _row(document: dict[str, Any]) -> TokenRow:
    return TokenRow(**{name: _value(name, document) for name in _FIELDS})


def _value(name: str, document: dict[str, Any]) -> Any:
    value = document[name]
    return datetime.fromisoformat(value) if name in _TIMES and value is not None else value
