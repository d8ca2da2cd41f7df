"""Login links for programs: a code that works once is exchanged for a token with a short lifetime.

The dashboard exchanges it for a session (`dashboard/pages/login.py`).
"""

from __future__ import annotations

from datetime import datetime
from typing import Final

from pydantic import BaseModel
from starlette.requests import Request

from helixqueue.engine import tokens
from helixqueue.service.admission import OPEN_LIMIT_KEY
from helixqueue.service.models.requests import LoginRequest
from helixqueue.service.problems import Problem
from helixqueue.service.routing import RequestLogDep, ServiceDep, operation, router
from helixqueue.service.service import Service

routes = router("login")
INVALID_CODE: Final = "the code is unknown, used or expired"


class SessionResponse(BaseModel):
    token: str
    tenant: str
    name: str
    scopes: list[str]
    expires_at: datetime


@routes.post(
    "/v1/login",
    response_model=SessionResponse,
    status_code=201,
    summary="Exchange the code of a login link for a token",
    **operation("open", "no-such-login", "too-many-requests"),
)
async def log_in(
    body: LoginRequest, request: Request, service: ServiceDep, request_log: RequestLogDep
) -> SessionResponse:
    """`helixq up` prints such a link. A code works once, however many clients try it."""
    session = await _redeem(body.code, request, service)
    if session is None:
        raise Problem("no-such-login", INVALID_CODE)
    request_log.add(tenant=session.tenant, token=session.name)
    return session


async def _redeem(code: str, request: Request, service: Service) -> SessionResponse | None:
    if not tokens.LOGIN.fullmatch(code):
        return None
    new = tokens.new_token()
    session = await service.sessions.run_without_tenant(
        tokens.redeem_login(code_hash=tokens.hash_token(code), token_hash=new.hash)
    )
    if session is None:
        return None
    request.scope[OPEN_LIMIT_KEY].give_back()  # counted by admission
    return SessionResponse(
        token=new.token,
        tenant=session.tenant,
        name=session.name,
        scopes=session.scopes,
        expires_at=session.expires_at,
    )
