"""Identity: what makes two submissions the same work. Pure: no clock, no chance, no I/O.

`canonical` brings an identifier to its one spelling, `keys` derives key and public id from
it, `strictjson` gives a payload its one text, `diff` tells two payloads apart, `twins` warns.
"""

from __future__ import annotations

from helixqueue.identity.canonical import (
    PART_SEPARATOR,
    PROFILES,
    Identity,
    canonical_revision,
    canonicalize,
    identity_texts,
)
from helixqueue.identity.characters import escaped
from helixqueue.identity.diff import diff
from helixqueue.identity.keys import (
    check_name,
    derive_key,
    fingerprint,
    is_name,
    key_bytes,
    key_range,
    key_text,
    public_id,
    stored_public_id,
    stored_texts,
)
from helixqueue.identity.strictjson import Json, canonical_text, loads
from helixqueue.identity.twins import TwinGroup, casefold_key, find_twins, is_placeholder, skeleton

__all__ = [
    "PART_SEPARATOR",
    "PROFILES",
    "Identity",
    "Json",
    "TwinGroup",
    "canonical_revision",
    "canonical_text",
    "canonicalize",
    "casefold_key",
    "check_name",
    "derive_key",
    "diff",
    "escaped",
    "find_twins",
    "fingerprint",
    "identity_texts",
    "is_name",
    "is_placeholder",
    "key_bytes",
    "key_range",
    "key_text",
    "loads",
    "public_id",
    "skeleton",
    "stored_public_id",
    "stored_texts",
]
