"""Receipts: deterministic, the same in Python and SQL, and verifiable without a database."""

from __future__ import annotations

import itertools
import json

import pytest

from helixqueue import HelixQueue
from helixqueue.engine import fences as calls
from helixqueue.errors import Refused
from helixqueue.fence.ed25519 import Ed25519Signer
from helixqueue.fence.receipt import (
    EffectReceipt,
    Verification,
    fence_key,
    receipt_of,
    verify,
)
from helixqueue.fence.signing import HmacSigner
from helixqueue.identity import key_text
from helixqueue.postgres.database import Database as Store
from tests.support.lab import POOLED

RECEIPT_MEMBERS = tuple(EffectReceipt.__slots__)
_numbers = itertools.count(1)


@pytest.fixture
def sealed(database):
    """A sealed fence as it is listed, and what its caller was answer."""
    name = f"receipt{next(_numbers)}"
    with (
        HelixQueue(database.dsn(), tenant="a", pooled=POOLED) as helix,
        helix.fence(name, key=("Ω", 7), payload={"a": 1}) as fence,
    ):
        fence.seal({"id": 1}, effect="re_1")
    with Store.connect(database.dsn(), pooled=POOLED) as store:
        [row] = store.run(calls.list_fences(name=name)).rows
    return row, fence.receipt


def signers():
    return [HmacSigner(b"s" * 32, "2026"), Ed25519Signer.from_private(b"k" * 32)]


def test_key_and_receipt_are_the_same_in_python_and_sql(sealed):
    row, answer = sealed
    assert fence_key("a", row.name, ("Ω", "7")) == row.key
    receipt = receipt_of(row)
    assert receipt.id == answer == row.receipt


def test_repeat_of_an_effect_has_an_equal_receipt(database, sealed):
    row, answer = sealed
    with (
        HelixQueue(database.dsn(), tenant="a", pooled=POOLED) as helix,
        helix.fence(row.name, key=("Ω", 7), payload={"a": 1}) as fence,
    ):
        assert not fence.first
    assert fence.receipt == answer


@pytest.mark.parametrize("signer", signers(), ids=lambda signer: signer.algorithm)
def test_signed_receipt_proves_its_effect_offline(sealed, signer):
    row, _ = sealed
    document = json.loads(json.dumps(receipt_of(row).document(signer)))
    assert verify(document, keys=[signer], answer=b'{"id":1}') == Verification("yes", [])
    assert verify(document, keys=[signer], answer=b'{"id":2}').answer == "no"
    # Without a key to verify with, or without a signature, it is consistent and proves nothing.
    assert verify(document).answer == "unsigned"
    assert verify(receipt_of(row).document(), keys=[signer]).answer == "unsigned"


@pytest.mark.parametrize("recomputed", [False, True], ids=["id kept", "id recomputed"])
def test_tampering_with_each_member_is_detected(sealed, recomputed):
    """Also when the forger recomputes id and key: then only the signature detects it."""
    row, _ = sealed
    signer = Ed25519Signer.from_private(b"k" * 32)
    document = receipt_of(row).document(signer)
    changes = {
        "tenant": "b", "name": "other", "identity": ["Ω", "8"], "key": "v1:" + "0" * 64,
        "fingerprint": "0" * 64, "effect": "re_2", "form": "bytes", "digest": "0" * 64,
        "first_at": "2026-01-01T00:00:00.000000Z", "sealed_at": "2026-01-01T00:00:00.000000Z",
        "id": "r2:" + "0" * 64,
    }  # fmt: skip
    assert set(changes) == set(document) - {"signature"}
    for member, value in changes.items():
        changed = document | {member: value}
        if recomputed and member != "id":
            changed = recompute(changed)
            assert verify(changed).answer == ("no" if member == "key" else "unsigned"), member
        else:
            assert verify(changed).answer == "no", member
        assert verify(changed, keys=[signer]).answer == "no", member
    for extra in ({"note": 1}, {"effect": ""}, {"identity": ["Ω\x1f7"]}, {"identity": "Ω"}):
        assert verify(recompute(document | extra), keys=[signer]).answer == "no", extra


def recompute(document):
    """What a forger without the private key can do: make the members fit each other."""
    members = {name: document[name] for name in RECEIPT_MEMBERS}
    identity = tuple(members["identity"])
    if document["key"] != "v1:" + "0" * 64:
        members["key"] = key_text(fence_key(members["tenant"], members["name"], identity))
    receipt = EffectReceipt(**members | {"identity": identity})
    return document | {"key": receipt.key, "id": receipt.id}


@pytest.mark.parametrize("member", ["key", "fingerprint", "digest"])
def test_another_spelling_of_a_member_is_another_document(sealed, member):
    document = receipt_of(sealed[0]).document()
    changed = document | {member: document[member].upper().replace("V1:", "v1:")}
    assert changed != document
    assert verify(changed).answer == "no"


def test_receipt_invented_without_a_database_is_never_proof():
    identity = ("order", "1")
    invented = EffectReceipt(
        "bank", "refund", identity, key_text(fence_key("bank", "refund", identity)), "0" * 64,
        "re_1", "json", "0" * 64, *["2026-01-01T00:00:00.000000Z"] * 2,
    )  # fmt: skip
    key = Ed25519Signer.from_private(b"k" * 32)
    assert verify(invented.document(), keys=[key]).answer == "unsigned"
    assert (
        verify(invented.document(Ed25519Signer.from_private(b"x" * 32)), keys=[key]).answer == "no"
    )


@pytest.mark.parametrize("signer", signers(), ids=lambda signer: signer.algorithm)
def test_signature_by_another_key_or_of_another_receipt_is_rejected(sealed, signer):
    row, _ = sealed
    document = receipt_of(row).document(signer)
    strangers = [HmacSigner(b"x" * 32, "2026"), Ed25519Signer.from_private(b"x" * 32)]
    [stranger] = [key for key in strangers if key.algorithm == signer.algorithm]
    assert verify(document, keys=[stranger]).answer == "no"
    assert "key 2027" in verify(document, keys=[HmacSigner(b"s" * 32, "2027")]).faults[0]
    for value in ("not base64!", None, 7):
        signature = document["signature"] | {"value": value}
        assert verify(document | {"signature": signature}, keys=[signer]).answer == "no"
    assert verify(document | {"signature": {}}, keys=[signer]).answer == "no"


def test_public_key_verifies_and_cannot_sign(sealed):
    row, _ = sealed
    private = Ed25519Signer.from_private(b"k" * 32)
    public = Ed25519Signer.from_public(private.public_bytes)
    assert verify(receipt_of(row).document(private), keys=[public]).answer == "yes"
    with pytest.raises(Refused, match="private key"):
        receipt_of(row).document(public)


@pytest.mark.parametrize("document", [{}, {"id": 1}, {"key": None}])
def test_incomplete_receipt_is_rejected(document):
    assert "got no" in verify(document).faults[0]


def test_short_secrets_are_refused():
    with pytest.raises(Refused):
        HmacSigner(b"short")
    with pytest.raises(Refused):
        Ed25519Signer.from_private(b"short")
