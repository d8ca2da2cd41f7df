"""Strict reading of a request: query, content type, body and JSON.

What could be read in two ways is rejected. Ignoring a misspelled filter would widen the result, and
using one of two values would ignore the other.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote_to_bytes

from helixqueue.errors import InvalidPayload
from helixqueue.fence.http.asgi import header_text, header_values, whole_body
from helixqueue.identity import loads
from helixqueue.log.lines import masked
from helixqueue.service.problems import Problem

if TYPE_CHECKING:
    from helixqueue.fence.http.asgi import Receive, Scope
    from helixqueue.service.admission import OperationRoute

JSON = b"application/json"


def check_query(route: OperationRoute, query: bytes) -> None:
    """Reject parameters that are unknown, not UTF-8, or repeated where the route takes no list."""
    names = set()
    for part in filter(None, query.split(b"&")):
        name, _, value = (_decode(side) for side in part.partition(b"="))
        if name is None or value is None:
            raise _invalid_query("the query is not UTF-8", "UTF-8, percent-encoded", "other bytes")
        if name not in route.query:
            known = ", ".join(sorted(route.query))
            raise _invalid_query(
                "the query has an unknown parameter",
                f"any of {known}" if known else "no query",
                masked(name)[:60],
            )
        if "\0" in value:
            raise _invalid_query(f"{name} contains U+0000", "text without U+0000", "U+0000")
        if name in names and name not in route.lists:
            raise _invalid_query(f"the query repeats {name}", f"{name} once", f"{name} again")
        names.add(name)


def _decode(side: bytes) -> str | None:
    try:
        return unquote_to_bytes(side.replace(b"+", b" ")).decode()
    except UnicodeDecodeError:
        return None


def _invalid_query(detail: str, expected: str, got: str) -> Problem:
    remedy = "correct or remove the parameter"
    return Problem("invalid-request", detail, expected=expected, got=got, remedy=remedy)


def check_content_type(scope: Scope) -> None:
    """Accept JSON, and a body without a Content-Type, which is read as JSON."""
    encoding = header_text(scope["headers"], "content-encoding").lower()
    if encoding not in {"", "identity"}:
        raise Problem(
            "unsupported-media-type",
            "the body has a Content-Encoding",
            expected="an unencoded body",
            got=masked(encoding)[:60],
            remedy="send it uncompressed; one request can carry many submissions",
        )
    header = header_values(scope["headers"], "content-type")
    if not header:
        scope["headers"] = [*scope["headers"], (b"content-type", JSON)]
        return
    media_type = header[0].partition(b";")[0].strip().lower()
    if len(header) > 1 or not (media_type == JSON or media_type.endswith(b"+json")):
        got = "two of them" if len(header) > 1 else masked(media_type.decode("latin-1"))[:60]
        raise Problem("unsupported-media-type", "the Content-Type is not JSON", got=got)


def body_size(scope: Scope, max_bytes: int) -> int:
    """The bytes of a body that is about to arrive; the most it may have if it does not say."""
    headers = scope["headers"]
    length = header_text(headers, "content-length")
    if length.isdecimal():
        return min(int(length[:19]), max_bytes)
    return max_bytes if header_values(headers, "transfer-encoding") else 0


async def read_body(scope: Scope, receive: Receive, seconds: float, max_bytes: int) -> bytes:
    length = header_text(scope["headers"], "content-length")
    if length.isdecimal() and int(length[:19]) > max_bytes:
        raise _too_large(max_bytes)  # a client that waits for 100-continue does not send it at all
    try:
        async with asyncio.timeout(seconds):
            body = await whole_body(receive, max_bytes)
    except TimeoutError:
        raise Problem(
            "too-slow",
            f"expected the body within {seconds:g} s",
            headers={"Connection": "close"},
        ) from None
    if body is None:
        raise _too_large(max_bytes)
    return body


def _too_large(max_bytes: int) -> Problem:
    return Problem(
        "body-too-large",
        f"a body has at most {max_bytes} bytes",
        expected=f"at most {max_bytes} bytes",
        got="more",
        headers={"Connection": "close"},
    )


def strict_json(body: bytes) -> Any:  # noqa: ANN401 - JSON
    """Parse JSON; reject duplicate names, NaN, lone surrogates, deep nesting and big numbers."""
    try:
        return loads(body)
    except InvalidPayload as refused:
        # The parser calls its input a payload.
        detail = f"body {str(refused).removeprefix('payload ')}"
        raise Problem("not-json", detail, code=refused.code, pointer=refused.path) from None
