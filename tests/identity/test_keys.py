"""Keys: the bytes, and that nothing can be forged into something else."""

from __future__ import annotations

import hashlib
import hmac
import uuid

import pytest
from hypothesis import given
from hypothesis import strategies as st

from helixqueue.errors import InvalidIdentity
from helixqueue.identity import (
    canonicalize,
    check_name,
    derive_key,
    fingerprint,
    public_id,
    stored_public_id,
    stored_texts,
)

parts = st.lists(st.text(max_size=4), min_size=1, max_size=3).map(tuple)
names = st.from_regex(r"\A[a-z0-9][a-z0-9_.-]{0,5}\Z")


def test_key_bytes_are_exactly_these():
    framed = (
        b"\0\0\0\x03lab"
        b"\0\0\0\x08basecall"
        b"\0\0\0\x02"
        b"\0\0\0\x05run-7"
        b"\0\0\0\x07S\xc3\xa4mple"
        b"\0\0\0\x012"
    )
    identity = canonicalize(("run-7", "Sa\u0308mple"))
    key = derive_key("lab", "basecall", identity, "2")
    assert key == "v1:" + hashlib.sha256(framed).hexdigest()


@pytest.mark.parametrize(
    ("arguments", "key"),
    [
        (
            ("lab", "basecall", ("SAMPLE-000123",), None),
            "v1:2fd64166ead77f694d4079c3faf32e9acf0f030d2312b013c3a9825c7b0257d5",
        ),
    ],
)
def test_keys_never_change(arguments, key):
    assert derive_key(*arguments) == key


def test_public_ids_never_change():
    key = derive_key("lab", "basecall", ("SAMPLE-000123",), None)
    assert public_id(key) == uuid.UUID("2fd64166-ead7-8f69-8d40-79c3faf32e9a")
    assert stored_public_id(b"\x01" + bytes.fromhex(key[3:])) == public_id(key)


@pytest.mark.parametrize("key", ["", "v1:", "v2:" + "0" * 64, "v1:" + "A" * 64, "v1:" + "0" * 65])
def test_public_id_refuses_what_is_no_key(key):
    with pytest.raises(InvalidIdentity, match="64 hexadecimal"):
        public_id(key)


@given(names, names, parts)
def test_public_id_is_a_uuid_of_version_8(tenant, queue, identity):
    key = derive_key(tenant, queue, identity)
    made = public_id(key)
    assert (made.version, made.variant) == (8, uuid.RFC_4122)
    digest = bytes.fromhex(key[3:])
    kept = [index for index in range(16) if index not in (6, 8)]
    assert [made.bytes[index] for index in kept] == [digest[index] for index in kept]
    assert stored_texts(b"\x01" + digest) == (str(made), key)


def test_nfc_and_nfd_twins_have_one_key():
    first, second = canonicalize("Sämple-1"), canonicalize("Sa\u0308mple-1")
    assert derive_key("lab", "q", first) == derive_key("lab", "q", second)


def test_no_field_passes_for_another():
    keys = [
        derive_key("t", "q", ("a", "b"), None),
        derive_key("t", "q", ("ab",), None),
        derive_key("t", "q", ("a",), "b"),
        derive_key("t", "q", ("b", "a"), None),
        derive_key("t", "q", ("a\x1fb",), None),
        derive_key("t", "q", ("a", "b", ""), None),
        derive_key("t", "q", ("a", ""), "b"),
        derive_key("t", "qa", ("b",), None),
        derive_key("tq", "a", ("b",), None),
        derive_key("q", "t", ("a", "b"), None),
        derive_key("t", "q", ("a\0\0\0\x01b",), None),
        # The frames of ("a", "b"), without the count, spelled as one revision.
        derive_key("t", "q", ("a",), "\0\0\0\x01b"),
    ]
    assert len(set(keys)) == len(keys)


def test_no_revision_is_the_empty_one():
    assert derive_key("t", "q", ("a",), None) == derive_key("t", "q", ("a",), "")


revisions = st.none() | st.text(min_size=1, max_size=4)
works = st.tuples(names, names, parts, revisions)


@given(works, works)
def test_keys_are_equal_only_for_equal_work(first, two):
    assert (derive_key(*first) == derive_key(*two)) == (first == two)


def test_fingerprint_is_hmac_sha256():
    expected = hmac.new(b"secret", '{"é":1}'.encode(), "sha256").hexdigest()
    assert fingerprint('{"é":1}', b"secret") == expected


@pytest.mark.parametrize("name", ["a", "0", "lab-1_x.y", "a" * 63])
def test_names_pass(name):
    assert check_name("queue", name) == name


@pytest.mark.parametrize(
    "name",
    ["", "A", "-a", ".a", "_a", "a b", "a\n", "\xe4", "a/b", "a" * 64, "\uff41", "\ud800", None, 1],
)
def test_names_are_refused_not_repaired(name):
    with pytest.raises(InvalidIdentity, match="expected a tenant name") as caught:
        check_name("tenant", name)
    assert caught.value.code == "name"
    assert str(caught.value).isascii()
