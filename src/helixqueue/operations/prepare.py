"""Prepare submissions: validate what a caller passes and make the row that is sent.

The engine refuses a whole call for one row that exceeds a limit. Every limit is checked here first,
so that one invalid submission does not affect the others.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, is_dataclass
from datetime import datetime
from functools import cached_property
from typing import TYPE_CHECKING, Any

from helixqueue.errors import InvalidIdentity, InvalidPayload, Refused
from helixqueue.identity import (
    PART_SEPARATOR,
    canonical_revision,
    canonical_text,
    casefold_key,
    identity_texts,
    is_placeholder,
)
from helixqueue.queues import Shape, checked_requires
from helixqueue.records.submission import Source, Submission, SubmissionRow
from helixqueue.schemas import Schema

if TYPE_CHECKING:
    from helixqueue.queues import Queue
    from helixqueue.records.queue import QueueRow

MAX_LIMIT_KEY_BYTES = 255
MAX_SOURCE_BYTES = 255
_SOURCE_KIND = re.compile(r"[a-z][a-z0-9-]{0,30}")
# Limits of a refused identity on record.
MAX_REFUSED_BYTES = 4096
MAX_REFUSED_REASON_CHARS = 1000
_NAMES = Submission._fields


@dataclass(frozen=True)
class KnownQueue:
    """A queue that this client remembers: the stored row, and its declaration if it has one."""

    row: QueueRow
    declared: Queue[Any, Any] | None
    read_at: float
    shapes: dict[type, Shape[Any]] = field(default_factory=dict)

    @cached_property
    def schema(self) -> Schema | None:
        """The payload schema; `{}` accepts everything and is not checked."""
        return Schema(self.row.payload_schema) if self.row.payload_schema else None

    @cached_property
    def placeholders(self) -> frozenset[str]:
        """Texts that count as no identity, as `is_placeholder` compares them."""
        return frozenset(casefold_key(text.strip()) for text in self.row.placeholders)

    @property
    def is_compiled(self) -> bool:
        """Whether `schema` is available without compiling it, which takes milliseconds."""
        return not self.row.payload_schema or "schema" in vars(self)

    @cached_property
    def compiled_result(self) -> Schema | None:
        """The result schema, for results that come without the check of a worker."""
        return Schema(self.row.result_schema) if self.row.result_schema else None

    @property
    def has_compiled_result(self) -> bool:
        return not self.row.result_schema or "compiled_result" in vars(self)

    def checks_inline(self, chars: int) -> bool:
        """Whether a result of this length is checked within milliseconds, in this process."""
        return self.compiled_result is None or self.compiled_result.is_inline(chars)

    def payload_text(self, payload: Any) -> str:
        """Return the canonical JSON text of the payload; raise `InvalidPayload`."""
        if self.declared is not None and self.declared.payload is not None:
            return canonical_text(self.declared.payload.to_json(payload))
        if type(payload) is not dict and (
            is_dataclass(payload) or hasattr(payload, "__pydantic_serializer__")
        ):
            # A typed payload for a queue that was passed by name.
            kind = type(payload)
            shape = self.shapes.setdefault(kind, Shape(kind, f"payload of {self.row.name}"))
            payload = shape.to_json(payload)
        text = canonical_text(payload)
        if self.schema is not None:
            self.schema.check(text)
        return text


def prepare(
    known: KnownQueue, submission: Submission, payload_bytes_max: int | None = None
) -> SubmissionRow:
    """Make the row that is sent, or raise the error of an invalid submission."""
    identity, payload, revision, priority, run_at, expires_at, limit_key, requires, source = (
        submission
    )
    text, raw = None, None
    if identity is not None:
        text, raw = identity_texts(identity, known.row.profile)
    if text is None or is_placeholder(text, known.placeholders):
        if known.row.unknown == "refuse":
            raise _no_identity(known, identity)
        text, raw = None, raw or text  # a placeholder remains as the raw text
    payload_text = known.payload_text(payload)
    if payload_bytes_max is not None and len(payload_text.encode()) > payload_bytes_max:
        raise InvalidPayload(
            f"payload: expected at most {payload_bytes_max} bytes over HTTP, got "
            f"{len(payload_text.encode())}; put the data into a file and its name into the payload",
            code="too_large",
        )
    if (revision is None and priority is None and requires is None) and (
        run_at is None and expires_at is None and limit_key is None and source is None
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
        checked_source(source),
    )


def _no_identity(known: KnownQueue, identity: object) -> InvalidIdentity:
    return InvalidIdentity(
        f"expected an identity, got {ascii(identity)[:80]}: queue {known.row.name} refuses "
        "work without an identity, which cannot be deduplicated; pass an identity, or declare "
        "the queue with unknown='accept'",
        code="missing",
    )


def submission_of(row: Submission | Mapping[str, Any]) -> Submission:
    """Read a row of `submit_many`: a Submission, or a mapping with the same names."""
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


def refused_identity(identity: object, error: InvalidIdentity) -> tuple[bytes, str]:
    """Return the bytes of a refused identity as they came, and the reason, for the record."""
    if identity is None:
        return b"", str(error)[:MAX_REFUSED_REASON_CHARS]
    parts = identity if isinstance(identity, tuple) else (identity,)
    text = PART_SEPARATOR.join(part if isinstance(part, str) else repr(part) for part in parts)
    raw = text[:MAX_REFUSED_BYTES].encode("utf-8", "surrogatepass")
    # Messages show code points by number, so the database can store them.
    return raw[:MAX_REFUSED_BYTES], str(error)[:MAX_REFUSED_REASON_CHARS]


def checked_source(source: Source | tuple[str, str, str] | None) -> Source | None:
    """Check the delivery that a submission names."""
    if source is None:
        return None
    if not isinstance(source, tuple) or len(source) != 3:
        raise Refused(f"source: expected (kind, name, id), got {ascii(source)[:80]}")
    kind, name, delivery = source
    if not isinstance(kind, str) or not _SOURCE_KIND.fullmatch(kind):
        raise Refused(
            f"source: expected a kind of small letters, digits and -, got {ascii(kind)[:80]}"
        )
    for text in (name, delivery):
        if (
            not isinstance(text, str)
            or not text.isprintable()
            or not 1 <= len(text.encode()) <= MAX_SOURCE_BYTES
        ):
            raise Refused(
                f"source: expected a name and an id of 1 to {MAX_SOURCE_BYTES} bytes without "
                f"control characters, got {ascii(text)[:80]}"
            )
    return Source(kind, name, delivery)


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
