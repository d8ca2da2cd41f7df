"""Keys, public ids and fingerprints: what is derived from an identity, byte by byte.

The engine computes the same bytes in SQL; a test compares the two. Fields are framed by their
length, never joined by a character, so no content of one field can pass for another field:

```
field(text) = 4-byte big-endian length of the UTF-8, then the UTF-8
parts       = 4-byte big-endian count, then field(part) for each part
key         = "v1:" + hex SHA-256( field(tenant) field(queue) parts field(revision) )
public id   = the first 16 bytes of that SHA-256, as a UUID version 8
```

The count is what tells the identity ("a", "b") without revision from "a" with revision "b".
"""

from __future__ import annotations

import hashlib
import hmac
import re
import uuid
from functools import lru_cache

from helixqueue.errors import InvalidIdentity
from helixqueue.identity.canonical import Identity

KEY_PREFIX = "v1:"

_NAME = re.compile(r"[a-z0-9][a-z0-9_.-]{0,62}")
_KEY = re.compile(r"v1:[0-9a-f]{64}")


def derive_key(
    tenant: str, queue: str, identity: Identity | tuple[str, ...], revision: str | None = None
) -> str:
    """Derive the key: equal for equal work, independent of client, place and time.

    `identity` may be its canonical parts; `revision` is the output of `canonical_revision`.
    """
    framed = _scope(tenant, queue) + _parts(identity) + _field(revision or "")
    return KEY_PREFIX + hashlib.sha256(framed).hexdigest()


def public_id(key: str) -> uuid.UUID:
    """Derive the batch's public id: a UUID version 8 that survives failover and moves."""
    if _KEY.fullmatch(key) is None:
        raise InvalidIdentity(
            f"expected a key: 'v1:' and 64 hexadecimal digits in lower case; got {key[:80]!r}",
            code="key",
        )
    return stored_public_id(b"\x01" + bytes.fromhex(key[len(KEY_PREFIX) :]))


# Version 8, whose layout is ours (RFC 9562), and the variant; the hash fills the other bits.
_ID_LAYOUT = 8 << 76 | 0b10 << 62
_ID_HASH = ~(0xF << 76 | 0b11 << 62)


def stored_public_id(key: bytes) -> uuid.UUID:
    """Derive the public id from a key as the database keeps it: a version byte, then the hash."""
    return uuid.UUID(int=int.from_bytes(key[1:17], "big") & _ID_HASH | _ID_LAYOUT)


_VARIANT = {digit: "89ab"[int(digit, 16) & 3] for digit in "0123456789abcdef"}


def stored_texts(key: bytes) -> tuple[str, str]:
    """The texts of public id and key, for bulk answers: a UUID object takes as long as both."""
    digits = key[1:].hex()
    public = (
        f"{digits[:8]}-{digits[8:12]}-8{digits[13:16]}-"
        f"{_VARIANT[digits[16]]}{digits[17:20]}-{digits[20:32]}"
    )
    return public, f"v{key[0]}:{digits}"


def key_text(key: bytes) -> str:
    """As people see a key: v1:<hex>."""
    return f"v{key[0]}:{key[1:].hex()}"


def key_bytes(text: str) -> bytes:
    """A key that people saw, of a batch or of a fence; raises `ValueError` for other texts."""
    version, _, digits = text.partition(":")
    key = bytes.fromhex(digits)
    if version not in {"v0", "v1"} or len(key) != 32:
        raise ValueError("not a key")
    return bytes([int(version[1:])]) + key


def key_range(text: str) -> tuple[bytes, bytes]:
    """The first and the last key that begin so; raises `ValueError` below 8 digits of the hash."""
    version, _, digits = text.partition(":")
    if not 8 <= len(digits) <= 64:
        raise ValueError("not a key")
    return key_bytes(f"{version}:{digits:0<64}"), key_bytes(f"{version}:{digits:f<64}")


def fingerprint(canonical_text: str, secret: bytes) -> str:
    """Compute a payload's fingerprint as the database does, to verify a receipt offline."""
    return hmac.new(secret, canonical_text.encode(), hashlib.sha256).hexdigest()


def is_name(name: object) -> bool:
    """Whether this is a legal name of a tenant or queue."""
    return isinstance(name, str) and _NAME.fullmatch(name) is not None


def check_name(kind: str, name: str) -> str:
    """Return the name of a tenant or queue if it is a legal one; names are never repaired."""
    if not is_name(name):
        raise InvalidIdentity(
            f"expected a {kind} name of 1 to 63 characters a-z, 0-9, '_', '.', '-', beginning with "
            f"a letter or a digit; got {ascii(name)[:80]}",
            code="name",
        )
    return name


def _field(text: str) -> bytes:
    data = text.encode()
    return len(data).to_bytes(4, "big") + data


def _parts(identity: Identity | tuple[str, ...]) -> bytes:
    parts = identity.canonical if isinstance(identity, Identity) else identity
    return len(parts).to_bytes(4, "big") + b"".join([_field(part) for part in parts])


@lru_cache(maxsize=256)
def _scope(tenant: str, queue: str) -> bytes:
    """Frame tenant and queue, which are the same for many keys in a row."""
    return _field(tenant) + _field(queue)
