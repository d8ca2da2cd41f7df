"""The stylesheet, the script and the icon."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Annotated, Final

from fastapi import Query
from starlette.responses import Response

from helixqueue.dashboard.page import page_router, view
from helixqueue.dashboard.rendering import STATIC

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

routes = page_router()
MEDIA_TYPES: Final = {
    "style.css": "text/css",
    "dashboard.js": "text/javascript",
    "icon.svg": "image/svg+xml",
}
Version = Annotated[str | None, Query(max_length=64)]
# Their URL changes with them (`rendering.asset`).
_HEADERS: Final = {"Cache-Control": "public, max-age=31536000, immutable"}


@cache
def _content(name: str) -> bytes:
    return (STATIC / name).read_bytes()


def _endpoint(name: str) -> Callable[..., Awaitable[Response]]:
    async def serve(v: Version = None) -> Response:  # noqa: ARG001 - only for the browser's cache
        return Response(_content(name), headers=_HEADERS, media_type=MEDIA_TYPES[name])

    return serve


for _name in MEDIA_TYPES:
    view(routes, f"/static/{_name}", "open", live=False)(_endpoint(_name))
