"""The receiver as an ASGI application: `app.mount("/webhooks", helix.webhook_app())`."""

from __future__ import annotations

import asyncio
import json
import logging
from typing import TYPE_CHECKING, Any, Final, TypeVar

from helixqueue.errors import (
    BadSignature,
    HelixError,
    Retryable,
    Unavailable,
    UnreadableDelivery,
)
from helixqueue.fence.http.application import path_seen
from helixqueue.fence.http.asgi import Disconnected, respond, whole_body
from helixqueue.fence.http.problem import PREFIX
from helixqueue.log.lines import event as log_event
from helixqueue.records.webhook import DeliveryAnswer
from helixqueue.webhook.operations import refusal_of
from helixqueue.webhook.source import ANSWER_SECONDS

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from helixqueue.fence.http.asgi import Receive, Scope, Send
    from helixqueue.webhook.operations import Received
    from helixqueue.webhook.receiver import Webhooks
    from helixqueue.webhook.receiver_async import AsyncWebhooks

T = TypeVar("T")
MAX_BODY_BYTES: Final = 1024 * 1024
BODY_SECONDS: Final = 15.0
_log = logging.getLogger("helixqueue.webhook")
_tasks: set[asyncio.Task[Any]] = set()
_Reply = tuple[int, dict[str, Any], str | None]  # status, body, decision


class WebhookApp:
    """Receives `POST /{source}` for one client. Effects of a sync client run in threads."""

    def __init__(self, webhooks: AsyncWebhooks | Webhooks) -> None:
        self._webhooks = webhooks

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        source = path_seen(scope).removeprefix("/")
        try:
            reply = await self._reply(scope, source, receive)
        except Disconnected:
            return
        status, content, decision = reply
        headers = [
            (b"content-type", b"application/json" if status < 400 else b"application/problem+json"),
            (b"cache-control", b"no-store"),
        ]
        headers += [] if decision is None else [(b"helix-decision", decision.encode())]
        headers += [(b"retry-after", b"1")] if status == 503 else []
        headers += [(b"www-authenticate", b"Signature")] if status == 401 else []
        await respond(send, status, headers, json.dumps(content).encode())

    async def _reply(self, scope: Scope, source: str, receive: Receive) -> _Reply:
        if scope["method"] != "POST":
            return _problem(405, "method-not-allowed", "the path supports POST")
        try:
            async with asyncio.timeout(BODY_SECONDS):
                body = await whole_body(receive, MAX_BODY_BYTES)
        except TimeoutError:
            return _problem(408, "too-slow", f"expected the body within {BODY_SECONDS:g} s")
        if body is None:
            return _problem(413, "body-too-large", f"expected at most {MAX_BODY_BYTES} bytes")
        try:
            webhooks, headers = self._webhooks, list(scope["headers"])
            received = await _run(webhooks.authenticate, source, headers, body)
            return reply_of(received, await in_time(received, _run(webhooks.process, received)))
        except HelixError as error:
            return _problem_of(error, source)


async def _run(function: Callable[..., Any], *arguments: Any) -> Any:  # noqa: ANN401 - of the function
    if asyncio.iscoroutinefunction(function):
        return await function(*arguments)
    return await asyncio.to_thread(function, *arguments)


async def in_time(received: Received, work: Coroutine[Any, Any, T]) -> T | DeliveryAnswer:
    """What the work returns, or `in_progress` before the provider stops waiting: it goes on."""
    task = asyncio.create_task(work)
    _tasks.add(task)  # the event loop does not keep it
    task.add_done_callback(_tasks.discard)
    done, _ = await asyncio.wait({task}, timeout=ANSWER_SECONDS[received.source.scheme])
    return task.result() if done else DeliveryAnswer("in_progress", *[None] * 6)


def reply_of(received: Received, answer: DeliveryAnswer | None) -> _Reply:
    """Status, body and decision of the response, as the service answers."""
    if received.challenge is not None:
        return 200, {"challenge": received.challenge}, None
    event = received.event
    if answer is None or event is None:
        return 200, {"decision": "ignored", "effect": None}, "ignored"
    log_event(
        _log, logging.INFO, "webhook", decision=answer.decision, effect_id=answer.effect,
        source_type="webhook", source_id=f"{event.source} {event.delivery_id}",
    )  # fmt: skip
    refused = refusal_of(received, answer)
    if refused is not None:
        return _problem(refused.status, refused.kind, refused.detail, **refused.members)
    return 200, {"decision": answer.outcome, "effect": answer.effect}, answer.decision


def _problem_of(error: HelixError, source: str) -> _Reply:
    match error:
        case BadSignature():
            log_event(_log, logging.WARNING, "webhook", decision="refused", reason=error.reason)
            return _problem(401, error.kind, str(error))
        case UnreadableDelivery():
            return _problem(400, error.kind, str(error))
        case Retryable() | Unavailable():
            return _problem(503, "unavailable", "send the event again")
    _log.error("webhook %s failed", ascii(source)[:63], exc_info=error)
    return _problem(500, "internal", "the effect failed and was rolled back; send the event again")


def _problem(status: int, kind: str, detail: str, **members: Any) -> _Reply:  # noqa: ANN401 - JSON
    return status, {"type": PREFIX + kind, "status": status, "detail": detail, **members}, None
