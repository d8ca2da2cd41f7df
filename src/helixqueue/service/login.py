"""A link that logs in, once: its code is exchanged for a token that ends soon.

Opening the link changes nothing, because mail programs and browsers open links by themselves; the
button does. Which of several tries is the first, the database decides. `POST /v1/login` is the same
exchange for programs and pages.
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
from helixqueue.service.bodies import LoginBody
from helixqueue.service.problems import Problem
from helixqueue.service.routing import Here, Note, demands, router
from helixqueue.service.service import Service

routes = router("login")
GONE: Final = 410
FORM_BYTES: Final = 1_000
NO_GOOD: Final = "the code is unknown, was used, or is too old"
_PAGE: Final = """<!doctype html>
<html lang="en">
<head><meta charset="utf-8"><title>HelixQueue</title></head>
<body>
<h1>HelixQueue</h1>
{body}
</body>
</html>
"""
_HOW: Final = (
    "<p>The service is running. Log in with the link that <code>helixq up</code> prints when it "
    "starts; <code>helixq token link</code> makes a new one.</p>"
    "<p>Programs send <code>Authorization: Bearer</code> with a token of "
    "<code>helixq token create</code>; <code>/v1/openapi.json</code> tells them what they may "
    "ask.</p>"
)


class SessionAnswer(BaseModel):
    token: str
    tenant: str
    name: str
    scopes: list[str]
    expires_at: datetime


@routes.post(
    "/v1/login",
    response_model=SessionAnswer,
    status_code=201,
    summary="Exchange the code of a login link for a token, once",
    **demands("open", "no-such-login", "too-many-requests"),
)
async def log_in(body: LoginBody, request: Request, here: Here, note: Note) -> SessionAnswer:
    """`helixq up` prints such a link. Of any number who try a code, one gets the token."""
    session = await _redeemed(body.code, request, here)
    if session is None:
        raise Problem("no-such-login", NO_GOOD)
    note.know(tenant=session.tenant, token=session.name)
    return session


@routes.get("/", response_class=HTMLResponse, include_in_schema=False, **demands("open"))
async def front() -> HTMLResponse:
    """For whoever opens the address that `helixq up` prints: it is there, and how to come in."""
    return _page(_HOW)


@routes.get("/login", response_class=HTMLResponse, include_in_schema=False, **demands("open"))
async def page(code: str | None = None) -> HTMLResponse:
    if code is None or not tokens.LOGIN.fullmatch(code):
        return _page(_HOW)
    return _page(
        f'<form method="post" action="/login"><input type="hidden" name="code" '
        f'value="{escape(code)}"><p>This link logs in once.</p>'
        "<p><button>Log in</button></p></form>"
    )


@routes.post("/login", response_class=HTMLResponse, include_in_schema=False, **demands("open"))
async def pressed(request: Request, here: Here, note: Note) -> HTMLResponse:
    session = await _redeemed(_code_of(await request.body()), request, here)
    if session is None:
        return _page(
            f"<p>This link does not log in: {escape(NO_GOOD)}. "
            "<code>helixq token link</code> makes a new one.</p>",
            GONE,
        )
    note.know(tenant=session.tenant, token=session.name)
    return _page(
        f"<p>You are logged in to tenant <b>{escape(session.tenant)}</b>. This token is good until "
        f"{session.expires_at:%Y-%m-%d %H:%M} UTC and is shown this once:</p>"
        f"<pre>{escape(session.token)}</pre><p>Try it:</p>"
        f'<pre>curl -H "Authorization: Bearer {escape(session.token)}" '
        f"{escape(_base(request))}/v1/queues</pre>"
    )


def _base(request: Request) -> str:
    """Of this service as the browser knows it: there is TLS before any address but loopback.

    Which scheme it was, a proxy alone knows; a token must not be sent in the clear on our advice.
    """
    scheme = "http" if is_loopback(request.url.hostname or "") else "https"
    return f"{scheme}://{request.url.netloc}"


def _code_of(form: bytes) -> str:
    """What our own button sends, a code and nothing else; "" for any other form."""
    fields = parse_qsl(form[:FORM_BYTES].decode("latin-1"))
    return fields[0][1] if len(fields) == 1 and fields[0][0] == "code" else ""


async def _redeemed(code: str, request: Request, here: Service) -> SessionAnswer | None:
    allowance = here.logins.take(request.scope)
    if not tokens.LOGIN.fullmatch(code):
        return None
    made = tokens.new_token()
    session = await here.served.run_without_tenant(
        tokens.redeem_login(code_hash=tokens.hash_token(code), token_hash=made.hash)
    )
    if session is None:
        return None
    allowance.give_back()
    return SessionAnswer(
        token=made.token,
        tenant=session.tenant,
        name=session.name,
        scopes=session.scopes,
        expires_at=session.expires_at,
    )


def _page(body: str, status: int = 200) -> HTMLResponse:
    return HTMLResponse(_PAGE.format(body=body), status)
