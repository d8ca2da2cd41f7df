"""Time and size limits for slow clients.

uvicorn closes connections that are idle after a response. It keeps three kinds open forever: those
that have sent nothing, those that have sent part of a request head, and those whose client does not
read. With httptools it does not limit the size of a head either. Admission limits the body;
waiting requests and streams have their own limits.
"""

from __future__ import annotations

import uuid
from collections.abc import Collection
from typing import TYPE_CHECKING, Any, ClassVar, Final

import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from helixqueue.errors import Refused
from helixqueue.service.problems import Problem

if TYPE_CHECKING:
    import asyncio

    from helixqueue.service.service import Service

MAX_HEAD_BYTES: Final = 32 * 1024
# After the last response, while the client still sends: for so long it may read that response.
LINGER_SECONDS: Final = 5.0
SHUTDOWN_SECONDS: Final = 0.3  # longer than a request takes to arrive
# What uvicorn calls. Under another name in a later release, a limit would silently not apply.
HOOKS: Final = (
    "connection_made", "connection_lost", "data_received", "on_message_begin", "on_url",
    "on_header", "on_headers_complete", "on_body", "on_message_complete", "on_response_complete",
    "pause_writing", "resume_writing", "shutdown", "send_400_response",
)  # fmt: skip


class IdleConnections:
    """Connections of one service without a request in progress, the longest idle first."""

    def __init__(self, service: Service) -> None:
        self.settings = service.settings
        self.metrics = service.metrics
        self.stopping = service.stopping
        self.new: dict[TimedConnection, None] = {}  # that have never sent a complete head
        self.idle: dict[TimedConnection, None] = {}

    def enforce_limit(self, connections: Collection[Any]) -> None:
        """Close a connection beyond the limit, preferably one that has never sent a request."""
        self.metrics.connections = len(connections)
        if len(connections) > self.settings.max_connections:
            waiting = self.new if len(self.new) > 1 else self.idle or self.new
            next(iter(waiting)).cut("room")


class TimedConnection(HttpToolsProtocol):
    tracker: ClassVar[IdleConnections]
    _deadline: asyncio.TimerHandle | None = (
        None  # for the next head, when no request is in progress
    )
    _stalled: asyncio.TimerHandle | None = None  # for the client to read the response
    _head_bytes = 0  # received since the last complete head or part of a body
    _head_size = 0  # of the URL and the headers of the current head
    _is_in_head = False
    _is_refused = False  # the connection has its last response
    _is_closing = False  # the next response is the last
    _lingering: LingeringTransport

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._lingering = LingeringTransport(self)
        self._start_timer(self.tracker.settings.head_seconds, self.tracker.new)
        self.tracker.enforce_limit(self.connections)

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_timer()
        self.resume_writing()
        super().connection_lost(exc)
        self.tracker.metrics.connections = len(self.connections)

    def data_received(self, data: bytes) -> None:
        if self._is_refused:
            return
        self._head_bytes += len(data)
        super().data_received(data)
        cycle = self.cycle
        if cycle is not None and cycle.more_body and not cycle.response_complete:
            # The rest of the body stays with the client until admission has memory for it.
            self.flow.pause_reading()
        # A head that is not complete, or trailers.
        if self._head_bytes > MAX_HEAD_BYTES and not self.transport.is_closing():
            self._refuse_head()

    def on_message_begin(self) -> None:
        self._is_in_head = True
        self._head_size = 0
        super().on_message_begin()

    def on_url(self, url: bytes) -> None:
        self._head_size += len(url)
        super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        # After the body these are trailers. They must not become headers of a request that has
        # been admitted without them.
        if self._is_in_head:
            self._head_size += len(name) + len(value) + len(": \r\n")
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        self._is_in_head = False
        self._head_bytes = 0
        self._stop_timer()
        if self._head_size > MAX_HEAD_BYTES:
            # A head that arrived complete, in one read.
            self._refuse_head()
        if self._is_refused:
            return
        super().on_headers_complete()
        self.cycle.transport = self._lingering  # type: ignore[assignment]
        if self._is_closing:
            self.cycle.keep_alive = False

    def on_body(self, body: bytes) -> None:
        self._head_bytes = 0
        if not self._is_refused:
            super().on_body(body)

    def on_message_complete(self) -> None:
        self._head_bytes = 0
        if not self._is_refused:
            super().on_message_complete()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if self.cycle.response_complete:  # else the next request has arrived already
            # uvicorn's limit ends with the first byte, this one with the complete head.
            seconds = self.timeout_keep_alive + self.tracker.settings.head_seconds
            self._start_timer(seconds, self.tracker.idle)

    def pause_writing(self) -> None:
        super().pause_writing()
        seconds = self.tracker.settings.read_seconds
        self._stalled = self.loop.call_later(seconds, self.cut, "unread")

    def resume_writing(self) -> None:
        if self._stalled is not None:
            self._stalled.cancel()
            self._stalled = None
        super().resume_writing()

    def shutdown(self) -> None:
        """Shut down; an idle connection may still receive a request that is on its way.

        Closing at once would lose that request: a proxy responds 502, because it cannot know
        whether the request was processed.
        """
        self.tracker.stopping.set()
        if self.cycle is None or self.cycle.response_complete:
            self._is_closing = True
            self.loop.call_later(SHUTDOWN_SECONDS, super().shutdown)
        else:
            super().shutdown()

    def send_400_response(self, msg: str) -> None:
        self._respond(Problem("not-http", msg))

    def cut(self, reason: str) -> None:
        self.tracker.metrics.count_cut_connection(reason)
        self._stop_timer()
        self.transport.abort()  # drops what the client has not read

    def _start_timer(self, seconds: float, group: dict[TimedConnection, None]) -> None:
        self._stop_timer()
        self._deadline = self.loop.call_later(seconds, self.cut, "silent")
        group[self] = None

    def _stop_timer(self) -> None:
        self.tracker.new.pop(self, None)
        self.tracker.idle.pop(self, None)
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _refuse_head(self) -> None:
        detail = f"a request head has at most {MAX_HEAD_BYTES} bytes"
        self._respond(Problem("head-too-large", detail, got="more"))

    def _respond(self, problem: Problem) -> None:
        """Respond to bytes that are not a request, and close the connection."""
        self._is_refused = True
        self.tracker.metrics.count_problem(problem.kind)
        response = problem.response(uuid.uuid4().hex)
        lines = [
            f"HTTP/1.1 {problem.status_code} {problem.title}".encode(),
            *(name + b": " + value for name, value in response.raw_headers),
            b"connection: close",
        ]
        self.transport.write(b"\r\n".join([*lines, b"", response.body]))
        self.linger()

    def linger(self) -> None:
        """Close the connection when the client has read the response and stopped sending.

        Closed at once, with bytes unread, the connection is reset: a client that sends its whole
        request before it reads would lose the response.
        """
        self._is_refused = True
        if self.transport.is_closing():
            return
        self.flow.resume_reading()
        self.transport.write_eof()
        self._start_timer(LINGER_SECONDS, self.tracker.idle)


class LingeringTransport:
    """What uvicorn sends a response to: `close` waits if the body of the request is incomplete."""

    def __init__(self, connection: TimedConnection) -> None:
        self._connection = connection
        self.write = connection.transport.write
        self.is_closing = connection.transport.is_closing

    def close(self) -> None:
        if self._connection.cycle.more_body:
            self._connection.linger()
        else:
            self._connection.transport.close()


def connection_class(service: Service) -> type[TimedConnection]:
    """The protocol class of a service; uvicorn takes a class without further arguments."""
    if missing := [name for name in HOOKS if not hasattr(HttpToolsProtocol, name)]:
        raise Refused(
            f"uvicorn: expected a release whose HTTP protocol has {', '.join(missing)}, got "
            f"{uvicorn.__version__}, with which limits on slow clients would not apply; "
            "install uvicorn 0.54"
        )
    return type("TimedConnection", (TimedConnection,), {"tracker": IdleConnections(service)})
