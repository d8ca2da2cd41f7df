"""Receipts of effects: the same on every repeat, and verifiable without a database.

```
key  = "v1:" + hex SHA-256( "fence" field(tenant) field(name) parts(identity) )
id   = "r2:" + hex SHA-256( 02 "receipt" field(tenant) field(name) field(identity) key fingerprint
                            field(effect) field(form) digest first_at sealed_at )
```

`field` and `parts` are those of `identity/keys.py`, `digest` is the SHA-256 of the answer, times
are microseconds since 2000 in eight bytes. So the id covers every member; the database derives the
same bytes, and a test compares the two. An id alone shows that a receipt is *consistent*:
anyone can compute one. What *proves* an effect is a signature over the whole document
(`signing.py`).
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Literal

from helixqueue.errors import Refused
from helixqueue.fence.signing import signature_faults, signed
from helixqueue.identity import PART_SEPARATOR, key_bytes, key_text
from helixqueue.records.fence import RECEIPT_PREFIX

if TYPE_CHECKING:
    from helixqueue.fence.signing import Signer
    from helixqueue.records.fence import FenceRow

PURPOSE = "helixqueue receipt 2"  # of its signatures
_TEXTS = ("tenant", "name", "key", "fingerprint", "form", "digest", "first_at", "sealed_at", "id")
_MEMBERS = {*_TEXTS, "identity", "effect", "signature"}
_EPOCH = datetime(2000, 1, 1, tzinfo=UTC)


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
    first_at: str  # when the request arrived
    sealed_at: str  # when the effect was recorded

    @property
    def id(self) -> str:
        identity = "" if self.identity is None else PART_SEPARATOR.join(self.identity)
        return RECEIPT_PREFIX + (
            hashlib.sha256(
                b"\x02receipt"
                + b"".join(map(_field, (self.tenant, self.name, identity)))
                + key_bytes(self.key)
                + bytes.fromhex(self.fingerprint)
                + _field(self.effect or "")
                + _field(self.form)
                + bytes.fromhex(self.digest)
                + _microseconds(self.first_at)
                + _microseconds(self.sealed_at)
            ).hexdigest()
        )

    def document(self, signer: Signer | None = None) -> dict[str, Any]:
        """As JSON, for the client that got the answer; signed where there is a key."""
        identity = None if self.identity is None else list(self.identity)
        document = asdict(self) | {"identity": identity, "id": self.id}
        return document if signer is None else signed(PURPOSE, document, signer)


@dataclass(frozen=True, slots=True)
class Verification:
    """The answer about a receipt.

    *yes*: signed by a known key, and unchanged. *no*: `faults` says why. *unsigned*: consistent in
    itself, which anyone can make; it proves nothing.
    """

    answer: Literal["yes", "no", "unsigned"]
    faults: list[str]


def receipt_of(row: FenceRow) -> EffectReceipt:
    """The receipt of a sealed fence."""
    if row.digest is None or row.form is None or row.fingerprint is None or row.sealed_at is None:
        raise Refused(
            f"fence {row.name}: expected a sealed fence, got {row.state}; it has no receipt"
        )
    return EffectReceipt(
        tenant=row.tenant,
        name=row.name,
        identity=row.identity,
        key=row.fence,
        fingerprint=row.fingerprint,
        effect=row.effect,
        form=row.form,
        digest=row.digest,
        first_at=time_text(row.first_at),
        sealed_at=time_text(row.sealed_at),
    )


def fence_key(tenant: str, name: str, identity: tuple[str, ...]) -> bytes:
    """The key as the database derives it."""
    parts = len(identity).to_bytes(4, "big") + b"".join(map(_field, identity))
    return b"\x01" + hashlib.sha256(b"fence" + _field(tenant) + _field(name) + parts).digest()


def downstream_key(key: bytes) -> str:
    """The idempotency key for the next system: derived, never the client's own."""
    return "hx1-" + hashlib.sha256(b"\x01downstream" + key).hexdigest()[:48]


def time_text(time: datetime) -> str:
    """The one spelling of a time in signed documents."""
    return time.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def verify(
    document: Mapping[str, Any], *, keys: Sequence[Signer] = (), answer: bytes | None = None
) -> Verification:
    """Verify a receipt without a database.

    `keys` verify the signature; without them even a signed receipt is only consistent. `answer` is
    compared with the digest.
    """
    faults = _faults(document)
    if (
        not faults
        and answer is not None
        and hashlib.sha256(answer).hexdigest() != document["digest"]
    ):
        faults.append("the answer is not the answer that was sealed")
    if faults:
        return Verification("no", faults)
    if "signature" not in document or not keys:
        return Verification("unsigned", [])
    faults = signature_faults(PURPOSE, document, keys)
    return Verification("no" if faults else "yes", faults)


def _faults(document: Mapping[str, Any]) -> list[str]:
    """How the members contradict each other."""
    missing = [name for name in _TEXTS if not isinstance(document.get(name), str)]
    if missing:
        return [f"expected the members {', '.join(_TEXTS)} as texts, got no {', '.join(missing)}"]
    unknown = sorted(set(document) - _MEMBERS)
    if unknown:
        return [f"expected no other members than those of a receipt, got {', '.join(unknown)}"]
    identity, effect = document.get("identity"), document.get("effect")
    if not (effect is None or (isinstance(effect, str) and effect)):
        return ["expected an effect as a text or null, got something else"]
    if identity is not None and not (
        isinstance(identity, list)
        and identity
        and all(isinstance(part, str) and PART_SEPARATOR not in part for part in identity)
    ):
        return ["expected an identity as a list of texts or null, got something else"]
    parts = None if identity is None else tuple(identity)
    members = {name: document[name] for name in _TEXTS if name != "id"}
    receipt = EffectReceipt(identity=parts, effect=effect, **members)
    faults = []
    try:
        if receipt.id != document["id"]:
            faults.append("the id is not derived from the other members: one of them was changed")
        key = key_bytes(receipt.key)
        # Another spelling of the same value is another document.
        if (key_text(key), *map(_hex, (receipt.fingerprint, receipt.digest))) != (
            receipt.key,
            receipt.fingerprint,
            receipt.digest,
        ):
            faults.append("expected hexadecimal texts in lower case, got another spelling")
    except ValueError:
        return ["expected hexadecimal key, fingerprint and digest and UTC times, got another form"]
    if parts is not None and fence_key(receipt.tenant, receipt.name, parts) != key:
        faults.append("the key is not derived from tenant, name and identity")
    return faults


def _hex(text: str) -> str:
    return bytes.fromhex(text).hex()


def _microseconds(text: str) -> bytes:
    """As PostgreSQL sends a time."""
    time = datetime.fromisoformat(text)
    if time_text(time) != text:
        raise ValueError("another spelling of a time")
    return ((time - _EPOCH) // timedelta(microseconds=1)).to_bytes(8, "big", signed=True)


def _field(text: str) -> bytes:
    data = text.encode()
    return len(data).to_bytes(4, "big") + data
