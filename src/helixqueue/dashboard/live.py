"""Open pages stay up to date: one task of the service renders them, one after another.

A browser keeps one stream of server-sent events per visible page. The task renders each page as a
request would, and sends it to its readers if it has changed. Between two pages it rests, so that
all of them together take at most a tenth of its time: with more open pages, each is refreshed less
often.
"""

from __future__ import annotations

import asyncio
import re
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final, NamedTuple
from urllib.parse import unquote

from helixqueue.dashboard.page import LIVE
from helixqueue.errors import HelixError
from helixqueue.fence.http.asgi import BodyReceiver
from helixqueue.log.requests import SCOPE_KEY, RequestLog
from helixqueue.service.admission import PRINCIPAL_KEY
from helixqueue.service.errors import PAGE_KEY
from helixqueue.service.problems import Problem

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from helixqueue.dashboard.page import PageRoute
    from helixqueue.fence.http.asgi import Message, Scope
    from helixqueue.service.principal import Principal

SECONDS: Final = 2.0  # between two renderings of a page, at least
SHARE: Final = 0.1  # of the time that rendering may take
READERS_MAX: Final = 500
_MAIN: Final = re.compile(rb'<div class="content" id="live">(.*)</div>\s*</main>', re.DOTALL)


class _Key(NamedTuple):
    """A session and its page: pages of different people are never mixed."""

    session: bytes
    url: str


class _OpenPage:
    """A page, and the streams that show it."""

    def __init__(self, scope: Scope, route: PageRoute, principal: Principal) -> None:
        self.scope, self.route, self.principal = scope, route, principal
        self.content = b""
        self.readers: set[asyncio.Queue[bytes]] = set()


class LivePages:
    def __init__(self, routes: Sequence[PageRoute]) -> None:
        self._routes = [route for route in routes if (route.openapi_extra or {}).get(LIVE)]
        self._views: dict[_Key, _OpenPage] = {}
        self._readers = 0
        self._task: asyncio.Task[None] | None = None

    @contextmanager
    def open(self, scope: Scope, principal: Principal, url: str) -> Iterator[asyncio.Queue[bytes]]:
        """The new contents of a page, from now on."""
        if self._readers >= READERS_MAX:
            raise Problem("too-many-streams", f"{READERS_MAX} live pages are open", retry_after=10)
        key = _Key(principal.token_hash, url)
        view = self._views.get(key) or self._view(scope, principal, url)
        self._views[key] = view
        queue: asyncio.Queue[bytes] = asyncio.Queue(1)
        if view.content:  # of a page that another stream shows; it may not change for long
            queue.put_nowait(view.content)
        view.readers.add(queue)
        view.principal = principal
        self._readers += 1
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._keep_up())
        try:
            yield queue
        finally:
            self._readers -= 1
            view.readers.discard(queue)
            if not view.readers:
                self._views.pop(key, None)

    def _view(self, scope: Scope, principal: Principal, url: str) -> _OpenPage:
        path, _, query = url.partition("?")
        path = unquote(path)
        for route in self._routes:
            if match := route.path_regex.match(path):
                params = {
                    name: route.param_convertors[name].convert(value)
                    for name, value in match.groupdict().items()
                }
                own = {
                    **scope,
                    "path": path,
                    "raw_path": path.encode(),
                    "query_string": query.encode(),
                    "path_params": params,
                    "endpoint": route.endpoint,
                    "route": route,
                }
                return _OpenPage(own, route, principal)
        raise Problem("not-found", "no live page has this path")

    async def _keep_up(self) -> None:
        while self._views:
            started_at = time.monotonic()
            for key, view in list(self._views.items()):
                rendering_at = time.monotonic()
                await self._refresh(view)
                spent = time.monotonic() - rendering_at
                if key in self._views:
                    await asyncio.sleep(spent * (1 / SHARE - 1))
            await asyncio.sleep(max(0.0, SECONDS - (time.monotonic() - started_at)))

    async def _refresh(self, view: _OpenPage) -> None:
        content = await self._render(view)
        if not content or content == view.content:
            return
        view.content = content
        for queue in view.readers:
            if queue.full():
                queue.get_nowait()  # a slow reader gets the newest content only
            queue.put_nowait(content)

    async def _render(self, view: _OpenPage) -> bytes:
        """What a request for the page would answer now; b"" if that is an error."""
        body: list[bytes] = []
        status = 0

        async def send(message: Message) -> None:
            nonlocal status
            status = message.get("status", status)
            body.append(message.get("body", b""))

        scope = {
            **view.scope,
            SCOPE_KEY: RequestLog("live", "GET"),
            PRINCIPAL_KEY: view.principal,
            PAGE_KEY: view.scope[PAGE_KEY],
        }
        try:
            await view.route.handle(scope, BodyReceiver(b""), send)
        except (HelixError, Problem):
            return b""
        match = _MAIN.search(b"".join(body)) if status == 200 else None
        return match[1] if match else b""
