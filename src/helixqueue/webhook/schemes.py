"""Signature schemes of webhooks. Pure and total: hostile input gives a reason, never an error.

Every signature that a delivery carries is compared with every valid secret, in constant time. A
body is hashed `SECRETS_MAX` times whatever its headers are and however many secrets there are, so
the time of a refusal does not tell whether a source exists.
"""

from __future__ import annotations

import binascii
import hashlib
import hmac
from base64 import b64decode
from secrets import token_bytes
from typing import TYPE_CHECKING, Final, Literal, NamedTuple

from helixqueue.errors import Refused
from helixqueue.fence.http.asgi import header_values

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from helixqueue.fence.http.asgi import Header

SchemeName = Literal["standard", "stripe", "github", "slack", "hmac"]
Reason = Literal["missing", "malformed", "expired", "signature"]
SECRET_BYTES: Final = (16, 1024)
SECRETS_MAX: Final = 5  # that are compared (48_webhook.sql)
TOLERANCE_SECONDS: Final = 300.0
_HEADER_BYTES_MAX: Final = 4096
_SIGNATURES_MAX: Final = 20
_TIMESTAMP_DIGITS: Final = 12
_STANDARD_PREFIX: Final = "whsec_"
_DECOY: Final = token_bytes(32)  # takes the time of a secret


class HmacLayout(NamedTuple):
    """Where a signature of the scheme `hmac` is, and how it is written."""

    header: str
    prefix: str = ""
    encoding: Literal["hex", "base64"] = "hex"
    algorithm: Literal["sha256", "sha512"] = "sha256"
    timestamp: str | None = None  # the header of a timestamp; `TIMESTAMP.BODY` is signed


class _Signed(NamedTuple):
    """What a delivery claims: its signatures, and what stands before the body in what is signed."""

    signatures: list[bytes]
    head: bytes = b""
    timestamp: int | None = None


def verify(
    scheme: SchemeName,
    headers: Iterable[Header],
    body: bytes,
    secrets: Sequence[bytes],
    *,
    now: float,
    tolerance: float = TOLERANCE_SECONDS,
    layout: HmacLayout | None = None,
) -> Reason | None:
    """Why the delivery is not authentic; None if it is."""
    headers = list(headers)
    read = _read(scheme, headers, layout)
    signed = read if isinstance(read, _Signed) else _Signed([])
    algorithm = layout.algorithm if scheme == "hmac" and layout is not None else "sha256"
    keys = [_key(scheme, secret) for secret in secrets]
    matches = False
    for key in [*keys, *[_DECOY] * SECRETS_MAX][:SECRETS_MAX]:
        digest = hmac.new(key, signed.head, algorithm)
        digest.update(body)
        expected = digest.digest()
        for signature in signed.signatures:
            matches |= hmac.compare_digest(expected, signature)
    if not isinstance(read, _Signed):
        return read
    if not matches:
        return "signature"
    if signed.timestamp is not None and abs(now - signed.timestamp) > tolerance:
        return "expired"
    return None


def signs_timestamp(scheme: SchemeName, layout: HmacLayout | None = None) -> bool:
    """Whether an old delivery is refused as expired."""
    if scheme == "hmac":
        return layout is not None and layout.timestamp is not None
    return scheme != "github"


def check_secret(scheme: SchemeName, secret: bytes) -> bytes:
    """The secret without the newline of its file; raises `Refused` if the scheme cannot use it."""
    secret = secret.strip()
    least, most = SECRET_BYTES
    if not least <= len(secret) <= most:
        raise Refused(f"secret: expected {least} to {most} bytes, got {len(secret)}")
    if _key(scheme, secret) is _DECOY:
        raise Refused(
            "secret: expected whsec_ and base64, as the provider shows it; got other text"
        )
    return secret


def _key(scheme: SchemeName, secret: bytes) -> bytes:
    """The bytes that sign. Standard Webhooks writes them as base64.

    A secret that was added under another scheme may be none of this one. An empty key in its place
    would be known to everyone.
    """
    if scheme != "standard":
        return secret
    try:
        return b64decode(secret.removeprefix(_STANDARD_PREFIX.encode()), validate=True) or _DECOY
    except binascii.Error:
        return _DECOY


def _read(scheme: SchemeName, headers: list[Header], layout: HmacLayout | None) -> _Signed | Reason:
    match scheme:
        case "standard":
            return _read_standard(headers)
        case "stripe":
            return _read_stripe(headers)
        case "github":
            return _read_plain(headers, HmacLayout("x-hub-signature-256", "sha256="))
        case "slack":
            return _read_slack(headers)
        case "hmac":
            return "malformed" if layout is None else _read_plain(headers, layout)


def _read_standard(headers: list[Header]) -> _Signed | Reason:
    event, at = single(headers, "webhook-id"), single(headers, "webhook-timestamp")
    text = single(headers, "webhook-signature")
    if event is None or at is None or text is None:
        return "missing"
    timestamp = _timestamp(at)
    parts = [part.partition(b",") for part in text.split()]
    signatures = _decoded([value for version, _, value in parts if version == b"v1"], "base64")
    if timestamp is None or not event or not signatures:
        return "malformed"
    return _Signed(signatures, b"%b.%b." % (event, at), timestamp)


def _read_stripe(headers: list[Header]) -> _Signed | Reason:
    text = single(headers, "stripe-signature")
    if text is None:
        return "missing"
    parts = [part.strip().partition(b"=") for part in text.split(b",")]
    times = [value for name, _, value in parts if name == b"t"]
    signatures = _decoded([value for name, _, value in parts if name == b"v1"], "hex")
    timestamp = _timestamp(times[0]) if len(times) == 1 else None
    if timestamp is None or not signatures:
        return "malformed"
    return _Signed(signatures, b"%b." % times[0], timestamp)


def _read_slack(headers: list[Header]) -> _Signed | Reason:
    at, text = single(headers, "x-slack-request-timestamp"), single(headers, "x-slack-signature")
    if at is None or text is None:
        return "missing"
    timestamp = _timestamp(at)
    signatures = _decoded([text.removeprefix(b"v0=")], "hex") if text.startswith(b"v0=") else []
    if timestamp is None or not signatures:
        return "malformed"
    return _Signed(signatures, b"v0:%b:" % at, timestamp)


def _read_plain(headers: list[Header], layout: HmacLayout) -> _Signed | Reason:
    text = single(headers, layout.header)
    at = None if layout.timestamp is None else single(headers, layout.timestamp)
    if text is None or (at is None and layout.timestamp is not None):
        return "missing"
    prefix = layout.prefix.encode()
    signatures = _decoded([text.removeprefix(prefix)], layout.encoding)
    if not text.startswith(prefix) or not signatures:
        return "malformed"
    if at is None:
        return _Signed(signatures)
    timestamp = _timestamp(at)
    return "malformed" if timestamp is None else _Signed(signatures, b"%b." % at, timestamp)


def single(headers: Iterable[Header], name: str) -> bytes | None:
    """The value of a header that occurs once; of two, a proxy may have checked the other."""
    values = header_values(headers, name)
    if len(values) != 1 or len(values[0]) > _HEADER_BYTES_MAX:
        return None
    return values[0].strip()


def _timestamp(text: bytes) -> int | None:
    """Unix seconds in digits, as they are signed."""
    return int(text) if text.isdigit() and len(text) <= _TIMESTAMP_DIGITS else None


def _decoded(texts: list[bytes], encoding: Literal["hex", "base64"]) -> list[bytes]:
    """The signatures that can be read; providers may add ones of later versions."""
    found = []
    for text in texts[:_SIGNATURES_MAX]:
        try:
            decode = binascii.unhexlify if encoding == "hex" else binascii.a2b_base64
            found.append(decode(text))
        except (binascii.Error, ValueError):
            continue
    return [value for value in found if len(value) in {_SIZE["sha256"], _SIZE["sha512"]}]


_SIZE: Final = {name: hashlib.new(name).digest_size for name in ("sha256", "sha512")}
