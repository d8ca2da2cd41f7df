"""The hash chain of a batch's events, written a second time.

`helix.event_hash` makes the chain inside PostgreSQL. This is the same byte encoding in Python,
so that a replay does not take the database's word for its own history; a property test holds the
two against each other. The encoding is fixed for ever: the hash before, then numbers big-endian
and texts behind their length, nulls as a length of -1 or as the least number of their width.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from hashlib import sha256
from struct import Struct
from typing import NamedTuple

# batch, version, at, attempt, epoch, number, late, length of detail
_NUMBERS = Struct(">qiqhiq?i").pack
_LENGTH = Struct(">i").pack
_NO_EPOCH = -(2**31)
_NO_NUMBER = -(2**63)
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
    who = tenant.encode()
    by = actor.encode()
    said = b"" if detail is None else detail.encode()
    return sha256(
        b"".join(
            (
                before,
                _NUMBERS(
                    batch,
                    version,
                    at,
                    attempt,
                    _NO_EPOCH if epoch is None else epoch,
                    _NO_NUMBER if number is None else number,
                    late,
                    -1 if detail is None else len(said),
                ),
                said,
                _LENGTH(len(who)),
                who,
                _LENGTH(len(by)),
                by,
                f"{from_state or ''}>{to_state}>{reason}>{xid}".encode(),
            )
        )
    ).digest()
