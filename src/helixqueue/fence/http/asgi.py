"""The parts of ASGI that the middleware uses."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, MutableMapping
from typing import Any

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]
Header = tuple[bytes, bytes]


class Disconnected(Exception):
    """The client disconnected before the end of its request: nothing was done."""


def header_values(headers: Iterable[Header], name: str) -> list[bytes]:
    wanted = name.lower().encode()
    return [value for key, value in headers if key.lower() == wanted]


def header_text(headers: Iterable[Header], name: str) -> str:
    """The first value of a header; "" when there is none."""
    values = header_values(headers, name)
    return values[0].decode("latin-1").strip() if values else ""


async def whole_body(receive: Receive, max_bytes: int) -> bytes | None:
    """The body of the request; None when it has more than `max_bytes` bytes."""
    pieces: list[bytes] = []
    size = 0
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise Disconnected
        piece = message.get("body", b"")
        size += len(piece)
        if size > max_bytes:
            return None
        if piece:  # a client may send any number of empty pieces
            pieces.append(piece)
        if not message.get("more_body", False):
            return b"".join(pieces)


class BodyReceiver:
    """The application's `receive`: the body, then nothing. A disconnect is not passed on."""

    def __init__(self, body: bytes) -> None:
        self._message: Message | None = {"type": "http.request", "body": body, "more_body": False}

    async def __call__(self) -> Message:
        if self._message is None:
            await asyncio.Event().wait()  # until the application is cancelled
        message, self._message = self._message, None
        assert message is not None  # noqa: S101 - the wait above does not end
        return message


async def respond(send: Send, status: int, headers: list[Header], body: bytes) -> None:
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
