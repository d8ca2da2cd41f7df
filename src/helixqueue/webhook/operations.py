"""What administrators do with sources of webhooks, and how a delivery is received."""

from __future__ import annotations

import time
from secrets import randbits
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal, NamedTuple

from helixqueue.errors import BadSignature, NoSuchWebhook, NotPermitted, Refused
from helixqueue.identity import diff, loads
from helixqueue.operations import engine
from helixqueue.operations.instructions import Instructions
from helixqueue.operations.message import Poison, poison_of
from helixqueue.operations.operation import operation
from helixqueue.operations.prepare import prepare
from helixqueue.records.page import Page
from helixqueue.records.parameter import NAME_PATTERN, Cursor, Limit, Param
from helixqueue.records.submission import Submission, SubmissionRow
from helixqueue.records.webhook import (
    AppliedSource,
    DeliveryAnswer,
    DeliveryRow,
    RotatedSecret,
    StoredDelivery,
    WebhookSourceRow,
)
from helixqueue.webhook import event as events
from helixqueue.webhook.event import WebhookEvent
from helixqueue.webhook.schemes import SECRET_BYTES, check_secret, verify
from helixqueue.webhook.source import WebhookMapping, WebhookSource, source_of, stored_source

if TYPE_CHECKING:
    from collections.abc import Iterable

    from helixqueue.engine.webhooks import SourceSecrets
    from helixqueue.fence.http.asgi import Header
    from helixqueue.operations.batches import Operations

OVERLAP_SECONDS: Final = 86_400.0
OVERLAP_SECONDS_MAX: Final = 30 * 86_400.0
SourceName = Annotated[
    str, Param("Name of the source.", "stripe", pattern=NAME_PATTERN, metavar="NAME")
]
Definition = Annotated[
    dict[str, Any],
    Param(
        "Scheme, mappings and settings, as one source of the YAML file.",
        {"scheme": "stripe", "mappings": [{"events": "invoice.paid", "queue": "basecall"}]},
        metavar="JSON",
    ),
]
Secret = Annotated[
    str,
    Param(
        "The secret that the provider shows. It is stored and never shown.",
        "whsec_C2FVsBQIhrscChlQIMV+b5sSYspob7oD", length=SECRET_BYTES[1],
    ),
]  # fmt: skip
Overlap = Annotated[
    float,
    Param(
        "How long the earlier secrets stay valid.", OVERLAP_SECONDS, least=0,
        most=OVERLAP_SECONDS_MAX, metavar="SECONDS",
    ),
]  # fmt: skip


@operation("GET /v1/webhook-sources", scope="read")
def list_sources(operations: Operations) -> Instructions[Page[WebhookSourceRow]]:
    """List the sources of webhooks by name.

    A secret is never shown; `secrets` is the number of valid ones. A token that is restricted to
    queues sees the sources of those.
    """
    page = yield from operations.ask(engine.webhooks.list_sources(tenant=operations.tenant))
    return Page(tuple(row for row in page.rows if _may_use(operations, row)), None)


@operation("GET /v1/webhook-sources/{name}", scope="read", raises=[NoSuchWebhook])
def show_source(operations: Operations, name: SourceName) -> Instructions[WebhookSourceRow]:
    """Show a source with its mappings.

    A secret is never shown; `secrets` is the number of valid ones.
    """
    row = yield from _find(operations, name)
    if row is None or not _may_use(operations, row):
        raise NoSuchWebhook(
            f"the tenant has no source of webhooks {name}; see `helixq webhook list`"
        )
    return row


@operation("PUT /v1/webhook-sources/{name}", scope="admin")
def apply_source(
    operations: Operations, name: SourceName, *, definition: Definition
) -> Instructions[AppliedSource]:
    """Create or replace a source of webhooks. Repeating it changes nothing.

    A source without a secret refuses every delivery.
    """
    source = source_of({**definition, "name": name})
    for queue in queues_of(source):
        operations.require_queue(queue)
    row = yield from _find(operations, name)
    if row is not None and not _may_use(operations, row):
        raise NotPermitted(f"the token does not permit the queues of source {name}")
    answer = yield from operations.ask(
        engine.webhooks.apply_source(
            tenant=operations.tenant,
            name=name,
            scheme=source.scheme,
            definition=source.text(),
            actor=operations.actor,
        )
    )
    return AppliedSource(name, answer)


@operation("POST /v1/webhook-sources/{name}/rotate", scope="admin", raises=[NoSuchWebhook])
def rotate_secret(
    operations: Operations,
    name: SourceName,
    *,
    secret: Secret,
    overlap_seconds: Overlap = OVERLAP_SECONDS,
) -> Instructions[RotatedSecret]:
    """Add the secret of a source, which is stored and never shown.

    The earlier ones stay valid for `overlap_seconds`. Repeating it with the same secret changes
    nothing.
    """
    source = yield from show_source(operations, name)
    number = yield from operations.ask(
        engine.webhooks.rotate_secret(
            tenant=operations.tenant,
            name=name,
            secret=check_secret(source_of({**source.definition}).scheme, secret.encode()),
            overlap_seconds=overlap_seconds,
            actor=operations.actor,
        )
    )
    if number is None:  # never: nothing deletes a source
        raise NoSuchWebhook(f"the tenant has no source of webhooks {name}")
    return RotatedSecret(name, number)


@operation("GET /v1/webhook-sources/{name}/deliveries", scope="read", raises=[NoSuchWebhook])
def list_deliveries(
    operations: Operations, name: SourceName, *, after: Cursor | None = None, limit: Limit = 50
) -> Instructions[Page[DeliveryRow]]:
    """List the deliveries of a source, newest first.

    Duplicates and conflicts are counted at the first delivery of their event.
    """
    yield from show_source(operations, name)
    return (
        yield from operations.ask(
            engine.webhooks.list_deliveries(
                tenant=operations.tenant, name=name, after=after, limit=limit
            )
        )
    )


def _find(operations: Operations, name: str) -> Instructions[WebhookSourceRow | None]:
    page = yield from operations.ask(
        engine.webhooks.list_sources(tenant=operations.tenant, name=name)
    )
    return page.rows[0] if page.rows else None


def queues_of(source: WebhookSource) -> set[str]:
    return {mapping.queue for mapping in source.mappings if mapping.queue is not None}


def _may_use(operations: Operations, row: WebhookSourceRow) -> bool:
    """Whether the token permits every queue to which the source submits."""
    return operations.may_use(None) or all(
        map(operations.may_use, queues_of(source_of({**row.definition})))
    )


class Received(NamedTuple):
    """An authentic delivery: an event with its mapping, or a challenge to answer."""

    source: WebhookSource
    event: WebhookEvent | None
    mapping: WebhookMapping | None = None
    poison: Poison | None = None
    challenge: str | None = None


def authenticate(stored: SourceSecrets | None, headers: Iterable[Header], body: bytes) -> Received:
    """Check the signature, then read the event; raises `BadSignature` or `UnreadableDelivery`."""
    headers, now = list(headers), time.time()
    if stored is None:
        verify("github", headers, body, (), now=now)  # takes as long as with a source
        raise BadSignature("unknown source")
    source = stored_source(stored.definition)
    reason = verify(
        source.scheme, headers, body, stored.secrets, now=now, tolerance=source.tolerance_seconds,
        layout=source.layout,
    )  # fmt: skip
    if reason is not None:
        raise BadSignature(reason if stored.secrets else "no secret")
    document = events.read_body(body)
    challenge = events.challenge_of(source, document)
    if challenge is not None:
        return Received(source, None, challenge=challenge)
    return Received(source, *events.read_event(source, headers, document))


class Prepared(NamedTuple):
    """What an event becomes: a row to submit, or the reason why it cannot be one."""

    identity: str | tuple[str, ...] | None = None
    revision: str | None = None
    row: SubmissionRow | None = None
    profile: str = ""
    poison: Poison | None = None


def prepare_event(
    operations: Operations, mapping: WebhookMapping, event: WebhookEvent, poison: Poison | None
) -> Instructions[Prepared]:
    """Read the submission of an event and check it as its queue does."""
    identity, revision = None, None
    try:
        if poison is not None:
            raise poison
        identity = events.identity_of(mapping, event.body)
        revision = events.revision_of(mapping, event.body)
        if mapping.queue is None:
            return Prepared(identity, revision)
        try:
            known = yield from operations.known(mapping.queue)
            row = prepare(known, Submission(identity, event.payload, revision))
        except Refused as error:
            raise poison_of(error, mapping.queue) from None
    except Poison as found:
        return Prepared(identity, revision, poison=found)
    return Prepared(identity, revision, row, known.row.profile)


def submit_event(operations: Operations, received: Received) -> Instructions[DeliveryAnswer]:
    """Submit an event to the queue of its mapping; what cannot become a batch is a dead letter."""
    source, event, mapping, poison, _ = received
    if event is None or mapping is None or mapping.queue is None:
        raise Refused(f"webhook {source.name}: expected a mapping with a queue, got none")
    identity, revision, row, profile, poison = yield from prepare_event(
        operations, mapping, event, poison
    )
    letter = events.letter_body(mapping, event, identity, revision)
    return (
        yield from operations.ask(
            engine.webhooks.submit_delivery(
                stored_delivery(operations.tenant, source, event, mapping, letter),
                row,
                actor=actor_of(source),
                profile=profile,
                reason=None if poison is None else poison.reason,
                detail=None if poison is None else poison.detail,
            ),
            repeatable=False,
        )
    )


def actor_of(source: WebhookSource) -> str:
    return f"webhook {source.name}"


def stored_delivery(
    tenant: str,
    source: WebhookSource,
    event: WebhookEvent,
    mapping: WebhookMapping | None,
    letter: bytes,
) -> StoredDelivery:
    ordered = mapping is not None and mapping.order != "none" and event.entity is not None
    return StoredDelivery(
        tenant,
        source.name,
        event.delivery_id,
        event.identity,
        event.request,
        randbits(63),
        source.keep_seconds,
        source.dedupe_body,
        mapping.order if mapping is not None and ordered else "none",
        "" if mapping is None else mapping.events[0],
        event.entity if ordered else None,
        event.version if ordered else None,
        event.digest,
        None if mapping is None else mapping.queue,
        letter,
    )


class RefusedDelivery(NamedTuple):
    """A problem that a decision is answered with."""

    kind: Literal["delivery-in-progress", "reused-event-id", "superseded"]
    status: int
    detail: str
    members: dict[str, Any]


def refusal_of(received: Received, answer: DeliveryAnswer) -> RefusedDelivery | None:
    """The problem to answer a delivery with; None: 200, so that the provider stops resending."""
    if answer.decision == "in_progress":
        return RefusedDelivery("delivery-in-progress", 503, "this event is being processed", {})
    if answer.decision == "conflict" and received.event is not None:
        # Empty where the first body is no longer kept.
        stored = loads(answer.request) if answer.request else received.event.body
        members = {"diff": diff(stored, received.event.body), "effect": answer.effect}
        detail = f"event {received.event.id} was delivered with another body"
        return RefusedDelivery("reused-event-id", 409, detail, members)
    if answer.outcome == "superseded" and received.source.superseded == 409:
        return RefusedDelivery("superseded", 409, "a newer version of the entity took effect", {})
    return None
