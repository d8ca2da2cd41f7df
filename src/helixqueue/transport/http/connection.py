"""Sends requests, for threads and for event loops."""

from __future__ import annotations

import asyncio
import ipaddress
import logging
import math
import os
import threading
from collections.abc import AsyncGenerator
from dataclasses import dataclass, field
from functools import cache
from typing import TYPE_CHECKING, Any, TypeVar

from helixqueue.errors import NotInstalled, Refused, Unavailable
from helixqueue.transport.http.call import Reply
from helixqueue.transport.http.problem import kind_of

if TYPE_CHECKING:
    import ssl

    import httpx

    from helixqueue.transport.http.call import HttpCall

T = TypeVar("T")
LOG = logging.getLogger("helixqueue.client")


@cache
def _warn_of_plain_text(host: str) -> None:
    """Warn once per host and process."""
    LOG.warning("the token is sent to %s in plain text: use https", ascii(host)[1:81])


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost" or host.endswith(".localhost")


@dataclass(frozen=True)
class ServiceAddress:
    """A service, the token of its client, and time limits."""

    url: str
    token: str = field(repr=False)
    connections: int = 10
    connect_seconds: float = 10.0
    answer_seconds: float = 30.0  # for one response, beyond the time that a request may wait
    wait_seconds: float = 10.0  # for a free connection

    def __post_init__(self) -> None:
        httpx = library()
        # Errors do not show a password in the URL: it would reach logs.
        shown = ascii(self.url).rpartition("@")[2][:80]
        try:
            url = httpx.URL(self.url)
        except (httpx.InvalidURL, TypeError):
            url = httpx.URL("")
        if url.scheme not in {"http", "https"} or not url.host or url.query or url.userinfo:
            raise Refused(f"url: expected a URL such as https://helix.example.org, got {shown}")
        token = self.token
        if not isinstance(token, str) or not token.isascii() or not token.strip().isprintable():
            raise Refused("token: expected a token of `helixq token create`, such as hx_...")
        if not token.strip():
            raise Refused("token: expected a token of `helixq token create`, got an empty string")
        if url.scheme == "http" and not _is_loopback(url.host):
            _warn_of_plain_text(url.host)

    def options(self) -> dict[str, Any]:
        httpx = library()
        url = httpx.URL(self.url)
        return {
            "base_url": url,
            "headers": {"Authorization": f"Bearer {self.token.strip()}"},
            "timeout": httpx.Timeout(
                self.answer_seconds, connect=self.connect_seconds, pool=self.wait_seconds
            ),
            "limits": httpx.Limits(
                max_connections=self.connections,
                max_keepalive_connections=self.connections,
                keepalive_expiry=4.0,  # sooner than the service closes idle connections
            ),
            # Reading all certificates takes longer than a request, and plain HTTP needs none.
            "verify": url.scheme == "https" and _trusted(),
            "follow_redirects": False,
        }


def library() -> Any:
    """Return httpx; raise `NotInstalled` with the extra that provides it."""
    try:
        import httpx  # noqa: PLC0415 - comes with an extra
    except ImportError as error:
        raise NotInstalled("httpx", "worker") from error
    return httpx


def _trusted() -> ssl.SSLContext:
    """The usual certificate authorities, or only those of SSL_CERT_FILE if it is set."""
    try:
        context: ssl.SSLContext = library().create_ssl_context()
    except OSError as error:
        named = ascii(os.environ.get("SSL_CERT_FILE"))[:200]
        raise Refused(
            f"SSL_CERT_FILE: expected a file of certificates (PEM), got {named}: {error}"
        ) from error
    return context


class _ConnectionBase:
    def __init__(self, where: ServiceAddress) -> None:
        self.where = where
        self._closed = False
        self._spare_keys = False  # whether the service demands them

    def _lacks_a_key(self, call: HttpCall[Any], reply: Reply) -> bool:
        """Whether the service requires a key that the call left out; later calls then send it."""
        if self._spare_keys or not call.spare_key or reply.status != 400:
            return False
        self._spare_keys = kind_of(reply.body) == "missing-key"
        return self._spare_keys

    def _request(self, call: HttpCall[Any]) -> dict[str, Any]:
        headers = {}
        if call.body is not None:
            headers["Content-Type"] = "application/json"
        if call.key is not None and (self._spare_keys or not call.spare_key):
            headers["Idempotency-Key"] = call.key
        where = self.where
        request: dict[str, Any] = {
            "method": call.method,
            "url": call.path,
            "content": call.body,
            "headers": headers,
        }
        if call.seconds:
            request["timeout"] = library().Timeout(
                where.answer_seconds + call.seconds,
                connect=where.connect_seconds,
                pool=where.wait_seconds,
            )
        return request


class HttpConnection(_ConnectionBase):
    """For threads, which share it; a forked child gets its own connections."""

    def __init__(self, where: ServiceAddress) -> None:
        super().__init__(where)
        self._lock = threading.Lock()
        self._clients: dict[int, httpx.Client] = {}

    def run(self, call: HttpCall[T]) -> T:
        reply = self._send(call)
        if self._lacks_a_key(call, reply):
            reply = self._send(call)
        return call.read(reply)

    def _send(self, call: HttpCall[Any]) -> Reply:
        client = self._client()
        try:
            answer = client.send(client.build_request(**self._request(call)))
        except library().HTTPError as error:
            raise _unavailable(self.where, error) from error
        return Reply(answer.status_code, answer.headers, answer.content)

    def close(self) -> None:
        self._closed = True
        client = self._clients.pop(os.getpid(), None)
        if client is not None:
            client.close()

    def _client(self) -> httpx.Client:
        if self._closed:
            raise Unavailable(CLOSED, retry_after=math.inf)  # a repeat cannot succeed
        with self._lock:
            mine = self._clients.get(os.getpid())
            if mine is None:
                mine = self._clients[os.getpid()] = library().Client(**self.where.options())
            return mine


class AsyncHttpConnection(_ConnectionBase):
    """For tasks; each event loop has its own connections and closes them when it ends."""

    def __init__(self, where: ServiceAddress) -> None:
        super().__init__(where)
        self._keepers: dict[tuple[int, int], _Keeper] = {}

    async def run(self, call: HttpCall[T]) -> T:
        reply = await self._send(call)
        if self._lacks_a_key(call, reply):
            reply = await self._send(call)
        return call.read(reply)

    async def _send(self, call: HttpCall[Any]) -> Reply:
        client = await self._client()
        try:
            answer = await client.send(client.build_request(**self._request(call)))
        except library().HTTPError as error:
            raise _unavailable(self.where, error) from error
        return Reply(answer.status_code, answer.headers, answer.content)

    async def close(self) -> None:
        self._closed = True
        loop = asyncio.get_running_loop()
        keeper = self._keepers.pop((os.getpid(), id(loop)), None)
        if keeper is not None and keeper.loop is loop:
            await keeper.life.aclose()

    async def _client(self) -> httpx.AsyncClient:
        if self._closed:
            raise Unavailable(CLOSED, retry_after=math.inf)  # a repeat cannot succeed
        loop = asyncio.get_running_loop()
        place = (os.getpid(), id(loop))
        keeper = self._keepers.get(place)
        # A new loop can have the id of one that ended.
        if keeper is None or keeper.loop is not loop:
            self._keepers = {k: v for k, v in self._keepers.items() if not v.loop.is_closed()}
            keeper = self._keepers[place] = _Keeper(
                loop, library().AsyncClient(**self.where.options())
            )
            await anext(keeper.life)
        return keeper.client


class _Keeper:
    """The connections of one event loop.

    A loop closes its async generators when it ends, and `life` is one: it closes the connections.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, client: httpx.AsyncClient) -> None:
        self.loop = loop
        self.client = client
        self.life = self._live()

    async def _live(self) -> AsyncGenerator[None]:
        try:
            yield
        finally:
            await self.client.aclose()


CLOSED = "this client was closed; create a new one"


def _unavailable(where: ServiceAddress, error: Exception) -> Unavailable:
    httpx = library()
    what = str(error) or type(error).__name__
    if isinstance(error, httpx.PoolTimeout):
        return Unavailable(
            f"all {where.connections} connections of this client were in use for "
            f"{where.wait_seconds:g} s; raise `connections`, or use fewer threads or tasks"
        )
    if "CERTIFICATE_VERIFY_FAILED" in what:
        return Unavailable(
            f"the certificate of {where.url} is not trusted: {what}; "
            "set SSL_CERT_FILE to the certificate of your own authority",
            retry_after=math.inf,  # a worker outlives a certificate; other callers do not wait
        )
    if isinstance(error, httpx.ConnectError | httpx.ConnectTimeout):
        return Unavailable(
            f"no service answers at {where.url}: {what}; check the URL and that the service runs"
        )
    # At least part of the request was sent.
    return Unavailable(
        f"the service at {where.url} did not answer: {what}; repeat the call",
        outcome_unknown=True,
    )
