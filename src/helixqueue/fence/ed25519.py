"""Ed25519 signatures, which anyone can verify. Needs `helixqueue[sign]`."""

from __future__ import annotations

import hashlib
from typing import Self

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
)

from helixqueue.errors import Refused


class Ed25519Signer:
    """Signs and verifies with a private key, verifies with a public key.

    The id of a key follows from its public part, so an id cannot name two keys.
    """

    algorithm = "Ed25519"

    def __init__(self, public: Ed25519PublicKey, private: Ed25519PrivateKey | None = None) -> None:
        self._public = public
        self._private = private
        self.key_id = hashlib.sha256(self.public_bytes).hexdigest()[:16]

    @classmethod
    def generate(cls) -> Self:
        private = Ed25519PrivateKey.generate()
        return cls(private.public_key(), private)

    @classmethod
    def from_private(cls, seed: bytes) -> Self:
        """From the 32 bytes of a private key."""
        private = Ed25519PrivateKey.from_private_bytes(_thirty_two(seed))
        return cls(private.public_key(), private)

    @classmethod
    def from_public(cls, data: bytes) -> Self:
        """From the 32 bytes of a public key."""
        return cls(Ed25519PublicKey.from_public_bytes(_thirty_two(data)))

    @property
    def public_bytes(self) -> bytes:
        return self._public.public_bytes(Encoding.Raw, PublicFormat.Raw)

    @property
    def private_bytes(self) -> bytes:
        return self._demand_private().private_bytes(Encoding.Raw, PrivateFormat.Raw, NoEncryption())

    def sign(self, message: bytes) -> bytes:
        return self._demand_private().sign(message)

    def verify(self, message: bytes, signature: bytes) -> bool:
        try:
            self._public.verify(signature, message)
        except InvalidSignature:
            return False
        return True

    def _demand_private(self) -> Ed25519PrivateKey:
        if self._private is None:
            raise Refused("expected a private key to sign with, got a public one")
        return self._private


def _thirty_two(data: bytes) -> bytes:
    if len(data) != 32:
        raise Refused(f"expected an Ed25519 key of 32 bytes, got {len(data)}")
    return data
