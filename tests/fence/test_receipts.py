"""Receipts: deterministic, the same in Python and SQL, and verifiable without a database."""

from __future__ import annotations

import itertools
import json

import pytest

from helixqueue import HelixQueue
from helixqueue.engine import fences as calls
from helixqueue.errors import Refused
from helixqueue.fence.ed25519 import Ed25519Signer
from helixqueue.fence.receipt import HmacSigner, fence_key, receipt_of, verify
from helixqueue.postgres.database import Database as Store
from tests.support.lab import POOLED

_numbers = itertools.count(1)


@pytest.fixture
def sealed(database):
    """A sealed fence as it is listed, and what its caller was told."""
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
    return [HmacSigner(b"s" * 32, "2026"), Ed25519Signer.from_private(b"k" * 32, "2026")]


def test_key_and_receipt_are_the_same_in_python_and_sql(sealed):
    row, told = sealed
    assert fence_key("a", row.name, ("Ω", "7")) == row.key
    receipt = receipt_of(row)
    assert receipt.id == told == f"r1:{row.receipt.hex()}"


def test_equal_work_has_an_equal_receipt_at_any_time(database, sealed):
    """From no clock and no chance: forget the fence, do it again, get the same receipt."""
    row, told = sealed
    with database.connect("helix_bootstrap") as connection:
        connection.execute(
            """create or replace function helix.test_forget(p_key bytea) returns void
               language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
               begin perform helix.enter(); perform helix.delete_fences(array[p_key]); end $$;
               alter function helix.test_forget owner to helix_engine"""
        )
        connection.execute("select helix.test_forget(%s)", (row.key,))
        connection.execute("drop function helix.test_forget")
    with (
        HelixQueue(database.dsn(), tenant="a", pooled=POOLED) as helix,
        helix.fence(row.name, key=("Ω", 7), payload={"a": 1}) as fence,
    ):
        assert fence.first
        fence.seal({"id": 1}, effect="re_1")
    assert fence.receipt == told


@pytest.mark.parametrize("signer", signers(), ids=lambda signer: signer.algorithm)
def test_receipt_verifies_offline_and_any_change_is_detected(sealed, signer):
    row, _ = sealed
    document = json.loads(json.dumps(receipt_of(row).document(signer)))
    assert verify(document, signer=signer, answer=b'{"id":1}') == []
    assert verify(document, answer=b'{"id":2}') == ["the answer is not the answer that was sealed"]
    for member in ("fingerprint", "digest", "effect", "form", "id", "tenant", "name", "key"):
        changed = document | {member: _other(document[member])}
        assert verify(changed, signer=signer), member
    assert verify(document | {"identity": ["Ω", "8"]})


def _other(text):
    return text[:-1] + ("0" if text[-1] != "0" else "1")


@pytest.mark.parametrize("signer", signers(), ids=lambda signer: signer.algorithm)
def test_signature_by_another_key_or_of_another_receipt_is_rejected(sealed, signer):
    row, _ = sealed
    document = receipt_of(row).document(signer)
    strangers = [HmacSigner(b"x" * 32, "2026"), Ed25519Signer.from_private(b"x" * 32, "2026")]
    [stranger] = [one for one in strangers if one.algorithm == signer.algorithm]
    assert verify(document, signer=stranger) == ["the signature does not belong to this id"]
    assert "key 2027" in verify(document, signer=HmacSigner(b"s" * 32, "2027"))[0]
    assert verify(receipt_of(row).document(), signer=signer) == ["expected a signature, got none"]
    for value in ("not base64!", None, 7):
        signature = document["signature"] | {"value": value}
        assert verify(document | {"signature": signature}, signer=signer)


def test_public_key_verifies_and_cannot_sign(sealed):
    row, _ = sealed
    private = Ed25519Signer.from_private(b"k" * 32)
    public = Ed25519Signer.from_public(private.public_bytes)
    assert verify(receipt_of(row).document(private), signer=public) == []
    with pytest.raises(Refused, match="private key"):
        receipt_of(row).document(public)


@pytest.mark.parametrize("document", [{}, {"id": 1}, {"key": None}])
def test_incomplete_receipt_is_rejected(document):
    assert "got no" in verify(document)[0]


def test_short_secrets_are_refused():
    with pytest.raises(Refused):
        HmacSigner(b"short")
    with pytest.raises(Refused):
        Ed25519Signer.from_private(b"short")
