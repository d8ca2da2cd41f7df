"""Twins: found by spelling, case and look; only ever reported."""

from __future__ import annotations

import sys

import pytest

from helixqueue import identity as package
from helixqueue.errors import NotInstalled
from helixqueue.identity import canonicalize, casefold_key, derive_key, find_twins, skeleton, twins


@pytest.mark.parametrize(
    ("first", "two"),
    [
        ("S-01", "S-O1"),
        ("S-11", "S-l1"),
        ("S-11", "S-I1"),
        ("\u0410", "A"),
        ("\u0430sample", "asample"),
        ("m", "rn"),
        ("\ufb01n", "fin"),
        ("a\xa0b", "a b"),
        ("S\u20101", "S-1"),
        ("\xe9", "e\u0301"),
        ("\xb5", "\u03bc"),
        ("\u0391\u03921", "AB1"),  # Greek, which lab-id-v1 allows beside Latin
    ],
)
def test_look_alikes_have_one_skeleton(first, two):
    assert skeleton(first) == skeleton(two)


@pytest.mark.parametrize(("first", "two"), [("S-1", "S-2"), ("a", "b"), ("a", "A"), ("ab", "ba")])
def test_others_have_two(first, two):
    assert skeleton(first) != skeleton(two)


def test_skeletons_are_their_own_skeletons_over_every_code_point():
    chars = (chr(c) for c in range(sys.maxunicode + 1) if not 0xD800 <= c < 0xE000)
    changed = {form for char in chars if (form := skeleton(char)) != char}
    assert [form for form in changed if skeleton(form) != form] == []


@pytest.mark.parametrize(
    ("first", "two"),
    [("S-1a", "s-1A"), ("Stra\xdfe", "STRASSE"), ("\xc4", "a\u0308"), ("\u017f", "S")],
)
def test_case_twins_have_one_key(first, two):
    assert casefold_key(first) == casefold_key(two)


def test_finds_groups_by_kind_in_order():
    raws = ["Sä-1", "Sa\u0308-1", "sä-1", "T-01", "T-O1", "unlike", "Sä-1"]
    nfc, nfd, lower, zero, letter, *_ = identities = [canonicalize(raw) for raw in raws]
    found = [(group.kind, group.members) for group in find_twins(identities)]
    assert found == [
        ("spelling", (nfc, nfd)),
        ("case", (nfc, lower)),
        ("look-alike", (zero, letter)),
    ]


def test_exact_repeats_are_no_twins():
    assert find_twins([canonicalize("S-1"), canonicalize("S-1")]) == []


def test_look_alikes_keep_their_own_keys():
    first, second = canonicalize("S-01"), canonicalize("S-O1")
    assert find_twins([first, second])
    assert derive_key("lab", "q", first) != derive_key("lab", "q", second)


def test_without_the_extra_says_how_to_get_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "confusable_homoglyphs.confusables", None)
    twins._prototypes.cache_clear()
    with pytest.raises(NotInstalled, match=r"helixqueue\[twins\]"):
        skeleton("a")
    assert canonicalize("S-1", "lab-id-v1").text == "S-1"


def test_exports_exist():
    assert all(hasattr(package, name) for name in package.__all__)
    assert len(set(package.__all__)) == len(package.__all__)
