"""The key as it arrives: one header, a structured-field string or a bare one. Never repaired."""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import re
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable

MAX_KEY_BYTES: Final = 255
# RFC 9651 string: printable ASCII, with \" and \\ escaped; parameters after it are ignored.
_STRING = re.compile(rb'"((?:[\x20\x21\x23-\x5b\x5d-\x7e]|\\["\\])*)"\s*(?:;.*)?', re.DOTALL)
_BARE = re.compile(rb"[\x21-\x7e]+")
_DIGEST = re.compile(r"\s*sha-256\s*=\s*:([A-Za-z0-9+/=]*):\s*")


class InvalidKey(Exception):
    """Why a key is none; the text goes to the client."""


def values(headers: Iterable[tuple[bytes, bytes]], name: str) -> list[bytes]:
    wanted = name.lower().encode()
    return [value for key, value in headers if key.lower() == wanted]


def key_of(found: list[bytes], *, strict: bool, min_chars: int) -> str | None:
    """The key; None when there is no header. Raises `InvalidKey`."""
    if not found:
        return None
    if len(found) > 1:
        raise InvalidKey(f"expected the header once, got it {len(found)} times")
    raw = found[0].strip(b" \t")
    quoted = _STRING.fullmatch(raw)
    if quoted is not None:
        key = re.sub(rb"\\(.)", rb"\1", quoted[1])
    elif strict or raw.startswith(b'"'):
        raise InvalidKey('expected a quoted string, such as "8e03978e-40d5-43dd-bc93-6894a57f9324"')
    elif _BARE.fullmatch(raw) is None:
        raise InvalidKey("expected printable ASCII without spaces, or a quoted string")
    else:
        key = raw
    if not min_chars <= len(key) <= MAX_KEY_BYTES:
        raise InvalidKey(
            f"expected {min_chars} to {MAX_KEY_BYTES} characters, got {len(key)}; "
            "a random UUID is a good key"
        )
    return key.decode("ascii")


def digest_fits(found: list[bytes], body: bytes) -> bool:
    """Whether the body is what Content-Digest (RFC 9530) says; other algorithms are not judged."""
    for member in b",".join(found).decode("latin-1").split(","):
        said = _DIGEST.fullmatch(member)
        if said is None:
            continue
        try:
            wanted = base64.b64decode(said[1], validate=True)
        except (binascii.Error, ValueError):
            return False
        if not hmac.compare_digest(wanted, hashlib.sha256(body).digest()):
            return False
    return True
