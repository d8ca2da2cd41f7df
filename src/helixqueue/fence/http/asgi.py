"""The few words of ASGI that the middleware speaks."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, MutableMapping
from typing import Any

from helixqueue.fence.http.header import values

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]
Header = tuple[bytes, bytes]


class Disconnected(Exception):
    """The client went away before it had said everything: nothing was done."""


async def whole_body(receive: Receive, most: int) -> bytes | None:
    """The request's body; None when it has more than `most` bytes."""
    pieces: list[bytes] = []
    size = 0
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise Disconnected
        piece = message.get("body", b"")
        size += len(piece)
        if size > most:
            return None
        if piece:  # a client may send any number of empty ones
            pieces.append(piece)
        if not message.get("more_body", False):
            return b"".join(pieces)


class Given:
    """An application's `receive`: the body, then silence. That a client went away is not told."""

    def __init__(self, body: bytes) -> None:
        self._message: Message | None = {"type": "http.request", "body": body, "more_body": False}

    async def __call__(self) -> Message:
        if self._message is None:
            await asyncio.Event().wait()  # until whoever listens is cancelled
        message, self._message = self._message, None
        assert message is not None  # noqa: S101 - the wait above does not end
        return message


async def respond(send: Send, status: int, headers: list[Header], body: bytes) -> None:
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


def text_of(headers: Iterable[Header], name: str) -> str:
    """The first value of a header; "" when there is none."""
    found = values(headers, name)
    return found[0].decode("latin-1").strip() if found else ""
