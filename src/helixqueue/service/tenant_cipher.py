"""Hides numbers of shared sequences from the tokens of a tenant.

Batches, leases and transactions are numbered for all tenants together: the difference of two
numbers would tell a tenant how much the others did between them. Over HTTP a number is therefore
replaced by a permutation of it, and a cursor is encrypted, both with a key of the tenant.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import secrets
from functools import lru_cache
from typing import Final

from helixqueue.errors import Refused

# JSON numbers are exact below 2^53 in every language.
_HALF_BITS: Final = 26
_HALF: Final = 2**_HALF_BITS - 1
_ROUNDS: Final = 6
NUMBER_MAX: Final = 2 ** (2 * _HALF_BITS) - 1
_NONCE_BYTES: Final = 12
_TAG_BYTES: Final = 8
_TEXT_BYTES_MAX: Final = 160  # a tenant, the name of a token and its generation
_BLOCK_BYTES: Final = 64  # of one BLAKE2b digest
_REMEMBERED: Final = 512  # the leases of a claim share its number; a renewed lease comes again


class TenantCipher:
    def __init__(self, key: bytes) -> None:
        self._rounds = [_prf(key, b"number%d" % n) for n in range(_ROUNDS)]
        self._pad = _prf(key, b"cursor")
        self._tag = _prf(key, b"cursor tag")
        self.hide = lru_cache(_REMEMBERED)(self._hide)
        self.reveal = lru_cache(_REMEMBERED)(self._reveal)

    def _hide(self, number: int) -> int:
        """Permute the numbers below 2^52 with a Feistel network.

        Equal numbers stay equal, because a worker compares them. It authenticates nothing, and need
        not: a forged number is the number of some batch, whose lease has a secret token.
        """
        left, right = number >> _HALF_BITS, number & _HALF
        for round_ in self._rounds:
            left, right = right, left ^ _half(round_, right)
        return left << _HALF_BITS | right

    def _reveal(self, number: int) -> int:
        left, right = number >> _HALF_BITS, number & _HALF
        for round_ in reversed(self._rounds):
            left, right = right ^ _half(round_, left), left
        return left << _HALF_BITS | right

    def seal(self, text: str) -> str:
        """Encrypt a cursor; two cursors differ even for one position."""
        nonce = secrets.token_bytes(_NONCE_BYTES)
        sealed = nonce + self._xor(nonce, text.encode())
        return base64.urlsafe_b64encode(sealed + self._tag_of(sealed)).decode().rstrip("=")

    def open(self, text: str) -> str:
        """Decrypt a cursor; refuses what this tenant's key did not seal."""
        try:
            data = base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True)
        except ValueError:
            data = b""
        sealed, tag = data[:-_TAG_BYTES], data[-_TAG_BYTES:]
        size = len(sealed) - _NONCE_BYTES
        if not 0 <= size <= _TEXT_BYTES_MAX or not hmac.compare_digest(self._tag_of(sealed), tag):
            raise Refused(
                f"expected the `next` of an earlier page, got {text[:80]!r}; "
                "start again without a cursor"
            )
        return self._xor(sealed[:_NONCE_BYTES], sealed[_NONCE_BYTES:]).decode()

    def _xor(self, nonce: bytes, data: bytes) -> bytes:
        pads = b""
        for block in range(0, len(data), _BLOCK_BYTES):
            pad = self._pad.copy()
            pad.update(nonce + bytes([block // _BLOCK_BYTES]))
            pads += pad.digest()
        return bytes(a ^ b for a, b in zip(data, pads[: len(data)], strict=True))

    def _tag_of(self, sealed: bytes) -> bytes:
        tag = self._tag.copy()
        tag.update(sealed)
        return tag.digest()[:_TAG_BYTES]


def _prf(key: bytes, purpose: bytes) -> hashlib.blake2b:
    return hashlib.blake2b(key=key, person=purpose)


def _half(round_: hashlib.blake2b, half: int) -> int:
    state = round_.copy()
    state.update(half.to_bytes(4, "big"))
    return int.from_bytes(state.digest()[:4], "big") & _HALF
