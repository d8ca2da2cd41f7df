"""Login links: a code that works once is exchanged for a token with a short lifetime.

Opening the link changes nothing, because mail programs and browsers prefetch links; the button
exchanges the code. The database decides which of several attempts is first. `POST /v1/login` is the
same exchange for programs.
"""

from __future__ import annotations

from datetime import datetime
from html import escape
from typing import Final
from urllib.parse import parse_qsl

from pydantic import BaseModel
from starlette.requests import Request
from starlette.responses import HTMLResponse

from helixqueue.engine import tokens
from helixqueue.service.address import is_loopback
from helixqueue.service.models.requests import LoginRequest
from helixqueue.service.problems import Problem
from helixqueue.service.routing import RequestLogDep, ServiceDep, operation, router
from helixqueue.service.service import Service

routes = router("login")
GONE: Final = 410
FORM_BYTES: Final = 1_000
INVALID_CODE: Final = "the code is unknown, used or expired"
_PAGE: Final = """<!doctype html>
<html lang="en">
<head><meta charset="utf-8"><title>HelixQueue</title></head>
<body>
<h1>HelixQueue</h1>
{body}
</body>
</html>
"""
_HELP: Final = (
    "<p>The service is running. Log in with the link that <code>helixq up</code> prints when it "
    "starts; <code>helixq token link</code> creates a new one.</p>"
    "<p>Programs send <code>Authorization: Bearer</code> with a token of "
    "<code>helixq token create</code>; <code>/v1/openapi.json</code> describes the API.</p>"
)


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


@routes.get("/", response_class=HTMLResponse, include_in_schema=False, **operation("open"))
async def home_page() -> HTMLResponse:
    """The page at the address that `helixq up` prints: how to log in."""
    return _page(_HELP)


@routes.get("/login", response_class=HTMLResponse, include_in_schema=False, **operation("open"))
async def login_page(code: str | None = None) -> HTMLResponse:
    if code is None or not tokens.LOGIN.fullmatch(code):
        return _page(_HELP)
    return _page(
        f'<form method="post" action="/login"><input type="hidden" name="code" '
        f'value="{escape(code)}"><p>This link works once.</p>'
        "<p><button>Log in</button></p></form>"
    )


@routes.post("/login", response_class=HTMLResponse, include_in_schema=False, **operation("open"))
async def submit_login(
    request: Request, service: ServiceDep, request_log: RequestLogDep
) -> HTMLResponse:
    session = await _redeem(_form_code(await request.body()), request, service)
    if session is None:
        return _page(
            f"<p>The link is not valid: {escape(INVALID_CODE)}. "
            "<code>helixq token link</code> creates a new one.</p>",
            GONE,
        )
    request_log.add(tenant=session.tenant, token=session.name)
    return _page(
        f"<p>You are logged in to tenant <b>{escape(session.tenant)}</b>. The token is valid until "
        f"{session.expires_at:%Y-%m-%d %H:%M} UTC and is shown once:</p>"
        f"<pre>{escape(session.token)}</pre><p>Try it:</p>"
        f'<pre>curl -H "Authorization: Bearer {escape(session.token)}" '
        f"{escape(_base_url(request))}/v1/queues</pre>"
    )


def _base_url(request: Request) -> str:
    """The URL of the service for the browser: https for every host but loopback.

    Only the proxy knows the scheme of the request, and the page must not suggest to send a token in
    plain text.
    """
    scheme = "http" if is_loopback(request.url.hostname or "") else "https"
    return f"{scheme}://{request.url.netloc}"


def _form_code(form: bytes) -> str:
    """The code in the form of the login page; "" for any other form."""
    fields = parse_qsl(form[:FORM_BYTES].decode("latin-1"))
    return fields[0][1] if len(fields) == 1 and fields[0][0] == "code" else ""


async def _redeem(code: str, request: Request, service: Service) -> SessionResponse | None:
    limit = service.login_limit.count(request.scope)
    if not tokens.LOGIN.fullmatch(code):
        return None
    new = tokens.new_token()
    session = await service.sessions.run_without_tenant(
        tokens.redeem_login(code_hash=tokens.hash_token(code), token_hash=new.hash)
    )
    if session is None:
        return None
    limit.give_back()
    return SessionResponse(
        token=new.token,
        tenant=session.tenant,
        name=session.name,
        scopes=session.scopes,
        expires_at=session.expires_at,
    )


def _page(body: str, status: int = 200) -> HTMLResponse:
    return HTMLResponse(_PAGE.format(body=body), status)
