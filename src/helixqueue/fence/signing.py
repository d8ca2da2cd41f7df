"""Signatures of documents: receipts of effects, and seals of the ledger.

A signature covers the whole document: the purpose, then the RFC 8785 text of every member but
`signature`. The purpose keeps a signature of one kind of document from fitting another.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import rfc8785

from helixqueue.errors import Refused


class Signer(Protocol):
    """Signs and verifies; `algorithm` and `key_id` identify the key for a verifier."""

    algorithm: str
    key_id: str

    def sign(self, message: bytes) -> bytes: ...

    def verify(self, message: bytes, signature: bytes) -> bool: ...


def signed(purpose: str, document: dict[str, Any], signer: Signer) -> dict[str, Any]:
    """The document with its signature."""
    value = signer.sign(_message(purpose, document))
    return document | {
        "signature": {
            "algorithm": signer.algorithm,
            "key_id": signer.key_id,
            "value": base64.b64encode(value).decode(),
        }
    }


def signature_faults(
    purpose: str, document: Mapping[str, Any], keys: Sequence[Signer]
) -> list[str]:
    """What is wrong with the signature of a document; empty if one of `keys` made it."""
    signature = document.get("signature")
    if not isinstance(signature, dict):
        return ["expected a signature, got none"]
    if set(signature) != {"algorithm", "key_id", "value"}:
        return ["expected a signature with algorithm, key_id and value, got other members"]
    name = f"{signature['algorithm']} key {signature['key_id']}"
    known = [key for key in keys if name == f"{key.algorithm} key {key.key_id}"]
    if not known:
        expected = " or ".join(f"{key.algorithm} key {key.key_id}" for key in keys)
        return [f"expected a signature by {expected}, got {name}"]
    try:
        value = base64.b64decode(str(signature["value"]), validate=True)
        message = _message(purpose, document)
    except (binascii.Error, ValueError) as error:
        return [f"expected a signature in base64 of a JSON document, got {error}"]
    if not any(key.verify(message, value) for key in known):
        return ["the signature does not belong to this document: one of its members was changed"]
    return []


def _message(purpose: str, document: Mapping[str, Any]) -> bytes:
    covered = {name: value for name, value in document.items() if name != "signature"}
    return purpose.encode() + b"\n" + rfc8785.dumps(covered)


class HmacSigner:
    """For parties that share a secret of at least 16 bytes."""

    algorithm = "HMAC-SHA256"

    def __init__(self, secret: bytes, key_id: str = "1") -> None:
        if len(secret) < 16:
            raise Refused(f"expected a secret of at least 16 bytes, got {len(secret)}")
        self._secret = secret
        self.key_id = key_id

    def sign(self, message: bytes) -> bytes:
        return hmac.digest(self._secret, message, hashlib.sha256)

    def verify(self, message: bytes, signature: bytes) -> bool:
        return hmac.compare_digest(self.sign(message), signature)
