"""Tokens: what programs and people may do; create, rotate and revoke them, and invite people."""

from __future__ import annotations

from typing import Annotated, Any, Literal, get_args

from fastapi import Query
from starlette.responses import Response

from helixqueue.dashboard.page import After, PageDep, action, go_to, page_router, view
from helixqueue.dashboard.session import host_name
from helixqueue.engine.tokens import TENANT_SCOPES
from helixqueue.fence.http.asgi import header_text
from helixqueue.operations import tokens as operations
from helixqueue.records.parameter import NAME_PATTERN
from helixqueue.service.address import is_loopback

routes = page_router()
Act = Literal["create", "invite", "rotate", "revoke"]
TokenName = Annotated[str | None, Query(pattern=NAME_PATTERN)]
DAYS = 90


@view(routes, "/tokens", "admin")
async def tokens(
    page: PageDep, act: Act | None = None, name: TokenName = None, after: After = None
) -> Response:
    found = await page.ask(operations.list_tokens, after=after)
    return await page.show("tokens.html", found=found, act=act, name=name, scopes=TENANT_SCOPES)


@action(routes, "/tokens/create", "admin")
async def create(page: PageDep) -> Response:
    """The one page that shows a token, once."""
    values: dict[str, Any] = {"name": page.form.get("name", ""), "scopes": _scopes(page.form)}
    if queues := page.form.get("queues", "").replace(",", " ").split():
        values["queues"] = queues
    if page.form.get("days", "").strip():
        values["days"] = int(page.number("days", int))
    created = await page.ask(operations.create_token, **values)
    return await page.show("token.html", created=created, link=None)


@action(routes, "/tokens/rotate", "admin")
async def rotate(page: PageDep) -> Response:
    created = await page.ask(operations.rotate_token, name=page.form.get("name", ""))
    return await page.show("token.html", created=created, link=None)


@action(routes, "/tokens/revoke", "admin")
async def revoke(page: PageDep) -> Response:
    name = page.form.get("name", "")
    await page.ask(operations.revoke_token, name=name, reason=page.reason)
    return go_to("/tokens")


@action(routes, "/tokens/invite", "admin")
async def invite(page: PageDep) -> Response:
    """A login link for another person, valid once."""
    scopes = _scopes(page.form)
    values: dict[str, Any] = {"scopes": scopes} if scopes else {}
    login = await page.ask(operations.offer_login, name=page.form.get("name", ""), **values)
    scheme = "http" if is_loopback(host_name(page.scope)) else "https"
    host = header_text(page.scope["headers"], "host")
    link = f"{scheme}://{host}/login?code={login.code}"
    return await page.show("token.html", created=None, link=link, login=login)


def _scopes(form: dict[str, str]) -> list[str]:
    """The boxes that were ticked; a form has one field per scope."""
    return [scope for scope in get_args(operations.Scope) if f"scope-{scope}" in form]
