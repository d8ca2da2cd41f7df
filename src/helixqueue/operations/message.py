"""Messages of an intake: fields of bytes, from which a submission is read.

A message names its `queue`, an `identity` (or `sample_id`; several `identity` fields are its parts)
and its `payload` as JSON. Without `payload`, the remaining fields are the payload, as strings.
`revision` and `priority` are optional.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from helixqueue.errors import InvalidIdentity, InvalidPayload, Refused
from helixqueue.identity import loads
from helixqueue.records.letter import BODY_BYTES_MAX, HEAD_BYTES, LetterReason, NewLetter
from helixqueue.records.submission import Submission

if TYPE_CHECKING:
    from helixqueue.records.submission import SubmittedRow

Fields = list[tuple[bytes, bytes]]
_NAMED = frozenset(("queue", "identity", "sample_id", "payload", "revision", "priority"))
MAX_DETAIL_CHARS = 2_000
# Reason of a payload that is no JSON, and of one that is too large.
_PAYLOAD_REASONS: dict[str, LetterReason] = {
    "too-large": "too_large",
    "too_large": "too_large",
    "schema": "payload",
}


class Poison(Exception):
    """A message that cannot become a batch, now or later."""

    def __init__(self, reason: LetterReason, detail: str, queue: str | None = None) -> None:
        super().__init__(detail)
        self.reason, self.queue = reason, queue
        self.detail = detail[:MAX_DETAIL_CHARS].replace("\0", "\\0")


class Message(NamedTuple):
    queue: str | None
    submission: Submission


def read_message(fields: Fields) -> Message:
    """Read the submission of a message; raise `Poison`."""
    named: dict[str, list[str]] = {}
    rest: dict[str, str] = {}
    for raw_name, raw_value in fields:
        name = _text(raw_name, "the name of a field")
        if name in _NAMED:
            named.setdefault(name, []).append(_text(raw_value, f"field {name}"))
        elif name in rest:
            raise Poison("field", f"expected each field once, got two of {name[:80]!a}")
        else:
            rest[name] = _text(raw_value, f"field {name[:80]!a}")
    queue = _single(named, "queue")
    try:
        return Message(
            queue,
            Submission(
                _identity(named),
                _payload(_single(named, "payload"), rest),
                _single(named, "revision"),
                _priority(_single(named, "priority")),
            ),
        )
    except Poison as poison:
        poison.queue = queue
        raise


def poison_of(error: Refused, queue: str | None) -> Poison:
    """Turn the refusal of a prepared submission into the reason of a letter."""
    if isinstance(error, InvalidIdentity):
        return Poison("identity", str(error), queue)
    if isinstance(error, InvalidPayload):
        return Poison(_PAYLOAD_REASONS.get(error.code, "payload"), str(error), queue)
    return Poison("field", str(error), queue)


def poison_of_answer(answer: SubmittedRow, queue: str) -> Poison:
    """Turn the engine's refusal of a row into the reason of a letter."""
    if answer.decision == "conflict":
        return Poison("conflict", "the identity was submitted with another payload", queue)
    if answer.differs == ("source",):
        return Poison("reused", "this entry id stood for other content before", queue)
    note = answer.note or "refused"
    return Poison("identity" if note.startswith("no identity") else "refused", note, queue)


def letter_of(source: str, body: bytes, poison: Poison, key: bytes | None = None) -> NewLetter:
    """Make the letter of a message; a large one is stored without its end."""
    return NewLetter(
        source=source,
        reason=poison.reason,
        detail=poison.detail,
        body=body if len(body) <= BODY_BYTES_MAX else body[:HEAD_BYTES],
        size=len(body),
        digest=hashlib.sha256(body).digest(),
        queue=None if poison.queue is None else poison.queue[:63].replace("\0", "\\0"),
        key=key,
    )


def vanished_letter(source: str) -> NewLetter:
    """Make the letter of an entry that was deleted while it was pending."""
    detail = "the entry was trimmed or deleted before it was processed; its content is lost"
    return NewLetter(source, "vanished", detail, None, 0, hashlib.sha256(b"").digest())


def encode_fields(fields: Fields) -> bytes:
    """Write fields as bytes: each name and value after its length in four bytes."""
    parts = [part for field in fields for part in field]
    return b"".join([struct.pack(">I", len(part)) + part for part in parts])


def decode_fields(body: bytes) -> Fields:
    parts: list[bytes] = []
    at = 0
    while at < len(body):
        (size,) = struct.unpack_from(">I", body, at)
        parts.append(body[at + 4 : at + 4 + size])
        at += 4 + size
    return list(zip(parts[::2], parts[1::2], strict=True))


def shown_fields(body: bytes, limit: int = 4_096) -> dict[str, str]:
    """Return the fields of a stored message as text; other bytes are shown as escapes."""
    try:
        fields = decode_fields(body)
    except (struct.error, ValueError):  # the beginning of a large message
        return {"bytes": body[:limit].decode("utf-8", "backslashreplace")}
    return {
        name.decode("utf-8", "backslashreplace"): value[:limit].decode("utf-8", "backslashreplace")
        for name, value in fields
    }


def message_fields(
    *,
    queue: str | None,
    identity: str | Sequence[str] | None,
    payload: str,
    revision: str | None = None,
    priority: int | None = None,
) -> Fields:
    """Return the canonical fields of a message; `payload` is JSON text."""
    parts = [identity] if isinstance(identity, str) else list(identity or ())
    fields = [("queue", queue)] if queue is not None else []
    fields += [("identity", part) for part in parts]
    if revision is not None:
        fields.append(("revision", revision))
    if priority is not None:
        fields.append(("priority", str(priority)))
    fields.append(("payload", payload))
    return [(name.encode(), str(value).encode()) for name, value in fields]


def _text(raw: bytes, what: str) -> str:
    try:
        return raw.decode()
    except UnicodeDecodeError as error:
        raise Poison(
            "encoding", f"{what}: expected UTF-8, got byte {raw[error.start]:#04x} at {error.start}"
        ) from None


def _single(named: dict[str, list[str]], name: str) -> str | None:
    values = named.get(name)
    if values is None:
        return None
    if len(values) > 1:
        raise Poison("field", f"expected one field {name}, got {len(values)}")
    return values[0]


def _identity(named: dict[str, list[str]]) -> str | tuple[str, ...] | None:
    parts = named.get("identity")
    sample = _single(named, "sample_id")
    if parts is not None and sample is not None:
        raise Poison("field", "expected identity or sample_id, got both")
    if parts is None:
        return sample
    return parts[0] if len(parts) == 1 else tuple(parts)


def _payload(text: str | None, rest: dict[str, str]) -> Any:
    if text is None:
        return rest
    if rest:
        names = ", ".join(ascii(name[:40]) for name in list(rest)[:3])
        raise Poison("field", f"expected payload alone or other fields, got payload with {names}")
    try:
        return loads(text)
    except InvalidPayload as error:
        reason = _PAYLOAD_REASONS.get(error.code, "json")
        raise Poison(reason, str(error)) from None


def _priority(text: str | None) -> int | None:
    if text is None:
        return None
    if len(text) != 1 or text not in "0123456789":
        raise Poison("field", f"priority: expected a digit from 0 to 9, got {text[:40]!a}")
    return int(text)
