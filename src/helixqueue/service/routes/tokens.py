"""The token of a request."""

from __future__ import annotations

from datetime import datetime

from pydantic import BaseModel

from helixqueue.service.routing import PrincipalDep, operation, router

routes = router("tokens")


class CurrentTokenResponse(BaseModel):
    tenant: str
    name: str
    generation: int
    scopes: list[str]
    queues: list[str] | None
    expires_at: datetime


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
