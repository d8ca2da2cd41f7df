"""One client's connection: however little it says, or takes, it holds its place for so long alone.

uvicorn lets a connection go that is idle after an answer, and leaves three open for good: from
which nothing came yet, from which part of a head came, and whose client does not read. It has no
bound on a head either, with the parser that is used here. What a body may be, and how long it may
take, is the gate's; held requests and streams end by themselves.
"""

from __future__ import annotations

import uuid
from collections.abc import Collection
from typing import TYPE_CHECKING, Any, ClassVar, Final

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from helixqueue.service.problems import Problem

if TYPE_CHECKING:
    import asyncio

    from helixqueue.service.admission import Admission

MAX_HEAD_BYTES: Final = 32 * 1024
LAST_SECONDS: Final = 0.3  # longer than a request is on its way


class WaitingConnections:
    """Connections of one service that have no request under way, those of longest silence first."""

    def __init__(self, gate: Admission) -> None:
        self.settings = gate.service.settings
        self.metrics = gate.service.metrics
        self.new: dict[TimedConnection, None] = {}  # from which nothing whole ever came
        self.idle: dict[TimedConnection, None] = {}

    def make_room(self, connections: Collection[Any]) -> None:
        """Rather of the new than of those who had an answer; the newest goes if no other can."""
        self.metrics.connections = len(connections)
        if len(connections) > self.settings.max_connections:
            waiting = self.new if len(self.new) > 1 else self.idle or self.new
            next(iter(waiting)).let_go("room")


class TimedConnection(HttpToolsProtocol):
    lobby: ClassVar[WaitingConnections]
    _deadline: asyncio.TimerHandle | None = None  # for the next head, when none is being answered
    _stalled: asyncio.TimerHandle | None = None  # for the client to read
    _unread_bytes = 0  # that came since the last of a head or of a body
    _is_leaving = False  # the next answer is the last

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._expect_head(self.lobby.settings.head_seconds, self.lobby.new)
        self.lobby.make_room(self.connections)

    def connection_lost(self, exc: Exception | None) -> None:
        self._expect_no_head()
        self.resume_writing()
        super().connection_lost(exc)
        self.lobby.metrics.connections = len(self.connections)

    def data_received(self, data: bytes) -> None:
        self._unread_bytes += len(data)
        super().data_received(data)
        if self._unread_bytes > MAX_HEAD_BYTES and not self.transport.is_closing():
            self._refuse(
                Problem("head-too-large", f"a head has at most {MAX_HEAD_BYTES} bytes", got="more")
            )

    def on_headers_complete(self) -> None:
        self._unread_bytes = 0
        self._expect_no_head()
        super().on_headers_complete()
        if self._is_leaving:
            self.cycle.keep_alive = False

    def on_body(self, body: bytes) -> None:
        self._unread_bytes = 0
        super().on_body(body)

    def on_message_complete(self) -> None:
        self._unread_bytes = 0
        super().on_message_complete()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if self.cycle.response_complete:  # else the next request was here already
            # uvicorn's own limit ends when a byte comes, and this one with the whole head.
            seconds = self.timeout_keep_alive + self.lobby.settings.head_seconds
            self._expect_head(seconds, self.lobby.idle)

    def pause_writing(self) -> None:
        super().pause_writing()
        seconds = self.lobby.settings.read_seconds
        self._stalled = self.loop.call_later(seconds, self.let_go, "unread")

    def resume_writing(self) -> None:
        if self._stalled is not None:
            self._stalled.cancel()
            self._stalled = None
        super().resume_writing()

    def shutdown(self) -> None:
        """The service ends. Who rests here may have sent a request before it could know.

        To close at once would lose that one: a proxy answers 502, since it cannot tell whether it
        was done.
        """
        if self.cycle is None or self.cycle.response_complete:
            self._is_leaving = True
            self.loop.call_later(LAST_SECONDS, super().shutdown)
        else:
            super().shutdown()

    def send_400_response(self, msg: str) -> None:
        self._refuse(Problem("not-http", msg))

    def let_go(self, why: str) -> None:
        self.lobby.metrics.let_go(why)
        self._expect_no_head()
        self.transport.abort()  # what it did not read, it would not read later

    def _expect_head(self, seconds: float, place: dict[TimedConnection, None]) -> None:
        self._expect_no_head()
        self._deadline = self.loop.call_later(seconds, self.let_go, "silent")
        place[self] = None

    def _expect_no_head(self) -> None:
        self.lobby.new.pop(self, None)
        self.lobby.idle.pop(self, None)
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _refuse(self, problem: Problem) -> None:
        """What never became a request is answered here, and is the last of the connection."""
        self.lobby.metrics.turned_away(problem.kind)
        answer = problem.response(uuid.uuid4().hex)
        lines = [
            f"HTTP/1.1 {problem.status_code} {problem.title}".encode(),
            *(name + b": " + value for name, value in answer.raw_headers),
            b"connection: close",
        ]
        self.transport.write(b"\r\n".join([*lines, b"", answer.body]))
        self.transport.close()


def connections_of(gate: Admission) -> type[TimedConnection]:
    """The connections of one service, as a server wants them: a class without arguments."""
    return type("TimedConnection", (TimedConnection,), {"lobby": WaitingConnections(gate)})
