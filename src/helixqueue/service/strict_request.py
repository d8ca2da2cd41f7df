"""A request is read in one way or not at all: its query, the form of its body, and how much of it.

What could be meant in two ways is refused here. A filter that is misspelt would be no filter, the
first of two would be none, and what seems a rehearsal the real thing.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING
from urllib.parse import unquote_to_bytes

from helixqueue.fence.http.asgi import text_of, whole_body
from helixqueue.fence.http.header import values
from helixqueue.service.problems import Problem
from helixqueue.service.request_log import masked
from helixqueue.service.settings import MAX_BODY_BYTES

if TYPE_CHECKING:
    from helixqueue.fence.http.asgi import Receive, Scope
    from helixqueue.service.admission import Operation

JSON = b"application/json"


def demand_clear_query(operation: Operation, query: bytes) -> None:
    """Names that the operation knows, each once unless it is a list, in UTF-8."""
    seen = set()
    for part in filter(None, query.split(b"&")):
        name, _, value = (_text(side) for side in part.partition(b"="))
        if name is None or value is None:
            raise _unclear("the query is not UTF-8", "UTF-8, percent-encoded", "other bytes")
        if name not in operation.query:
            known = ", ".join(sorted(operation.query))
            raise _unclear(
                "the query has a name that the operation does not know",
                f"any of {known}" if known else "no query",
                masked(name)[:60],
            )
        if "\0" in value:
            raise _unclear(f"{name} has U+0000 in it", "text without it", "U+0000")
        if name in seen and name not in operation.lists:
            raise _unclear(f"the query has {name} more than once", f"{name} once", f"{name} again")
        seen.add(name)


def _text(side: bytes) -> str | None:
    try:
        return unquote_to_bytes(side.replace(b"+", b" ")).decode()
    except UnicodeDecodeError:
        return None


def _unclear(detail: str, expected: str, got: str) -> Problem:
    remedy = "leave it out, or correct it"
    return Problem("invalid-request", detail, expected=expected, got=got, remedy=remedy)


def demand_json(scope: Scope) -> None:
    """A body that says it is something else is not guessed at; one that says nothing is JSON."""
    coding = text_of(scope["headers"], "content-encoding").lower()
    if coding not in {"", "identity"}:
        raise Problem(
            "unsupported-media-type",
            "the body has a Content-Encoding",
            expected="a body as it is",
            got=masked(coding)[:60],
            remedy="send it uncompressed; many submissions fit one chunk",
        )
    said = values(scope["headers"], "content-type")
    if not said:
        scope["headers"] = [*scope["headers"], (b"content-type", JSON)]
        return
    form = said[0].partition(b";")[0].strip().lower()
    if len(said) > 1 or not (form == JSON or form.endswith(b"+json")):
        got = "two of them" if len(said) > 1 else masked(form.decode("latin-1"))[:60]
        raise Problem("unsupported-media-type", "the body is said not to be JSON", got=got)


async def body_of(scope: Scope, receive: Receive, seconds: float) -> bytes:
    length = text_of(scope["headers"], "content-length")
    if length.isdecimal() and int(length[:19]) > MAX_BODY_BYTES:
        raise _too_large()  # a client that waits for 100-continue need not send it at all
    try:
        async with asyncio.timeout(seconds):
            body = await whole_body(receive, MAX_BODY_BYTES)
    except TimeoutError:
        raise Problem(
            "too-slow",
            f"expected the body within {seconds:g} s",
            headers={"Connection": "close"},
        ) from None
    if body is None:
        raise _too_large()
    return body


def _too_large() -> Problem:
    return Problem(
        "body-too-large",
        f"a body has at most {MAX_BODY_BYTES} bytes",
        expected=f"at most {MAX_BODY_BYTES} bytes",
        got="more",
        headers={"Connection": "close"},
    )
