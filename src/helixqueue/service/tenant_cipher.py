"""Hides numbers of shared sequences from the tokens of a tenant.

Batches, leases and transactions are numbered for all tenants together: the difference of two
numbers would tell a tenant how much the others did between them. Over HTTP a cursor and a lease
are therefore sealed texts, and a number of a history is replaced, all with a key of the tenant.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import secrets
import struct
from typing import TYPE_CHECKING, Final, NamedTuple
from uuid import UUID

from helixqueue.errors import Refused
from helixqueue.records.lease import Token

if TYPE_CHECKING:
    from helixqueue.records.lease import LeaseRow

_TAG_BYTES: Final = 16
_NONCE_BYTES: Final = 12
# JSON numbers are exact below 2^53 in every language.
_NUMBER_BITS: Final = 52
SEALED_CHARS_MAX: Final = 400  # a cursor with the longest name of a worker
_LEASE: Final = struct.Struct(">qiqqh16s")  # followed by the name of the queue


class OpenedLease(NamedTuple):
    """What a lease says of itself; the database decides whether its token still holds."""

    batch: int
    token: Token
    attempt: int
    batch_id: UUID
    queue: str


class TenantCipher:
    def __init__(self, key: bytes) -> None:
        self._numbers = _prf(key, b"number")
        self._cursors = _Seal(key, b"cursor")
        self._leases = _Seal(key, b"lease")

    def hide(self, number: int) -> int:
        """Replace a number by another; equal numbers stay equal, for readers that compare them."""
        state = self._numbers.copy()
        state.update(number.to_bytes(8, "big"))
        return int.from_bytes(state.digest()[:8], "big") >> (64 - _NUMBER_BITS)

    def seal(self, text: str) -> str:
        """Seal a cursor; two cursors differ even for one position."""
        return self._cursors.seal(secrets.token_bytes(_NONCE_BYTES) + text.encode())

    def open(self, text: str) -> str:
        """Open a cursor; refuses what this tenant's key did not seal."""
        data = self._cursors.open(text)
        if data is None:
            raise Refused(
                f"expected the `next` of an earlier page, got {text[:80]!r}; "
                "start again without a cursor"
            )
        return data[_NONCE_BYTES:].decode()

    def seal_lease(self, row: LeaseRow) -> str:
        """Seal a lease, with a token that is valid for this lease only."""
        numbers = (row.batch, *row.own_token, row.attempt, row.batch_id.bytes)
        return self._leases.seal(_LEASE.pack(*numbers) + row.queue.encode())

    def open_lease(self, text: str) -> OpenedLease | None:
        """Open a lease; None if this tenant's key did not seal it."""
        data = self._leases.open(text)
        if data is None:
            return None
        batch, epoch, nonce, number, attempt, batch_id = _LEASE.unpack_from(data)
        queue = data[_LEASE.size :].decode()
        return OpenedLease(batch, Token(epoch, nonce, number), attempt, UUID(bytes=batch_id), queue)


class _Seal:
    """Encrypts and authenticates; the tag of the content is the nonce of its encryption.

    Equal contents have equal seals: the repeat of a claim returns the same leases.
    """

    def __init__(self, key: bytes, purpose: bytes) -> None:
        self._tag = _prf(key, purpose + b" tag")
        self._pad = hashlib.shake_256(_prf(key, purpose + b" pad").digest())

    def seal(self, data: bytes) -> str:
        tag = self._tag_of(data)
        sealed = base64.urlsafe_b64encode(tag + self._encrypt(tag, data))
        return sealed.rstrip(b"=").decode()

    def open(self, text: str) -> bytes | None:
        if len(text) > SEALED_CHARS_MAX:
            return None
        try:
            sealed = base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True)
        except ValueError:
            return None
        tag = sealed[:_TAG_BYTES]
        data = self._encrypt(tag, sealed[_TAG_BYTES:])
        return data if hmac.compare_digest(self._tag_of(data), tag) else None

    def _encrypt(self, tag: bytes, data: bytes) -> bytes:
        """Encrypt or decrypt: the pad of the tag is its own inverse."""
        pad = self._pad.copy()
        pad.update(tag)
        size = len(data)
        mixed = int.from_bytes(data, "big") ^ int.from_bytes(pad.digest(size), "big")
        return mixed.to_bytes(size, "big")

    def _tag_of(self, data: bytes) -> bytes:
        tag = self._tag.copy()
        tag.update(data)
        return tag.digest()[:_TAG_BYTES]


def _prf(key: bytes, purpose: bytes) -> hashlib.blake2b:
    return hashlib.blake2b(key=key, person=purpose)
