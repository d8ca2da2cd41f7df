"""Sessions: a login link is exchanged for a cookie, and writes prove that they come from a page.

The cookie holds a secret of its own kind: no API token, and no API call accepts it. The database
stores its hash like that of a token, so expiry and revocation are those of tokens. Every form has
a token that is derived from the secret, and every write needs the Origin of this service.
"""

from __future__ import annotations

import hmac
import re
from http.cookies import CookieError, SimpleCookie
from typing import TYPE_CHECKING, Final
from urllib.parse import parse_qsl, urlsplit

from helixqueue.engine import tokens
from helixqueue.fence.http.asgi import header_text, header_values
from helixqueue.service.address import is_loopback
from helixqueue.service.problems import Problem, unauthenticated

if TYPE_CHECKING:
    from starlette.responses import Response

    from helixqueue.fence.http.asgi import Scope
    from helixqueue.service.principal import Principal
    from helixqueue.service.service import Service

SECRET: Final = re.compile(r"hs_[A-Za-z0-9_-]{43}")
FORM_FIELD: Final = "form"
FIELDS_MAX: Final = 200


def cookie_name(scope: Scope) -> str:
    """The name contains the port: browsers send the cookies of a host to all of its ports."""
    _, _, port = header_text(scope["headers"], "host").rpartition(":")
    return f"helix-session-{port}" if port.isdecimal() else "helix-session"


def cookie(scope: Scope, name: str) -> str:
    """The value of a cookie, "" if there is none."""
    jar: SimpleCookie = SimpleCookie()
    try:
        for value in header_values(scope["headers"], "cookie"):
            jar.load(value.decode("latin-1"))
    except CookieError:
        return ""
    return jar[name].value if name in jar else ""


def session_secret(scope: Scope) -> str:
    secret = cookie(scope, cookie_name(scope))
    return secret if SECRET.fullmatch(secret) else ""


async def authenticate(scope: Scope, service: Service) -> Principal:
    """The person of the session; raises `unauthenticated`."""
    secret = session_secret(scope)
    if not secret:
        raise unauthenticated("expected the cookie of a session, got none", "none")
    return await service.principals.find(tokens.hash_token(secret))


def start_session(response: Response, scope: Scope, secret: str, seconds: int) -> None:
    _set_cookie(response, scope, secret, seconds)


def end_session(response: Response, scope: Scope) -> None:
    _set_cookie(response, scope, "", 0)


def _set_cookie(response: Response, scope: Scope, value: str, seconds: int) -> None:
    response.set_cookie(
        cookie_name(scope),
        value,
        max_age=seconds,
        httponly=True,
        samesite="strict",
        # Behind a TLS proxy the service sees plain HTTP, so the host decides.
        secure=not is_loopback(host_name(scope)),
    )


def host_name(scope: Scope) -> str:
    return urlsplit(f"//{header_text(scope['headers'], 'host')}").hostname or ""


def form_token(scope: Scope) -> str:
    """What a form of this session contains."""
    return hmac.new(session_secret(scope).encode(), b"form", "sha256").hexdigest()


def read_form(scope: Scope, body: bytes) -> dict[str, str]:
    """The fields of a submitted form; refuses forms of other origins and of other sessions."""
    _check_origin(scope)
    media_type = header_text(scope["headers"], "content-type").partition(";")[0].strip().lower()
    if media_type != "application/x-www-form-urlencoded":
        raise Problem("unsupported-media-type", "expected a form", expected="a form", got="other")
    try:
        pairs = parse_qsl(
            body.decode(), keep_blank_values=True, errors="strict", max_num_fields=FIELDS_MAX
        )
    except ValueError:
        raise Problem("invalid-request", "expected a form in UTF-8", got="other bytes") from None
    fields = dict(pairs)
    if len(fields) < len(pairs):
        raise Problem("invalid-request", "expected each field of the form once", got="a repeat")
    token = fields.pop(FORM_FIELD, "")
    if session_secret(scope) and not hmac.compare_digest(
        token.encode(), form_token(scope).encode()
    ):
        raise Problem(
            "forbidden",
            "the form does not belong to this session; reload the page and repeat",
            expected="the form of a page of this session",
            got="another form",
        )
    return fields


def _check_origin(scope: Scope) -> None:
    """Require that a page of this service sent the request.

    Browsers send Origin with every form. The scheme is not compared: behind a TLS proxy the service
    does not see it.
    """
    origins = header_values(scope["headers"], "origin")
    host = header_text(scope["headers"], "host").lower()
    origin = origins[0].decode("latin-1").lower() if len(origins) == 1 else ""
    if not origin or origin.partition("://")[2] != host:
        raise Problem(
            "forbidden",
            "the form was sent by a page of another origin",
            expected="the Origin of this service",
            got="another Origin" if origins else "none",
        )
