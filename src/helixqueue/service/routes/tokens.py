"""Tokens of the principal's tenant. A new token is shown once, so no idempotency key applies."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from datetime import UTC, datetime, timedelta
from typing import Annotated, Any

from fastapi import Path, Query
from pydantic import BaseModel

from helixqueue.engine import tokens
from helixqueue.errors import Refused
from helixqueue.records.token import TokenRow
from helixqueue.service.models.requests import (
    NAME_PATTERN,
    CreateTokenRequest,
    ReasonRequest,
    RotateTokenRequest,
)
from helixqueue.service.problems import Problem
from helixqueue.service.routing import PrincipalDep, RequestLogDep, operation, router

routes = router("tokens")
TokenName = Annotated[str, Path(pattern=NAME_PATTERN, description="Name of the token.")]


class CurrentTokenResponse(BaseModel):
    tenant: str
    name: str
    generation: int
    scopes: list[str]
    queues: list[str] | None
    expires_at: datetime


@dataclass(frozen=True, slots=True)
class NewTokenResponse(TokenRow):
    token: str


class TokenPageResponse(BaseModel):
    tokens: list[TokenRow]
    next: str | None


class RevokedResponse(BaseModel):
    revoked: int


class LoginLinkResponse(BaseModel):
    code: str
    tenant: str
    until: datetime


@routes.get(
    "/v1/token",
    response_model=CurrentTokenResponse,
    name="show_token",
    summary="Show the token of this request",
    **operation("any"),
)
async def show_token(principal: PrincipalDep) -> CurrentTokenResponse:
    """Its tenant, name, scopes and expiry."""
    await principal.require_valid_token()
    grant = principal.grant
    return CurrentTokenResponse(
        tenant=grant.tenant,
        name=grant.name,
        generation=grant.generation,
        scopes=sorted(grant.scopes),
        queues=None if grant.queues is None else sorted(grant.queues),
        expires_at=grant.expires_at,
    )


@routes.get(
    "/v1/tokens",
    response_model=TokenPageResponse,
    name="list_tokens",
    summary="List tokens with scopes, expiry and last use",
    **operation("admin"),
)
async def list_tokens(
    principal: PrincipalDep,
    after: Annotated[
        str | None, Query(max_length=100, pattern=r"^[a-z0-9_.-]+~[0-9]{1,9}$")
    ] = None,
    limit: Annotated[int, Query(ge=1, le=tokens.TOKENS_MAX)] = 100,
) -> TokenPageResponse:
    """Without the tokens themselves: only hashes are stored."""
    cursor = None
    if after is not None:
        name, _, generation = after.partition("~")
        cursor = (principal.tenant, name, int(generation))
    rows = await principal.execute(
        tokens.list_tokens(tenant=principal.tenant, after=cursor, limit=limit)
    )
    last = rows[-1] if len(rows) == limit else None
    return TokenPageResponse(
        tokens=rows,
        next=None if last is None else f"{last.name}~{last.generation}",
    )


@routes.post(
    "/v1/tokens",
    response_model=NewTokenResponse,
    status_code=201,
    name="create_token",
    summary="Create a token; it is shown once",
    **operation("admin", "name-taken"),
)
async def create_token(
    body: CreateTokenRequest, principal: PrincipalDep, request_log: RequestLogDep
) -> NewTokenResponse:
    """For the tenant of the principal. Names are never reused: the ledger has them as actors."""
    new = tokens.new_token()
    created = await principal.run(
        tokens.create(
            tenant=principal.tenant,
            name=body.name,
            token_hash=new.hash,
            scopes=body.scopes,
            queues=body.queues,
            expires_at=_expiry(body.days),
            actor=principal.grant.name,
        )
    )
    request_log.add(decision="created" if created else "refused")
    if not created:
        raise Problem("name-taken", f"a token {body.name} exists or existed", got=body.name)
    return await _new_token(principal, body.name, 1, new.token)


@routes.post(
    "/v1/tokens/{name}/rotate",
    response_model=NewTokenResponse,
    status_code=201,
    name="rotate_token",
    summary="Rotate a token; the old one stays valid for a while",
    **operation("admin", "no-such-token"),
)
async def rotate_token(
    name: TokenName, body: RotateTokenRequest, principal: PrincipalDep, request_log: RequestLogDep
) -> NewTokenResponse:
    """The same scopes and queues. The old token stays valid for `overlap_seconds`."""
    new = tokens.new_token()
    generation = await principal.run(
        tokens.rotate(
            tenant=principal.tenant,
            name=name,
            token_hash=new.hash,
            expires_at=_expiry(body.days),
            overlap_seconds=body.overlap_seconds,
            actor=principal.grant.name,
        )
    )
    request_log.add(decision="rotated" if generation else "refused")
    if generation is None:
        raise Problem("no-such-token", f"the tenant has no valid token {name}", got=name)
    return await _new_token(principal, name, generation, new.token)


@routes.post(
    "/v1/tokens/{name}/revoke",
    response_model=RevokedResponse,
    name="revoke_token",
    summary="Revoke every token of a name",
    **operation("admin", "no-such-token"),
)
async def revoke_token(
    name: TokenName, body: ReasonRequest, principal: PrincipalDep, request_log: RequestLogDep
) -> RevokedResponse:
    """Takes effect in every replica with the next transaction; the reason is stored."""
    request_log.add(reason=body.reason)
    revoked = await principal.run(
        tokens.revoke(
            tenant=principal.tenant, name=name, reason=body.reason, actor=principal.grant.name
        )
    )
    if not revoked:
        raise Problem("no-such-token", f"the tenant has no valid token {name}", got=name)
    return RevokedResponse(revoked=revoked)


@routes.post(
    "/v1/links",
    response_model=LoginLinkResponse,
    status_code=201,
    name="offer_login",
    summary="Create the code of a login link, for one login",
    **operation("admin"),
)
async def offer_login(principal: PrincipalDep, request_log: RequestLogDep) -> LoginLinkResponse:
    """`POST /v1/login` exchanges it within 15 minutes for a token with every scope, for 12 hours.

    This is no escalation: the scope admin can create tokens of any scope.
    """
    code = tokens.new_token("hl_")
    until = await principal.run(
        tokens.offer_login(tenant=principal.tenant, code_hash=code.hash, actor=principal.grant.name)
    )
    request_log.add(decision="offered")
    return LoginLinkResponse(code=code.token, tenant=principal.tenant, until=until)


async def _new_token(
    principal: PrincipalDep, name: str, generation: int, token: str
) -> NewTokenResponse:
    rows = await principal.execute(tokens.list_tokens(tenant=principal.tenant, name=name))
    fields: dict[str, Any] | None = next(
        (asdict(row) for row in rows if row.generation == generation), None
    )
    if fields is None:
        raise Refused(f"expected the new token {name}, got none")
    return NewTokenResponse(token=token, **fields)


def _expiry(days: int) -> datetime:
    return datetime.now(UTC) + timedelta(days=days)
