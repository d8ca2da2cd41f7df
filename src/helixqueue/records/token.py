"""API tokens as they are listed, without their secret."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime


@dataclass(frozen=True, slots=True)
class TokenRow:
    """A token as people see it."""

    tenant: str
    name: str
    generation: int
    scopes: list[str]
    queues: list[str] | None
    created_at: datetime
    created_by: str
    expires_at: datetime
    revoked_at: datetime | None
    revoked_by: str | None
    reason: str | None
    last_used_at: datetime | None
    good: bool


@dataclass(frozen=True, slots=True)
class CreatedToken(TokenRow):
    """A new token, shown once. The secret is not part of its `repr`."""

    token: str = field(repr=False)


@dataclass(frozen=True, slots=True)
class CurrentToken:
    """The token of a request."""

    tenant: str
    name: str
    generation: int
    scopes: list[str]
    queues: list[str] | None
    expires_at: datetime


@dataclass(frozen=True, slots=True)
class RevokedTokens:
    tenant: str
    name: str
    revoked: int  # tokens of the name that were valid


@dataclass(frozen=True, slots=True)
class LoginCode:
    """The code of a login link, valid once. The code is not part of its `repr`."""

    code: str = field(repr=False)
    tenant: str
    until: datetime
