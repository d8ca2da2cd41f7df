"""Holds the response of an application back until it is sealed."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from tempfile import SpooledTemporaryFile
from typing import Final

from helixqueue.fence.http.asgi import Header, Message, Send, header_text

# Called with status, headers and body (None: not kept) before the first byte is sent. Returns the
# headers to add.
Decide = Callable[[int, list[Header], bytes | None], Awaitable[list[Header]]]

# Set by the application: "none" for no effect, else the id of the effect.
EFFECT_HEADER: Final = "idempotency-effect"
# A response that takes longer is a stream: it is sealed without its body.
STREAM_SECONDS: Final = 1.0
_CHUNK: Final = 1024 * 1024


class Recorder:
    """The application's `send`."""

    def __init__(
        self, send: Send, decide: Decide, max_bytes: int, *, until_end: bool = False
    ) -> None:
        self._send = send
        self._decide = decide
        self._max_bytes = max_bytes
        self._until_end = until_end  # decide when the response is complete, however large it is
        self._start: Message | None = None
        # What exceeds the memory of one answer is on disk.
        self._held = SpooledTemporaryFile(max(max_bytes, 1))  # noqa: SIM115 - see `close`
        self._size = 0
        self._began = 0.0
        self.decided = False
        # Why nothing was sent: an application may swallow what `send` raises.
        self.failure: Exception | None = None

    async def __call__(self, message: Message) -> None:
        if self.failure is not None:
            return
        if self.decided:
            await self._send(message)
        elif message["type"] == "http.response.start":
            self._start = message
            self._began = time.monotonic()
            if self._is_event_stream():
                await self._send_held(None)
        elif message["type"] == "http.response.body":
            await self._body(message)

    def close(self) -> None:
        """To be called when the application has ended."""
        self._held.close()

    async def _body(self, message: Message) -> None:
        piece = message.get("body", b"")
        more = message.get("more_body", False)
        self._held.write(piece)
        self._size += len(piece)
        is_large = self._size > self._max_bytes
        if not more:
            await self._send_held(None if is_large else self._content(), more=False)
        elif not self._until_end and (is_large or time.monotonic() - self._began > STREAM_SECONDS):
            await self._send_held(None)

    def _content(self) -> bytes:
        self._held.seek(0)
        return self._held.read()

    def _is_event_stream(self) -> bool:
        assert self._start is not None  # noqa: S101 - just received
        return header_text(self._start.get("headers", ()), "content-type").startswith(
            "text/event-stream"
        )

    async def _send_held(self, kept: bytes | None, *, more: bool = True) -> None:
        """Decide, then send what was held back."""
        assert self._start is not None  # noqa: S101 - a body follows its start
        headers = [(bytes(n), bytes(v)) for n, v in self._start.get("headers", ())]
        self.decided = True
        try:
            added = await self._decide(int(self._start["status"]), headers, kept)
        except Exception as error:
            self.failure = error
            raise
        shown = [(n, v) for n, v in headers if n.lower() != EFFECT_HEADER.encode()]
        await self._send({**self._start, "headers": [*shown, *added]})
        self._held.seek(0)
        chunk = self._held.read(_CHUNK)
        while following := self._held.read(_CHUNK):
            await self._send({"type": "http.response.body", "body": chunk, "more_body": True})
            chunk = following
        if chunk or not more:
            await self._send({"type": "http.response.body", "body": chunk, "more_body": more})
