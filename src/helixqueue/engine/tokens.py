"""Tokens of the HTTP service: made here, stored as hashes, shown once.

A token is `hx_` and 256 random bits. The prefix lets scanners of code and logs find one that got
lost; nothing else can be read from it.
"""

from __future__ import annotations

import hashlib
import re
import secrets
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal, NamedTuple, get_args

from helixqueue.engine.arrays import texts
from helixqueue.engine.statements import statements
from helixqueue.errors import Refused
from helixqueue.identity import check_name
from helixqueue.postgres.call import Call, Row
from helixqueue.records.token import TokenRow

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from datetime import datetime

_SQL = {name: one.sql for name, one in statements("helixqueue.engine", "tokens.sql").items()}

Scope = Literal["submit", "work", "read", "payloads", "operate", "admin"]
SCOPES: Final[tuple[Scope, ...]] = get_args(Scope)
TOKEN: Final = re.compile(r"hx_[A-Za-z0-9_-]{43}")
LOGIN: Final = re.compile(r"hl_[A-Za-z0-9_-]{43}")  # the code of a link, good once
LOGIN_SECONDS: Final = 900.0
SESSION_SECONDS: Final = 43_200.0  # of the token that a code is exchanged for
QUEUES_MAX: Final = 100
TOKENS_MAX: Final = 1_000
DAYS: Final = 90  # that a token is good for, unless said
DAYS_MAX: Final = 3_650
OVERLAP_SECONDS_MAX: Final = 30 * 86_400.0


class Fresh(NamedTuple):
    """A new token, or the code of a link, and what is stored of it. It is in no `repr`."""

    token: str
    hash: bytes

    def __repr__(self) -> str:
        return f"Fresh({self.token[:3]}...)"


def fresh(prefix: Literal["hx_", "hl_"] = "hx_") -> Fresh:
    token = f"{prefix}{secrets.token_urlsafe(32)}"
    return Fresh(token, hashed(token))


def hashed(token: str) -> bytes:
    return hashlib.sha256(token.encode()).digest()


@dataclass(frozen=True, slots=True)
class Grant:
    """What a good token allows. Of one token it never changes."""

    tenant: str
    name: str
    generation: int
    scopes: frozenset[str]
    queues: frozenset[str] | None  # None: every queue
    expires_at: datetime


def authenticate(hashes: Iterable[bytes]) -> Call[dict[bytes, Grant]]:
    """Of those tokens that are good now."""

    def read(rows: list[Row]) -> dict[bytes, Grant]:
        return {
            token_hash: Grant(
                *(tenant, name, generation, frozenset(scopes)),
                *(None if queues is None else frozenset(queues), expires_at),
            )
            for token_hash, tenant, name, generation, scopes, queues, expires_at in rows
        }

    return Call(_SQL["authenticate"], (list(hashes),), read)


def create(
    *,
    tenant: str,
    name: str,
    token_hash: bytes,
    scopes: Sequence[str],
    queues: Sequence[str] | None,
    expires_at: datetime,
    actor: str | None = None,
) -> Call[bool]:
    """False when the name was ever used."""
    check_name("token", name)
    unknown = [scope for scope in scopes if scope not in SCOPES]
    if unknown or not scopes:
        raise Refused(
            f"scopes: expected some of {', '.join(SCOPES)}; got {(unknown or ['none'])[0]!r}"
        )
    if queues is not None:
        if not 1 <= len(queues) <= QUEUES_MAX:
            raise Refused(
                f"queues: expected 1 to {QUEUES_MAX} names or none at all, got {len(queues)}"
            )
        for queue in queues:
            check_name("queue", queue)
    return Call(
        _SQL["create_token"],
        (
            *(tenant, name, token_hash, texts(sorted(set(scopes)))),
            *(None if queues is None else texts(sorted(set(queues))), expires_at, actor),
        ),
        lambda rows: bool(rows[0][0]),
    )


def rotate(
    *,
    tenant: str,
    name: str,
    token_hash: bytes,
    expires_at: datetime,
    overlap_seconds: float,
    actor: str | None = None,
) -> Call[int | None]:
    """The new generation; None when there is none to rotate, or somebody else just did."""
    if not 0 <= overlap_seconds <= OVERLAP_SECONDS_MAX:
        raise Refused(
            f"overlap: expected 0 to {OVERLAP_SECONDS_MAX:g} seconds, got {overlap_seconds:g}"
        )
    return Call(
        _SQL["rotate_token"],
        (tenant, name, token_hash, expires_at, overlap_seconds, actor),
        lambda rows: rows[0][0],
    )


def revoke(*, tenant: str, name: str, reason: str, actor: str | None = None) -> Call[int]:
    """End every generation; how many there were."""
    return Call(_SQL["revoke_token"], (tenant, name, actor, reason), lambda rows: int(rows[0][0]))


def listed(
    *,
    tenant: str | None = None,
    name: str | None = None,
    after: tuple[str, str, int] | None = None,
    limit: int = TOKENS_MAX,
) -> Call[list[TokenRow]]:
    after_tenant, after_name, generation = after or ("", "", 0)
    args = {
        "tenant": tenant,
        "name": name,
        "after_tenant": after_tenant,
        "after_name": after_name,
        "after": generation,
        "limit": limit,
    }
    return Call(_SQL["tokens"], args, lambda rows: [TokenRow(*row) for row in rows])


@dataclass(frozen=True, slots=True)
class Session:
    """What a login's code was exchanged for."""

    tenant: str
    name: str
    scopes: list[str]
    expires_at: datetime


def offer_login(
    *,
    tenant: str,
    code_hash: bytes,
    scopes: Sequence[str] = SCOPES,
    seconds: float = LOGIN_SECONDS,
    token_seconds: float = SESSION_SECONDS,
    actor: str | None = None,
) -> Call[datetime]:
    """Keep a code; until when it is good."""
    return Call(
        _SQL["offer_login"],
        (tenant, code_hash, texts(sorted(set(scopes))), seconds, token_seconds, actor),
        lambda rows: rows[0][0],
    )


def redeem_login(*, code_hash: bytes, token_hash: bytes) -> Call[Session | None]:
    """Exchange a code for a token; None when it is unknown, used or too old."""
    return Call(
        _SQL["redeem_login"],
        (code_hash, token_hash),
        lambda rows: Session(*rows[0]) if rows else None,
    )
