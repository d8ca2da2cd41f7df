"""The hash chain of a batch's events, written a second time.

`helix.event_hash` makes the chain inside PostgreSQL. This is the same byte encoding in Python,
so that a replay does not take the database's word for its own history; a property test holds the
two against each other. The encoding is fixed for ever: the hash before, the time in 8 bytes, then
sixteen fields with `>` between them, texts behind their length in bytes, nulls empty.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from hashlib import sha256
from struct import Struct
from typing import NamedTuple

_TIME = Struct(">q").pack
_EPOCH = datetime(2000, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)


class Event(NamedTuple):
    """One row of `helix.event`.

    A named tuple and not a dataclass: a replay folds rows exactly as the driver hands them over,
    and making an object of each halves its speed.
    """

    batch: int
    version: int
    tenant: str
    from_state: str | None
    to_state: str
    at: int  # microseconds since 2000-01-01 UTC, as PostgreSQL keeps them; see `when`
    xid: int
    attempt: int
    epoch: int | None
    number: int | None
    actor: str
    reason: str
    detail: str | None
    late: bool
    hash: bytes

    @property
    def when(self) -> datetime:
        """Raises OverflowError for moments that Python's calendar does not reach."""
        return _EPOCH + self.at * _MICROSECOND


def microseconds(when: datetime) -> int:
    """What `Event.at` holds for this moment."""
    return (when - _EPOCH) // _MICROSECOND


def event_hash(before: bytes, event: Event) -> bytes:
    """What `event.hash` must be, given the hash of its predecessor (empty for the first)."""
    (batch, version, tenant, from_state, to_state, at, xid, attempt, epoch, number, actor, reason,
     detail, late, _) = event  # fmt: skip
    return sha256(
        b"".join(
            (
                before,
                _TIME(at),
                (
                    f"{batch}>{version}>{attempt}>{'' if epoch is None else epoch}>"
                    f"{'' if number is None else number}>{'t' if late else 'f'}>{from_state or ''}>"
                    f"{to_state}>{reason}>{xid}>{_bytes(tenant)}>{tenant}>{_bytes(actor)}>{actor}>"
                    f"{'' if detail is None else _bytes(detail)}>{detail or ''}"
                ).encode(),
            )
        )
    ).digest()


def _bytes(text: str) -> int:
    """How long the text is in UTF-8; nearly all are ASCII, where every character is one byte."""
    return len(text) if text.isascii() else len(text.encode())
