"""API tokens of the HTTP service: created here, stored as hashes, shown once.

A token is `hx_` and 256 random bits. The prefix lets scanners find leaked tokens in code and logs;
a token carries no other information.
"""

from __future__ import annotations

import hashlib
import re
import secrets
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final, Literal, NamedTuple, get_args

from helixqueue.engine.arrays import texts
from helixqueue.errors import Refused
from helixqueue.identity import check_name
from helixqueue.postgres.call import Call, Row
from helixqueue.postgres.statements import sql_texts
from helixqueue.records.page import Page
from helixqueue.records.token import TokenRow

_SQL = sql_texts("helixqueue.engine", "tokens.sql")

Scope = Literal["submit", "work", "read", "payloads", "operate", "admin", "run", "metrics", "seal"]
SCOPES: Final[tuple[Scope, ...]] = get_args(Scope)
METRICS_SCOPE: Final = "metrics"  # figures of all tenants
OPERATOR_SCOPES: Final = (METRICS_SCOPE, "seal")  # about all tenants: only operators grant them
TENANT_SCOPES: Final = tuple(scope for scope in SCOPES if scope not in OPERATOR_SCOPES)
# The database roles of a service: all scopes, which each token restricts, to act for others, and to
# receive webhooks.
SERVICE_ROLES: Final = (
    *(f"helix_{scope}" for scope in TENANT_SCOPES), "helix_delegate", "helix_webhook",
)  # fmt: skip
TOKEN: Final = re.compile(r"hx_[A-Za-z0-9_-]{43}")
LOGIN: Final = re.compile(r"hl_[A-Za-z0-9_-]{43}")  # the single-use code of a login link
_CURSOR: Final = re.compile(r"([^~]+)~([a-z0-9_.-]+)~([0-9]{1,9})")
LOGIN_SECONDS: Final = 900.0
SESSION_SECONDS: Final = 43_200.0  # lifetime of the token that a login code is exchanged for
QUEUES_MAX: Final = 100
TOKENS_MAX: Final = 1_000
OVERLAP_SECONDS_MAX: Final = 30 * 86_400.0


class NewToken(NamedTuple):
    """A new token or login code with its stored hash. The secret is not part of its `repr`."""

    token: str
    hash: bytes

    def __repr__(self) -> str:
        return f"NewToken({self.token[:3]}...)"


def new_token(prefix: Literal["hx_", "hl_", "hs_"] = "hx_") -> NewToken:
    token = f"{prefix}{secrets.token_urlsafe(32)}"
    return NewToken(token, hash_token(token))


def hash_token(token: str) -> bytes:
    return hashlib.sha256(token.encode()).digest()


@dataclass(frozen=True, slots=True)
class Grant:
    """What a valid token allows. It never changes during the life of a token."""

    tenant: str
    name: str
    generation: int
    scopes: frozenset[str]
    queues: frozenset[str] | None  # None: every queue
    expires_at: datetime


def authenticate(hashes: Iterable[bytes]) -> Call[dict[bytes, Grant]]:
    """Look up tokens by hash; invalid ones are missing from the result."""

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
    """Store a new token; False if its name was ever used."""
    check_name("token", name)
    unknown = [scope for scope in scopes if scope not in SCOPES]
    if unknown or not scopes:
        raise Refused(
            f"scopes: expected at least one of {', '.join(SCOPES)}; "
            f"got {(unknown or ['none'])[0]!r}"
        )
    if queues is not None:
        if not 1 <= len(queues) <= QUEUES_MAX:
            raise Refused(
                f"queues: expected 1 to {QUEUES_MAX} names, or None for every queue; "
                f"got {len(queues)}"
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
    """Return the new generation; None if no valid token exists or another call just rotated it."""
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
    """Revoke every generation; returns how many were valid."""
    return Call(_SQL["revoke_token"], (tenant, name, actor, reason), lambda rows: int(rows[0][0]))


def list_tokens(
    *,
    tenant: str | None = None,
    name: str | None = None,
    after: str | None = None,
    limit: int = TOKENS_MAX,
) -> Call[Page[TokenRow]]:
    """Read a page of tokens by tenant, name and generation."""
    after_tenant, after_name, generation = ("", "", 0) if after is None else _position(after)
    args = {
        "tenant": tenant,
        "name": name,
        "after_tenant": after_tenant,
        "after_name": after_name,
        "after": generation,
        "limit": limit,
    }

    def read(rows: list[Row]) -> Page[TokenRow]:
        found = tuple(TokenRow(*row) for row in rows)
        last = found[-1] if len(found) == limit else None
        cursor = None if last is None else f"{last.tenant}~{last.name}~{last.generation}"
        return Page(found, cursor)

    return Call(_SQL["tokens"], args, read)


def _position(cursor: str) -> tuple[str, str, int]:
    """Tenant, name and generation of the last token of a page."""
    if (match := _CURSOR.fullmatch(cursor)) is None:
        raise Refused(f"after: expected `next` of the previous page, got {cursor[:80]!a}")
    tenant, name, generation = match.groups()
    return tenant, name, int(generation)


@dataclass(frozen=True, slots=True)
class Session:
    """The token that a login code was exchanged for."""

    tenant: str
    name: str
    scopes: list[str]
    expires_at: datetime


def offer_login(
    *,
    tenant: str,
    code_hash: bytes,
    scopes: Sequence[str] = TENANT_SCOPES,
    seconds: float = LOGIN_SECONDS,
    token_seconds: float = SESSION_SECONDS,
    actor: str | None = None,
    person: str | None = None,
) -> Call[datetime | None]:
    """Store a login code; returns when it expires, None if a program's token has that name."""
    return Call(
        _SQL["offer_login"],
        (tenant, code_hash, texts(sorted(set(scopes))), seconds, token_seconds, actor, person),
        lambda rows: rows[0][0],
    )


def end_session(token_hash: bytes) -> Call[None]:
    """Revoke a session, as its holder."""
    return Call(_SQL["end_session"], (token_hash,), lambda _: None)


def redeem_login(*, code_hash: bytes, token_hash: bytes) -> Call[Session | None]:
    """Exchange a login code for a token; None if it is unknown, used or expired."""
    return Call(
        _SQL["redeem_login"],
        (code_hash, token_hash),
        lambda rows: Session(*rows[0]) if rows else None,
    )
