"""Deliveries of webhooks: the signature in place of a token.

An unknown source and a bad signature get the same response; the reason is in the request log.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING, Annotated, Any, Final

from fastapi import Path
from pydantic import BaseModel
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from helixqueue.engine import webhooks as calls
from helixqueue.engine.call_set import POSTGRES_CALLS
from helixqueue.errors import BadSignature, UnreadableDelivery
from helixqueue.failpoints import failpoint
from helixqueue.identity import is_name
from helixqueue.operations.batches import Operations
from helixqueue.operations.instructions import Execute, Instruction
from helixqueue.postgres.tenant_sessions import InvalidToken
from helixqueue.records.parameter import NAME_PATTERN
from helixqueue.service.admission import OPEN_LIMIT_KEY
from helixqueue.service.costs import ANONYMOUS
from helixqueue.service.problems import Problem
from helixqueue.service.routing import RawBodyDep, RequestLogDep, ServiceDep, operation, router
from helixqueue.webhook.asgi import in_time
from helixqueue.webhook.operations import Received, authenticate, refusal_of, submit_event

if TYPE_CHECKING:
    from helixqueue.records.webhook import DeliveryAnswer
    from helixqueue.service.service import Service

routes = router("webhooks")
RETRY_SECONDS: Final = 1.0
DECISION_HEADER: Final = "Helix-Decision"
# Documented, not validated: an impossible name gets the response of an unknown source.
_NAME: Final[dict[str, Any]] = {"json_schema_extra": {"pattern": NAME_PATTERN}}


class DeliveryResponse(BaseModel):
    """The same for every delivery of an event; the header Helix-Decision says what this one was."""

    decision: str
    effect: str | None = None


@routes.post(
    "/v1/webhooks/{tenant}/{source}",
    response_model=DeliveryResponse,
    name="receive_webhook",
    summary="Receive a delivery of a webhook",
    **operation(
        "open", "bad-signature", "unreadable-delivery", "reused-event-id", "superseded",
        "delivery-in-progress", "body-too-large", "too-many-requests", signed=True,
    ),
)  # fmt: skip
async def receive_webhook(
    tenant: Annotated[str, Path(description="Name of the tenant.", examples=["a"], **_NAME)],
    source: Annotated[str, Path(description="Name of the source.", examples=["stripe"], **_NAME)],
    *,
    request: Request,
    raw_body: RawBodyDep,
    service: ServiceDep,
    request_log: RequestLogDep,
) -> Response:
    """The body is read as JSON only after its signature holds.

    Dedupe row, order and batch commit together, before the response. An address that sends too many
    deliveries without a valid signature gets 429.
    """
    session = _Session(service, tenant, source)
    request_log.add(source_type="webhook")
    try:
        received = await session.authenticate(request.headers.raw, raw_body)
    except BadSignature as error:
        request_log.warn(tenant=tenant if is_name(tenant) else None, reason=error.reason)
        raise
    except UnreadableDelivery:
        request.scope[OPEN_LIMIT_KEY].give_back()  # its signature is valid
        raise
    request.scope[OPEN_LIMIT_KEY].give_back()  # counted by admission
    request_log.add(tenant=tenant)
    event, mapping = received.event, received.mapping
    if received.challenge is not None or event is None:
        return JSONResponse({"challenge": received.challenge})
    request_log.add(source_id=f"{source} {event.delivery_id}")
    if mapping is None:
        request_log.add(decision="ignored")
        return _response("ignored", "ignored", None)
    if mapping.queue is None:
        raise Problem(
            "not-ready",
            f"events {event.type[:100]} of {source} are for an application with a Python effect",
            retry_after=60,
        )
    answer = await in_time(received, session.submit(received))
    failpoint("webhook.committed")
    request_log.add(decision=answer.decision, effect_id=answer.effect)
    refused = refusal_of(received, answer)
    if refused is not None:
        in_progress = refused.kind == "delivery-in-progress"
        raise Problem(
            refused.kind,
            refused.detail,
            retry_after=RETRY_SECONDS if in_progress else None,
            **refused.members,
        )
    return _response(answer.decision, answer.outcome, answer.effect)


def _response(decision: str, outcome: str | None, effect: str | None) -> Response:
    content = {"decision": outcome, "effect": effect}
    return JSONResponse(content, headers={DECISION_HEADER: decision})


class _Session:
    """Runs the calls of one delivery for the tenant of its path."""

    def __init__(self, service: Service, tenant: str, source: str) -> None:
        self._service, self._tenant, self._source = service, tenant, source
        self._authentic = False
        self._assume = calls.assume_source(
            tenant=tenant, name=source, milliseconds=service.sessions.time_limit
        )

    async def authenticate(self, headers: list[tuple[bytes, bytes]], body: bytes) -> Received:
        """Raise `BadSignature` unless the body has a valid signature of the source."""
        stored = None
        if is_name(self._tenant) and is_name(self._source):
            with suppress(InvalidToken):
                stored = await self._run(calls.find_secrets(tenant=self._tenant, name=self._source))
        received = await self._service.compute.run_if_large(
            body, ANONYMOUS, authenticate, stored, headers, body
        )
        self._authentic = True
        return received

    async def submit(self, received: Received) -> DeliveryAnswer:
        operations = Operations(
            POSTGRES_CALLS,
            tenant=self._tenant,
            actor=None,
            retry_seconds=self._service.settings.retry_seconds,
            logs_identities=False,
        )
        instructions = submit_event(operations, received)
        return await self._service.compute.run_instructions(
            self._tenant, instructions, self._perform
        )

    async def _perform(self, instruction: Instruction) -> Any:  # noqa: ANN401 - of any call
        if isinstance(instruction, Execute):
            return await self._run(instruction.call)
        await asyncio.sleep(instruction.seconds)
        return None

    async def _run(self, call: Any) -> Any:  # noqa: ANN401 - any call
        # Deliveries that are not authentic take connections as one tenant.
        tenant = self._tenant if self._authentic else ANONYMOUS
        return await self._service.sessions.run_as(self._assume, call, tenant=tenant)
