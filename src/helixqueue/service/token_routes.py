"""Tokens of the asker's own tenant. What is made is shown once, and kept by no idempotency key."""

from __future__ import annotations

from dataclasses import asdict
from datetime import UTC, datetime, timedelta
from typing import Annotated, Any

from fastapi import Path, Query
from pydantic import BaseModel

from helixqueue.engine import tokens
from helixqueue.errors import Refused
from helixqueue.service.bodies import (
    NAME_PATTERN,
    ReasonBody,
    RotateBody,
    TokenBody,
)
from helixqueue.service.problems import Problem
from helixqueue.service.routing import Asker, Note, demands, router

routes = router("tokens")
TokenName = Annotated[str, Path(pattern=NAME_PATTERN, description="A token's name.")]


class TokenAnswer(BaseModel):
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


class AskerAnswer(BaseModel):
    tenant: str
    name: str
    generation: int
    scopes: list[str]
    queues: list[str] | None
    expires_at: datetime


class FreshTokenAnswer(TokenAnswer):
    token: str


class TokensAnswer(BaseModel):
    tokens: list[TokenAnswer]
    next: str | None


class RevokedAnswer(BaseModel):
    revoked: int


class LoginAnswer(BaseModel):
    code: str
    tenant: str
    until: datetime


@routes.get(
    "/v1/token",
    response_model=AskerAnswer,
    name="show_token",
    summary="The token that asks: whose it is and what it allows",
    **demands("any"),
)
async def own(asker: Asker) -> AskerAnswer:
    """For whoever holds a token and is not sure for which tenant."""
    await asker.demand_good()
    grant = asker.grant
    return AskerAnswer(
        tenant=grant.tenant,
        name=grant.name,
        generation=grant.generation,
        scopes=sorted(grant.scopes),
        queues=None if grant.queues is None else sorted(grant.queues),
        expires_at=grant.expires_at,
    )


@routes.get(
    "/v1/tokens",
    response_model=TokensAnswer,
    name="list_tokens",
    summary="Tokens: what they allow, until when, and when they were last used",
    **demands("admin"),
)
async def listed(
    asker: Asker,
    after: Annotated[
        str | None, Query(max_length=100, pattern=r"^[a-z0-9_.-]+~[0-9]{1,9}$")
    ] = None,
    limit: Annotated[int, Query(ge=1, le=tokens.TOKENS_MAX)] = 100,
) -> TokensAnswer:
    """Never the tokens themselves: only their hashes are kept."""
    behind = None
    if after is not None:
        name, _, generation = after.partition("~")
        behind = (asker.tenant, name, int(generation))
    rows = await asker.ask(tokens.list_tokens(tenant=asker.tenant, after=behind, limit=limit))
    last = rows[-1] if len(rows) == limit else None
    return TokensAnswer(
        tokens=[TokenAnswer(**asdict(row)) for row in rows],
        next=None if last is None else f"{last.name}~{last.generation}",
    )


@routes.post(
    "/v1/tokens",
    response_model=FreshTokenAnswer,
    status_code=201,
    name="create_token",
    summary="Make a token; it is shown this once",
    **demands("admin", "name-taken"),
)
async def create(body: TokenBody, asker: Asker, note: Note) -> FreshTokenAnswer:
    """For the tenant of the asker. A name is given once: it stands in the ledger as the actor."""
    made = tokens.new_token()
    created = await asker.run(
        tokens.create(
            tenant=asker.tenant,
            name=body.name,
            token_hash=made.hash,
            scopes=body.scopes,
            queues=body.queues,
            expires_at=_in(body.days),
            actor=asker.grant.name,
        )
    )
    note.know(decision="created" if created else "refused")
    if not created:
        raise Problem("name-taken", f"the tenant has had a token {body.name}", got=body.name)
    return await _shown(asker, body.name, 1, made.token)


@routes.post(
    "/v1/tokens/{name}/rotate",
    response_model=FreshTokenAnswer,
    status_code=201,
    name="rotate_token",
    summary="The next token of a name; the old one goes on for a while",
    **demands("admin", "no-such-token"),
)
async def rotate(name: TokenName, body: RotateBody, asker: Asker, note: Note) -> FreshTokenAnswer:
    """The same scopes and queues. The old token is good for `overlap_seconds` more."""
    made = tokens.new_token()
    generation = await asker.run(
        tokens.rotate(
            tenant=asker.tenant,
            name=name,
            token_hash=made.hash,
            expires_at=_in(body.days),
            overlap_seconds=body.overlap_seconds,
            actor=asker.grant.name,
        )
    )
    note.know(decision="rotated" if generation else "refused")
    if generation is None:
        raise Problem("no-such-token", f"there is no token {name} to rotate", got=name)
    return await _shown(asker, name, generation, made.token)


@routes.post(
    "/v1/tokens/{name}/revoke",
    response_model=RevokedAnswer,
    name="revoke_token",
    summary="End every token of a name, at once",
    **demands("admin", "no-such-token"),
)
async def revoke(name: TokenName, body: ReasonBody, asker: Asker, note: Note) -> RevokedAnswer:
    """From the next transaction on, in every process; the reason is kept."""
    note.know(reason=body.reason)
    ended = await asker.run(
        tokens.revoke(tenant=asker.tenant, name=name, reason=body.reason, actor=asker.grant.name)
    )
    if not ended:
        raise Problem("no-such-token", f"no token {name} was good", got=name)
    return RevokedAnswer(revoked=ended)


@routes.post(
    "/v1/links",
    response_model=LoginAnswer,
    status_code=201,
    name="offer_login",
    summary="Make the code of a link that logs a person in, once",
    **demands("admin"),
)
async def offer_login(asker: Asker, note: Note) -> LoginAnswer:
    """Good for 15 minutes; `POST /v1/login` exchanges it. Its token has every scope, for 12 hours.

    Not more than the asker could give: admin makes tokens of any scope.
    """
    code = tokens.new_token("hl_")
    until = await asker.run(
        tokens.offer_login(tenant=asker.tenant, code_hash=code.hash, actor=asker.grant.name)
    )
    note.know(decision="offered")
    return LoginAnswer(code=code.token, tenant=asker.tenant, until=until)


async def _shown(asker: Asker, name: str, generation: int, token: str) -> FreshTokenAnswer:
    rows = await asker.ask(tokens.list_tokens(tenant=asker.tenant, name=name))
    found: dict[str, Any] | None = next(
        (asdict(row) for row in rows if row.generation == generation), None
    )
    if found is None:
        raise Refused(f"expected the token {name} that was just made, got none")
    return FreshTokenAnswer(token=token, **found)


def _in(days: int) -> datetime:
    return datetime.now(UTC) + timedelta(days=days)
