"""Signing in with a link, signing out, and the theme.

Opening a link changes nothing, because mail programs and browsers prefetch links; the button
exchanges its code. The database decides which of several attempts is first.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Final

from fastapi import Query
from starlette.responses import HTMLResponse, Response

from helixqueue.dashboard import session
from helixqueue.dashboard.page import (
    HEADERS,
    THEME_COOKIE,
    THEMES,
    PageDep,
    PageRequest,
    action,
    go_to,
    page_router,
    view,
)
from helixqueue.engine import tokens
from helixqueue.fence.http.asgi import header_text
from helixqueue.service.admission import OPEN_LIMIT_KEY

if TYPE_CHECKING:
    from helixqueue.engine.tokens import Session

routes = page_router()
UNAUTHENTICATED: Final = 401
GONE: Final = 410
YEAR: Final = 365 * 86_400
# The cookie of a session is not sent when a link on another site leads here. Loading the page again
# from the page itself sends it.
_AGAIN: Final = '<!doctype html><title>HelixQueue</title><meta http-equiv="refresh" content="0">'


@view(routes, "/login", "open", live=False)
async def login_page(
    page: PageDep, code: Annotated[str | None, Query(max_length=200)] = None
) -> Response:
    valid = code is not None and tokens.LOGIN.fullmatch(code) is not None
    return await page.show("login.html", code=code if valid else None, gone=False)


async def sign_in(page: PageRequest) -> Response:
    """What a request without a session gets."""
    if header_text(page.scope["headers"], "sec-fetch-site") == "cross-site":
        return HTMLResponse(_AGAIN, headers=HEADERS)
    return await page.show("login.html", UNAUTHENTICATED, code=None, gone=False)


@action(routes, "/login", "open")
async def log_in(page: PageDep) -> Response:
    made = tokens.new_token("hs_")
    started = await redeem(page, page.form.get("code", ""), made.hash)
    if started is None:
        return await page.show("login.html", GONE, code=None, gone=True)
    page.log.add(tenant=started.tenant, token=started.name)
    response = go_to("/")
    left = int((started.expires_at - datetime.now(UTC)).total_seconds())
    session.start_session(response, page.scope, made.token, left)
    return response


async def redeem(page: PageRequest, code: str, token_hash: bytes) -> Session | None:
    if not tokens.LOGIN.fullmatch(code):
        return None
    started = await page.service.sessions.run_without_tenant(
        tokens.redeem_login(code_hash=tokens.hash_token(code), token_hash=token_hash)
    )
    if started is not None:
        page.scope[OPEN_LIMIT_KEY].give_back()  # counted by admission
    return started


@action(routes, "/logout", "any")
async def log_out(page: PageDep) -> Response:
    await page.principal.execute(tokens.end_session(page.principal.token_hash))
    response = await page.show("login.html", code=None, gone=False)
    session.end_session(response, page.scope)
    return response


@action(routes, "/theme", "any")
async def choose_theme(page: PageDep) -> Response:
    """Light, dark, or as the system has it."""
    theme = page.form.get("theme", "")
    back = page.form.get("back", "/")
    response = go_to(back if back.startswith("/") and not back.startswith("//") else "/")
    response.set_cookie(
        THEME_COOKIE,
        theme,
        max_age=YEAR if theme in THEMES else 0,
        httponly=True,
        samesite="strict",
    )
    return response
