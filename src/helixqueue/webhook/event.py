"""Events: what a delivery says after its signature holds. Pure."""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final

from helixqueue.errors import InvalidPayload, UnreadableDelivery
from helixqueue.identity import PART_SEPARATOR, canonical_text, loads
from helixqueue.operations.message import Poison, encode_fields, message_fields
from helixqueue.webhook.schemes import single

if TYPE_CHECKING:
    from collections.abc import Iterable

    from helixqueue.fence.http.asgi import Header
    from helixqueue.webhook.source import WebhookMapping, WebhookSource

# Where each scheme has the id and the type of an event.
_IDS: Final = {"standard": "webhook-id", "stripe": "/id", "github": "x-github-delivery",
               "slack": "/event_id"}  # fmt: skip
_TYPES: Final = {"standard": "/type", "stripe": "/type", "github": "x-github-event",
                 "slack": "/event/type", "hmac": "/type"}  # fmt: skip
_PLAIN: Final = re.compile(r"[!-~]{1,200}")
_NUMBER: Final = re.compile(r"-?[0-9]{1,38}(\.[0-9]{1,9})?")


@dataclass(frozen=True, slots=True)
class WebhookEvent:
    """An authentic event."""

    source: str
    id: str
    type: str
    body: Any  # JSON
    payload: Any  # what the mapping selects of the body
    entity: str | None
    version: str | None
    action: str | None
    request: str  # the body as canonical JSON
    digest: bytes  # of the payload as canonical JSON

    @property
    def identity(self) -> str:
        """What tells deliveries of a source apart."""
        parts = (self.id, self.version or "", self.action or "")
        return PART_SEPARATOR.join(parts).rstrip(PART_SEPARATOR)

    @property
    def delivery_id(self) -> str:
        """The same as the id of a batch's source. No part contains a space."""
        text = self.identity.replace(PART_SEPARATOR, " ")
        return text if len(text) <= 255 else f"sha256:{hashlib.sha256(text.encode()).hexdigest()}"


def read_body(body: bytes) -> Any:  # noqa: ANN401 - JSON
    try:
        return loads(body)
    except InvalidPayload as error:
        hint = "; select the content type application/json at the provider"
        raise UnreadableDelivery(
            f"the body is no strict JSON: {error}{hint if error.code == 'syntax' else ''}"
        ) from None


def challenge_of(source: WebhookSource, document: Any) -> str | None:  # noqa: ANN401 - JSON
    """The text that Slack wants back before it sends events to an address."""
    if source.scheme != "slack" or not isinstance(document, dict):
        return None
    value = document.get("challenge")
    is_challenge = document.get("type") == "url_verification" and isinstance(value, str)
    return str(value)[:200] if is_challenge else None


def read_event(
    source: WebhookSource,
    headers: Iterable[Header],
    document: Any,  # noqa: ANN401 - JSON
) -> tuple[WebhookEvent, WebhookMapping | None, Poison | None]:
    """The event, its mapping, and why it cannot be processed, if so."""
    headers = list(headers)
    event_id = _read(source.id or _IDS.get(source.scheme, ""), headers, document)
    if event_id is None:
        raise UnreadableDelivery("expected the id of the event, got none")
    event_type = _read(source.type or _TYPES[source.scheme], headers, document) or ""
    mapping = source.mapping(event_type)
    poison: Poison | None = None
    entity = version = action = None
    payload: Any = document
    if mapping is not None:
        action = _text(_at(document, mapping.action))
        version = _text(_at(document, mapping.version))
        entity = _text(_at(document, mapping.entity))
        try:
            payload = document if mapping.payload is None else _required(document, mapping.payload)
            if mapping.order != "none":
                if entity is None:
                    raise Poison("field", f"expected a text or a number at {mapping.entity}")
                version = _comparable(_at(document, mapping.version), mapping)
        except Poison as found:
            poison, payload = found, document
    event = WebhookEvent(
        *(source.name, _name(event_id), event_type, document, payload),
        None if entity is None else _name(entity),
        None if version is None else _name(version),
        None if action is None else _name(action),
        canonical_text(document),
        hashlib.sha256(canonical_text(payload).encode()).digest(),
    )
    return event, mapping, poison


def identity_of(
    mapping: WebhookMapping,
    document: Any,  # noqa: ANN401 - JSON
) -> str | tuple[str, ...] | None:
    """The identity of the batch; raises `Poison` where a part is missing."""
    parts = []
    for pointer in mapping.identity:
        text = _text(_at(document, pointer))
        if text is None:
            raise Poison("identity", f"expected a text or a number at {pointer}, got none")
        parts.append(text)
    return None if not parts else parts[0] if len(parts) == 1 else tuple(parts)


def revision_of(mapping: WebhookMapping, document: Any) -> str | None:  # noqa: ANN401 - JSON
    if mapping.revision is None:
        return None
    text = _text(_at(document, mapping.revision))
    if text is None:
        raise Poison("field", f"expected a revision at {mapping.revision}, got none")
    return text


def letter_body(
    mapping: WebhookMapping, event: WebhookEvent, identity: str | tuple[str, ...] | None,
    revision: str | None,
) -> bytes:  # fmt: skip
    """The message of a dead letter, in the form in which letters are redriven."""
    return encode_fields(
        message_fields(
            queue=mapping.queue,
            identity=identity,
            payload=canonical_text(event.payload),
            revision=revision,
        )
    )


def _read(place: str, headers: list[Header], document: Any) -> str | None:  # noqa: ANN401 - JSON
    """The text at a pointer, or in a header."""
    if place.startswith("/"):
        return _text(_at(document, place))
    value = single(headers, place)
    return None if not value else value.decode("latin-1")


def _at(document: Any, pointer: str | None) -> Any:  # noqa: ANN401 - JSON
    """The value at a JSON Pointer; None if there is none."""
    if pointer is None:
        return None
    value = document
    for part in pointer.split("/")[1:]:
        name = part.replace("~1", "/").replace("~0", "~")
        if isinstance(value, dict):
            value = value.get(name)
        elif isinstance(value, list) and name.isascii() and name.isdigit() and len(name) < 8:
            value = value[int(name)] if int(name) < len(value) else None
        else:
            return None
    return value


def _required(document: Any, pointer: str) -> Any:  # noqa: ANN401 - JSON
    value = _at(document, pointer)
    if value is None:
        raise Poison("payload", f"expected a payload at {pointer}, got none")
    return value


def _text(value: object) -> str | None:
    """Texts and whole numbers identify things; nothing else does."""
    if isinstance(value, str) and value:
        return value
    return str(value) if isinstance(value, int) and not isinstance(value, bool) else None


def _name(text: str) -> str:
    """As a part of a key: short and printable."""
    if _PLAIN.fullmatch(text):
        return text
    return f"sha256:{hashlib.sha256(text.encode('utf-8', 'surrogatepass')).hexdigest()}"


def _comparable(value: object, mapping: WebhookMapping) -> str:
    """A version as a number. Times are Unix seconds, or ISO 8601 with their zone."""
    text = str(value) if isinstance(value, float) else _text(value)
    if text is not None and _NUMBER.fullmatch(text):
        return text
    if text is not None and mapping.order == "time":
        try:
            moment = datetime.fromisoformat(text)
        except ValueError:
            moment = None
        if moment is not None and moment.tzinfo is not None:
            return f"{moment.timestamp():.6f}"
    kind = "a number" if mapping.order == "version" else "Unix seconds or a time with its zone"
    raise Poison("field", f"expected {kind} at {mapping.version}, got {ascii(value)[:60]}")
