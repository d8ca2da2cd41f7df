"""The hash chain of the ledger, implemented a second time.

`helix.entry_hash` computes the chain inside PostgreSQL. This is the same byte encoding in Python,
so that a replay does not have to trust the database about its own history; a property test
compares the two. The encoding never changes: the hashes of the distinct entries before, the
time, nine header fields joined by `>`, then the arrays as PostgreSQL sends them.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from hashlib import sha256
from struct import Struct
from typing import NamedTuple

INT2, INT4, INT8, BYTEA = 21, 23, 20, 17  # type numbers of array elements
_WIDTHS = {INT2: 2, INT4: 4, INT8: 8}
_LETTERS = {INT2: "h", INT4: "i", INT8: "q"}
_TIME = Struct(">q").pack
_LENGTH = Struct(">i").pack
# Dimensions, whether there are nulls, type of elements, length, first index.
_ARRAY = Struct(">iiiii")
_EMPTY = Struct(">iii")
_HASH_LENGTH = _LENGTH(32)
_EPOCH = datetime(2000, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)


class LedgerEntry(NamedTuple):
    """One row of `helix.entry`.

    A named tuple, because a replay uses rows exactly as the driver returns them. Arrays are the
    bytes that PostgreSQL sends: the hash covers these bytes, and `integers` decodes them.
    """

    id: int
    part: int
    at: int  # microseconds since 2000-01-01 UTC, as PostgreSQL stores them; see `moment`
    position: int
    epoch: int | None
    from_state: str | None
    to_state: str
    reason: str
    late: bool
    hash: bytes | None
    actor: str
    batch: bytes | None  # None: the entry is archived, its arrays are empty
    queue: bytes | None
    version: bytes | None
    attempt: bytes | None
    before: bytes | None
    content: bytes | None
    sound: bool | None = None  # whether the database verified the hash; None: verify it here


def moment(at: int) -> datetime:
    """Return the time; raises OverflowError if it is outside Python's calendar."""
    return _EPOCH + at * _MICROSECOND


def microseconds(when: datetime) -> int:
    """Return the value of `LedgerEntry.at` for this time."""
    return (when - _EPOCH) // _MICROSECOND


def entry_hash(before: Sequence[bytes], entry: LedgerEntry) -> bytes:
    """Return the expected `entry.hash`; `before`: the hashes of the distinct entries before it."""
    (number, part, at, position, epoch, from_state, to_state, reason, late, _, actor, batch, queue,
     version, attempt, links, content, _) = entry  # fmt: skip
    text = (
        f"{number}>{part}>{position}>{'' if epoch is None else epoch}>{from_state or ''}>"
        f"{to_state}>{reason}>{'t' if late else 'f'}>{len(actor.encode())}>{actor}"
    )
    return sha256(
        b"".join(
            (
                _hash_array(before) if before else b"",
                _TIME(at),
                text.encode(),
                batch or b"",
                queue or b"",
                version or b"",
                attempt or b"",
                links or b"",
                content or b"",
            )
        )
    ).digest()


def _hash_array(values: Sequence[bytes]) -> bytes:
    """`array_of` for hashes, which all have the same length."""
    return _ARRAY.pack(1, 0, BYTEA, len(values), 1) + _HASH_LENGTH + _HASH_LENGTH.join(values)


def array_of(kind: int, values: Sequence[int | bytes | None]) -> bytes:
    """Return a one-dimensional array as PostgreSQL sends it."""
    if not values:
        return _EMPTY.pack(0, 0, kind)
    pieces = [_ARRAY.pack(1, int(None in values), kind, len(values), 1)]
    for value in values:
        if value is None:
            pieces.append(_LENGTH(-1))
            continue
        data = (
            value if isinstance(value, bytes) else value.to_bytes(_WIDTHS[kind], "big", signed=True)
        )
        pieces += (_LENGTH(len(data)), data)
    return b"".join(pieces)


def integers(kind: int, array: bytes) -> tuple[int, ...]:
    """Decode an array of integers without nulls; raises ValueError for every other array."""
    count = (len(array) - _ARRAY.size) // (4 + _WIDTHS[kind])
    layout = _elements(kind, count) if count > 0 else None
    if layout is None or len(array) != layout.size or array[: _ARRAY.size] != _head(kind, count):
        raise ValueError(f"expected a plain array of type {kind}, got {array[:40]!r}")
    return layout.unpack(array)


@lru_cache(4096)
def _elements(kind: int, count: int) -> Struct:
    """Return the layout of an array; it skips the head and the length of each element."""
    return Struct(f">{_ARRAY.size}x" + f"4x{_LETTERS[kind]}" * count)


@lru_cache(4096)
def _head(kind: int, count: int) -> bytes:
    return _ARRAY.pack(1, 0, kind, count, 1)
