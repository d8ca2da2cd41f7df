"""Receipts of effects: the same on every repeat, and verifiable without a database.

```
key  = "v1:" + hex SHA-256( "fence" field(tenant) field(name) parts(identity) )
id   = "r1:" + hex SHA-256( 01 "receipt" key fingerprint field(effect) field(form) digest )
```

`field` and `parts` are those of `identity/keys.py`, `digest` is the SHA-256 of the answer. The
database derives the same bytes; a test compares the two. Neither a clock nor a random number is
part of it. A signature is HMAC-SHA256, for parties that share a secret, or Ed25519, for everyone.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from helixqueue.errors import Refused
from helixqueue.identity import PART_SEPARATOR, key_bytes, key_text

if TYPE_CHECKING:
    from collections.abc import Mapping

    from helixqueue.records.fence import FenceRow

_MEMBERS = ("tenant", "name", "key", "fingerprint", "form", "digest", "id")


class Signer(Protocol):
    """Signs receipt ids; `algorithm` and `key_id` identify the key for a verifier."""

    algorithm: str
    key_id: str

    def sign(self, message: bytes) -> bytes: ...

    def verify(self, message: bytes, signature: bytes) -> bool: ...


@dataclass(frozen=True, slots=True)
class EffectReceipt:
    """A request and its outcome, by their digests."""

    tenant: str
    name: str
    identity: tuple[str, ...] | None  # None: the call had no key
    key: str
    fingerprint: str
    effect: str | None
    form: str
    digest: str

    @property
    def id(self) -> str:
        return receipt_id(
            key_bytes(self.key),
            bytes.fromhex(self.fingerprint),
            self.effect,
            self.form,
            bytes.fromhex(self.digest),
        )

    def document(self, signer: Signer | None = None) -> dict[str, Any]:
        """As JSON, for the client that got the answer."""
        document: dict[str, Any] = {
            "tenant": self.tenant,
            "name": self.name,
            "identity": None if self.identity is None else list(self.identity),
            "key": self.key,
            "fingerprint": self.fingerprint,
            "effect": self.effect,
            "form": self.form,
            "digest": self.digest,
            "id": self.id,
        }
        if signer is not None:
            document["signature"] = {
                "algorithm": signer.algorithm,
                "key_id": signer.key_id,
                "value": base64.b64encode(signer.sign(self.id.encode())).decode(),
            }
        return document


def receipt_of(row: FenceRow) -> EffectReceipt:
    """The receipt of a sealed fence."""
    if row.digest is None or row.form is None:
        raise Refused(
            f"fence {row.name}: expected a sealed fence, got {row.state}; it has no receipt"
        )
    parts = None if row.identity is None else tuple(row.identity.split(PART_SEPARATOR))
    return EffectReceipt(
        tenant=row.tenant,
        name=row.name,
        identity=parts,
        key=key_text(row.key),
        fingerprint=row.fingerprint.hex(),
        effect=row.effect,
        form=row.form,
        digest=row.digest.hex(),
    )


def fence_key(tenant: str, name: str, identity: tuple[str, ...]) -> bytes:
    """The key as the database derives it."""
    parts = len(identity).to_bytes(4, "big") + b"".join(map(_field, identity))
    return b"\x01" + hashlib.sha256(b"fence" + _field(tenant) + _field(name) + parts).digest()


def receipt_id(key: bytes, fingerprint: bytes, effect: str | None, form: str, digest: bytes) -> str:
    framed = key + fingerprint + _field(effect or "") + _field(form) + digest
    return "r1:" + hashlib.sha256(b"\x01receipt" + framed).hexdigest()


def downstream_key(key: bytes) -> str:
    """The idempotency key for the next system: derived, never the client's own."""
    return "hx1-" + hashlib.sha256(b"\x01downstream" + key).hexdigest()[:48]


def verify(
    document: Mapping[str, Any], *, signer: Signer | None = None, answer: bytes | None = None
) -> list[str]:
    """The faults of a receipt; empty for a valid one. Needs no database.

    `answer` is compared with the digest, `signer` verifies the signature.
    """
    missing = [name for name in _MEMBERS if not isinstance(document.get(name), str)]
    if missing:
        return [f"expected the members {', '.join(_MEMBERS)} as texts, got no {', '.join(missing)}"]
    faults = []
    try:
        key = key_bytes(document["key"])
        derived = receipt_id(
            key,
            bytes.fromhex(document["fingerprint"]),
            document.get("effect"),
            document["form"],
            bytes.fromhex(document["digest"]),
        )
    except ValueError:
        return ["expected hexadecimal key, fingerprint and digest; got something else"]
    if derived != document["id"]:
        faults.append("the id is not derived from the other members: one of them was changed")
    identity = document.get("identity")
    if identity is not None:
        parts = tuple(map(str, identity))
        if fence_key(document["tenant"], document["name"], parts) != key:
            faults.append("the key is not derived from tenant, name and identity")
    if answer is not None and hashlib.sha256(answer).hexdigest() != document["digest"]:
        faults.append("the answer is not the answer that was sealed")
    if signer is not None:
        faults += _signature_faults(document, signer)
    return faults


def _signature_faults(document: Mapping[str, Any], signer: Signer) -> list[str]:
    signature = document.get("signature")
    if not isinstance(signature, dict):
        return ["expected a signature, got none"]
    if (signature.get("algorithm"), signature.get("key_id")) != (signer.algorithm, signer.key_id):
        got = f"{signature.get('algorithm')} key {signature.get('key_id')}"
        return [f"expected a signature by {signer.algorithm} key {signer.key_id}, got {got}"]
    try:
        value = base64.b64decode(str(signature.get("value")), validate=True)
    except (binascii.Error, ValueError):
        return ["expected a signature in base64, got something else"]
    if not signer.verify(str(document["id"]).encode(), value):
        return ["the signature does not belong to this id"]
    return []


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


def _field(text: str) -> bytes:
    data = text.encode()
    return len(data).to_bytes(4, "big") + data
