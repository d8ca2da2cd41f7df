"""From what a caller hands over to what the engine takes; what can be wrong is told here.

The engine refuses a whole call for one row that breaks a bound. So every bound is checked before,
and of ten thousand submissions the bad one alone is refused.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, is_dataclass
from datetime import datetime
from functools import cached_property
from typing import TYPE_CHECKING, Any

from helixqueue.errors import InvalidIdentity, Refused
from helixqueue.identity import (
    PART_SEPARATOR,
    canonical_revision,
    canonical_text,
    identity_texts,
)
from helixqueue.queues import Schema, Shape, checked_requires
from helixqueue.records.submission import Submission, SubmissionRow

if TYPE_CHECKING:
    from helixqueue.queues import Queue
    from helixqueue.records.queue import QueueRow

MAX_LIMIT_KEY_BYTES = 255
MAX_NOTED_BYTES = 4096  # of an identity that was refused
MAX_NOTED_WHY_CHARS = 1000
_NAMES = Submission._fields


@dataclass(frozen=True)
class KnownQueue:
    """A queue as this client knows it: the stored row, and the declaration it came from, if any."""

    row: QueueRow
    declared: Queue[Any, Any] | None
    read_at: float
    shapes: dict[type, Shape[Any]] = field(default_factory=dict)

    @cached_property
    def schema(self) -> Schema | None:
        """Of payloads; `{}` accepts anything and needs no checking."""
        return Schema(self.row.payload_schema) if self.row.payload_schema else None

    def payload_text(self, payload: Any) -> str:
        """The payload's canonical JSON text, or `InvalidPayload`."""
        if self.declared is not None and self.declared.payload is not None:
            return canonical_text(self.declared.payload.to_json(payload))
        if type(payload) is not dict and (
            is_dataclass(payload) or hasattr(payload, "__pydantic_serializer__")
        ):
            # A type of its own though the queue was only named.
            kind = type(payload)
            shape = self.shapes.setdefault(kind, Shape(kind, f"payload of {self.row.name}"))
            payload = shape.to_json(payload)
        text = canonical_text(payload)
        if self.schema is not None:
            self.schema.check(json.loads(text))
        return text


def prepared(known: KnownQueue, one: Submission) -> SubmissionRow:
    """The row for the engine, or the named error."""
    identity, payload, revision, priority, run_at, expires_at, limit_key, requires = one
    text, raw = None, None
    if identity is not None:
        text, raw = identity_texts(identity, known.row.profile)
    elif known.row.unknown == "refuse":
        raise InvalidIdentity(
            f"expected an identity, got None: queue {known.row.name} takes no work that could not "
            "be recognised when it comes again; give one, or declare the queue unknown='accept'",
            code="missing",
        )
    payload_text = known.payload_text(payload)
    if (revision is None and priority is None and requires is None) and (
        run_at is None and expires_at is None and limit_key is None
    ):
        return SubmissionRow(text, payload_text, raw)
    return SubmissionRow(
        text,
        payload_text,
        raw,
        canonical_revision(revision),
        _priority(priority),
        moment("run_at", run_at),
        moment("expires_at", expires_at),
        _limit_key(limit_key),
        _requires(requires),
    )


def submission_of(row: Submission | Mapping[str, Any]) -> Submission:
    """A row of `submit_many`: a Submission, or a mapping with the same names."""
    if isinstance(row, Submission):
        return row
    if type(row) is not dict and not isinstance(row, Mapping):
        raise Refused(f"expected a Submission or a mapping, got {type(row).__name__}")
    try:
        return Submission(**row)
    except TypeError:
        unknown = [name for name in row if name not in _NAMES]
        missing = [name for name in ("identity", "payload") if name not in row]
        raise Refused(
            f"expected a mapping with identity, payload and any of {', '.join(_NAMES[2:])}; got "
            f"{'unknown ' + repr(unknown[0]) if unknown else 'no ' + ''.join(missing[:1])}"
        ) from None


def noted(identity: object, error: InvalidIdentity) -> tuple[bytes, str]:
    """A refused identity for the record: its bytes as they came, and why."""
    parts = identity if isinstance(identity, tuple) else (identity,)
    text = PART_SEPARATOR.join(part if isinstance(part, str) else repr(part) for part in parts)
    raw = text[:MAX_NOTED_BYTES].encode("utf-8", "surrogatepass")
    # Messages show code points by number, so they are fit for the database whatever came.
    return raw[:MAX_NOTED_BYTES], str(error)[:MAX_NOTED_WHY_CHARS]


def _priority(value: int | None) -> int | None:
    if value is None:
        return None
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= 9:
        raise Refused(f"priority: expected a whole number from 0 (first) to 9, got {value!r}")
    return value


def moment(name: str, value: datetime | None) -> datetime | None:
    if value is None:
        return None
    if not isinstance(value, datetime) or value.utcoffset() is None:
        raise Refused(
            f"{name}: expected a datetime with its time zone, such as datetime.now(UTC); "
            f"got {ascii(value)[:80]}"
        )
    return value


def _limit_key(value: str | None) -> str | None:
    if value is None:
        return None
    try:
        fits = 1 <= len(value.encode()) <= MAX_LIMIT_KEY_BYTES and "\0" not in value
    except (UnicodeEncodeError, AttributeError):
        fits = False
    if not fits:
        raise Refused(
            f"limit_key: expected a text of 1 to {MAX_LIMIT_KEY_BYTES} bytes, "
            f"got {ascii(value)[:80]}"
        )
    return value


def _requires(value: Mapping[str, Any] | None) -> str | None:
    if value is None:
        return None
    return json.dumps(checked_requires(value), ensure_ascii=False, sort_keys=True)
