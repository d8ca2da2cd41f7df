"""What is sent to the client: adds the headers of every response, and waits for its turn."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from helixqueue.fence.http.recorder import EFFECT_HEADER
from helixqueue.service.costs import ANONYMOUS, cost_of_sending

if TYPE_CHECKING:
    from helixqueue.fence.http.asgi import Message, Send
    from helixqueue.log.requests import RequestLog
    from helixqueue.service.costs import LoopTime

CLIENT_CLOSED: Final = 499  # the status in log and metrics when nothing was sent
_EFFECT_HEADER: Final = EFFECT_HEADER.lower().encode()
# Responses are data: browsers must not render them as pages. Pages have their own policy.
_HEADERS: Final = (
    (b"cache-control", b"no-store"),
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (b"content-security-policy", b"default-src 'none'; frame-ancestors 'none'"),
)


class ResponseSender:
    """The server's `send`, which notes the status and adds the headers of every response."""

    def __init__(self, send: Send, request_log: RequestLog, loop_time: LoopTime) -> None:
        self._send = send
        self._request_log = request_log
        self._loop_time = loop_time
        self.tenant = ANONYMOUS
        self.status = CLIENT_CLOSED

    async def __call__(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            headers = [(b"x-request-id", self._request_log.request_id.encode())]
            names = set()
            for name, value in message["headers"]:
                lower = name.lower()
                names.add(lower)
                if lower == b"idempotency-replayed":
                    self._request_log.add(decision="repeated")
                if lower != _EFFECT_HEADER:  # internal
                    headers.append((name, value))
            headers += [header for header in _HEADERS if header[0] not in names]
            message = {**message, "headers": headers}
        elif cost := cost_of_sending(message.get("body", b"")):
            await self._loop_time.take(self.tenant, cost)
        await self._send(message)
