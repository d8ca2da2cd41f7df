"""Canonical forms: the vectors, the refusals, and every code point there is."""

from __future__ import annotations

import os
import re
import sys
import unicodedata
from dataclasses import replace
from enum import StrEnum

import pytest
from hypothesis import given
from hypothesis import strategies as st

from helixqueue.errors import InvalidIdentity
from helixqueue.identity import (
    PART_SEPARATOR,
    Identity,
    canonical_revision,
    canonicalize,
    identity_texts,
)
from helixqueue.identity.canonical import (
    MAX_PART_BYTES,
    MAX_RAW_PART_BYTES,
    PROFILES,
    _attempt,
    _canonical_part,
    _is_plain,
)
from helixqueue.identity.characters import WHITE_SPACE, WIDTH_MAP
from helixqueue.identity.unicode14 import is_assigned

BOTH = ("text-v1", "lab-id-v1")
EVERY_CODE_POINT = range(sys.maxunicode + 1)
# Above U+3400 are mostly ideographs and Hangul, in long runs that profiles treat alike. `make
# proof` takes all.
CODE_POINTS = (
    EVERY_CODE_POINT
    if os.environ.get("HELIX_PROOF")
    else [*range(0x3400), *range(0x3400, 0x1F000, 7), *range(0x1F000, sys.maxunicode + 1, 19)]
)
profiles = st.sampled_from(BOTH)


def refusal(raw, profile):
    with pytest.raises(InvalidIdentity) as caught:
        canonicalize(raw, profile)
    return caught.value


# What canonical forms are ----------------------------------------------------------------------


@pytest.mark.parametrize("profile", BOTH)
@pytest.mark.parametrize(
    ("raw", "canonical"),
    [
        ("S-001", "S-001"),
        ("Sämple-Ω-001", "Sämple-Ω-001"),
        ("e\u0301", "\xe9"),
        ("\xe9", "\xe9"),
        ("\u212b", "\xc5"),
        ("\u212a", "K"),
        ("\u2126", "\u03a9"),
        ("\u0410", "\u0410"),  # Cyrillic A alone is one script, and not a Latin A
        ("\u03bc", "\u03bc"),
        ("\u0130", "\u0130"),
        ("\u0131", "\u0131"),
        ("Stra\xdfe", "Stra\xdfe"),
        ("s-1A", "s-1A"),  # case is kept: S-1a and S-1A may be two tubes
        ("\t S-1\u3000\n", "S-1"),
        ("\x85\u2028S-1\u2029\xa0", "S-1"),
        ("\u691c\u4f53-\u30ab\u30ca-A1", "\u691c\u4f53-\u30ab\u30ca-A1"),
        ("\u1112\u1161\u11ab", "\ud55c"),
        ("a\u0323\u0307", "\u1ea1\u0307"),
        ("a\u0307\u0323", "\u1ea1\u0307"),
    ],
)
def test_both_profiles_give_this_form(raw, canonical, profile):
    assert canonicalize(raw, profile).canonical == (canonical,)


@pytest.mark.parametrize(
    "raw",
    [
        "\u0430sample",  # Cyrillic a
        "\uff21",
        "\ufb01",
        "\u2460",
        "\xb5",
        "\u017f",
        "\u0661\u06f1",
        "a\xa0b",
        "a b",
        "S\u2010\u2011\u22121",
        "\u1d2e\u1d35\u1d33\u1d2e\u1d35\u1d3f\u1d30",  # Spotify's "BIGBIRD"
        "\u0301",
        "a\u0301\u0301\u0301\u0301\u0301",
    ],
)
def test_text_v1_keeps_what_nfc_keeps(raw):
    assert canonicalize(raw).text == unicodedata.normalize("NFC", raw)


@pytest.mark.parametrize(
    ("raw", "canonical"),
    [
        ("\uff21\uff11", "A1"),
        ("\uff33\uff0d\uff10\uff11", "S-01"),
        ("\uff76\uff9e", "\u30ac"),  # half-width ka and its voice mark
    ],
)
def test_lab_id_v1_maps_width(raw, canonical):
    assert canonicalize(raw, "lab-id-v1").text == canonical


def test_a_tuple_keeps_its_parts_apart():
    identity = canonicalize(("run-7", " Sa\u0308mple "))
    assert identity == Identity(("run-7", " Sa\u0308mple "), ("run-7", "Sämple"), "text-v1")
    assert identity.text == "run-7\x1fSämple"
    assert identity.raw_text == "run-7\x1f Sa\u0308mple "
    assert identity.changed
    assert not canonicalize(("run-7", "Sämple")).changed


def test_a_subclass_of_str_becomes_a_plain_string():
    class Tube(StrEnum):
        FIRST = "S-1"

    for raw in (Tube.FIRST, (Tube.FIRST, "b")):
        identity = canonicalize(raw)
        assert {type(part) for part in identity.raw + identity.canonical} == {str}


def test_one_and_the_same_in_nfc_and_nfd_width_and_padding():
    spellings = ["Sämple-1", "Sa\u0308mple-1", " Sämple-1\t", "\uff33a\u0308mple\uff0d\uff11"]
    assert {canonicalize(each, "lab-id-v1").text for each in spellings} == {"Sämple-1"}


# Refusals --------------------------------------------------------------------------------------

REFUSED_BY_BOTH = [
    # raw, code, code point, offset, suggestion
    ("", "empty", None, None, None),
    (" \t\u3000", "empty", None, None, None),
    ("a\0b", "control", 0x00, 1, "ab"),
    ("a\x1fb", "control", 0x1F, 1, "ab"),
    ("a\x1b[2Jb", "control", 0x1B, 1, "a[2Jb"),
    ("\ud800", "surrogate", 0xD800, 0, None),
    ("  ab\ue000", "private-use", 0xE000, 4, None),
    ("a\uffff", "noncharacter", 0xFFFF, 1, None),
    ("a\ufdd0", "noncharacter", 0xFDD0, 1, None),
    ("a\u05c8", "unassigned", 0x5C8, 1, None),  # in no Unicode up to 16
    ("a\u0897", "unassigned", 0x897, 1, None),  # came with Unicode 16
    ("a\u200bb", "invisible", 0x200B, 1, "ab"),
    ("a\u200db", "invisible", 0x200D, 1, "ab"),
    ("a\xadb", "invisible", 0xAD, 1, "ab"),
    ("\ufeffab", "invisible", 0xFEFF, 0, "ab"),
    ("a\ufe0fb", "invisible", 0xFE0F, 1, "ab"),
    ("a\u3164b", "invisible", 0x3164, 1, "ab"),
    ("a\U000e0041b", "invisible", 0xE0041, 1, "ab"),
    ("a\u202eb", "bidi-control", 0x202E, 1, "ab"),
    ("a\u2066b\u2069", "bidi-control", 0x2066, 1, "ab"),
    ("\u200b", "invisible", 0x200B, 0, None),  # without it nothing is left
    (" e\u0301\u200bx", "invisible", 0x200B, 3, "\xe9x"),  # the offset is in the raw text
    ("x" * (MAX_RAW_PART_BYTES + 1), "too-long", None, None, None),
    ("\xe9" * 128, "too-long", None, None, None),  # 256 bytes
    ("a" + " " * MAX_RAW_PART_BYTES, "too-long", None, None, "a"),
]

REFUSED_BY_TEXT = [
    ("x" * 256, "too-long", None, None, None),
    ("a\tb", "control", 0x09, 1, "a b"),
    ("a\u2028b", "control", 0x2028, 1, "a b"),
]

REFUSED_BY_LAB = [
    ("a\tb", "control", 0x09, 1, "a-b"),
    ("S 01", "whitespace", 0x20, 1, "S-01"),
    ("S\xa001", "whitespace", 0xA0, 1, "S-01"),
    ("S\u300001", "whitespace", 0x3000, 1, "S-01"),
    ("S\u201001", "dash", 0x2010, 1, "S-01"),
    ("S\u201101", "dash", 0x2011, 1, "S-01"),
    ("S\u201301", "dash", 0x2013, 1, "S-01"),
    ("S\u221201", "dash", 0x2212, 1, "S-01"),
    ("\ufb01n", "compatibility", 0xFB01, 0, "fin"),
    ("\u2460", "compatibility", 0x2460, 0, "1"),
    ("5\xb5l", "compatibility", 0xB5, 1, "5\u03bcl"),
    ("x\xb2", "compatibility", 0xB2, 1, "x2"),
    ("\u017fample", "compatibility", 0x17F, 0, "sample"),
    ("\u1d2e\u1d35\u1d33", "compatibility", 0x1D2E, 0, "BIG"),
    ("a\uffe3", "compatibility", 0xFFE3, 1, None),  # full-width macron: no plain form
    ("a\u1ffd", "compatibility", 0x1FFD, 1, None),  # NFC alone leads to U+00B4
    ("\u0430sample", "mixed-scripts", 0x430, 0, None),
    ("S\u0410-1", "mixed-scripts", 0x410, 1, None),
    ("\u03a9\u0416", "mixed-scripts", 0x416, 1, None),
    ("\u0661\u06f1", "mixed-digits", 0x6F1, 1, None),
    ("S1\u0661", "mixed-digits", 0x661, 2, None),
    ("\u0301x", "leading-mark", 0x301, 0, None),
    (" \u0301x", "leading-mark", 0x301, 1, None),
    ("x\u0301\u0301\u0301\u0301y", "stacked-marks", 0x301, 4, None),
    ("x" * 129, "too-long", None, None, None),
]


@pytest.mark.parametrize(
    ("profile", "raw", "expected"),
    [(profile, raw, expected) for profile in BOTH for raw, *expected in REFUSED_BY_BOTH]
    + [("text-v1", raw, expected) for raw, *expected in REFUSED_BY_TEXT]
    + [("lab-id-v1", raw, expected) for raw, *expected in REFUSED_BY_LAB],
)
def test_refuses_with_place_and_remedy(profile, raw, expected):
    error = refusal(raw, profile)
    assert [error.code, error.code_point, error.offset, error.suggestion] == expected
    assert str(error).isascii()
    assert "expected" in str(error)
    assert "got" in str(error)


@pytest.mark.parametrize(
    ("profile", "suggestion"),
    [(profile, row[-1]) for profile in BOTH for row in REFUSED_BY_BOTH if row[-1]]
    + [("lab-id-v1", row[-1]) for row in REFUSED_BY_LAB if row[-1]],
)
def test_suggestions_are_good_identities(profile, suggestion):
    assert canonicalize(suggestion, profile).text == suggestion


def test_twins_get_one_answer_about_marks():
    """NFC folds one mark into its letter, so the NFD twin may have one more."""
    nfd = "a\u0308\u0301\u0302\u0303"
    nfc = unicodedata.normalize("NFC", nfd)
    assert canonicalize(nfd, "lab-id-v1").text == canonicalize(nfc, "lab-id-v1").text
    for raw in (nfd + "\u0304", nfc + "\u0304"):
        assert refusal(raw, "lab-id-v1").code == "stacked-marks"


@pytest.mark.parametrize(
    ("raw", "code"),
    [
        (b"S-1", "type"),
        (7, "type"),
        (None, "type"),
        (["a"], "type"),
        (("a", 1), "type"),
        ((), "parts"),
        (("a",) * 17, "parts"),
        (("x" * 255,) * 9, "too-long"),
        (("a", ""), "empty"),
    ],
)
def test_refuses_what_is_no_identity(raw, code):
    assert refusal(raw, "text-v1").code == code


def test_a_refusal_names_the_part():
    error = refusal(("fine", "also fine", "b\u200bad"), "text-v1")
    assert (error.part, error.offset) == (2, 1)


def test_refuses_an_unknown_profile_and_lists_the_known():
    error = refusal("a", "lab-id-v2")
    assert error.code == "unknown-profile"
    assert "lab-id-v1, text-v1" in str(error)


def test_the_longest_legal_parts_pass():
    assert canonicalize("x" * 255).text == "x" * 255
    assert canonicalize("\xe9" * 127 + "x").text == "\xe9" * 127 + "x"
    assert canonicalize("x" * 128, "lab-id-v1").text == "x" * 128
    assert len(canonicalize(("x" * 127,) * 16).canonical) == 16


def test_a_message_shows_look_alikes_and_stays_short():
    error = refusal("\u0430" * 500 + "\u200b", "text-v1")
    assert "\\u{430}" in str(error)
    assert len(str(error)) < 3000


@pytest.mark.parametrize(
    ("raw", "canonical"), [(None, ""), ("2", "2"), (" e\u0301 ", "\xe9"), ("1.0", "1.0")]
)
def test_revisions_have_one_spelling_too(raw, canonical):
    assert canonical_revision(raw) == canonical


@pytest.mark.parametrize("raw", ["", 2, ("a", "b")])
def test_refuses_a_revision_that_hides_what_it_is(raw):
    with pytest.raises(InvalidIdentity) as caught:
        canonical_revision(raw)
    assert caught.value.code == "revision"


def test_a_form_that_has_another_form_is_refused_at_run_time():
    """Spotify 2013: a canonical form that changes when it is canonicalised again."""
    drifting = replace(PROFILES["lab-id-v1"], width_map=str.maketrans("\xe4\xf6", "\xf6\xfc"))
    with pytest.raises(InvalidIdentity) as caught:
        _canonical_part("\xe4", drifting, 0)
    assert caught.value.code == "unstable"


# Over every code point -------------------------------------------------------------------------


@pytest.mark.parametrize("profile", BOTH)
def test_canonical_forms_are_their_own_over_all_code_points(profile):
    rules = PROFILES[profile]
    unstable = []
    for char in map(chr, CODE_POINTS):
        if rules.char_flaw(char.translate(rules.width_map)):
            continue  # refused wherever it stands
        for raw in (char, f"x{char}\u0301y"):
            form = _attempt(raw, rules)
            if isinstance(form, str) and (
                (form != raw and _attempt(form, rules) != form)
                or not unicodedata.is_normalized("NFC", form)
            ):
                unstable.append(ascii(raw))
    assert unstable == []


def answer(raw, rules):
    """Give the form or the reason; the offset may differ between twins."""
    form = _attempt(raw, rules)
    return form if isinstance(form, str) else form.code


@pytest.mark.parametrize("profile", BOTH)
def test_nfd_twins_get_one_answer_over_every_code_point(profile):
    rules = PROFILES[profile]
    different = []
    for char in map(chr, EVERY_CODE_POINT):
        twin = unicodedata.normalize("NFD", char)
        if twin != char and answer(twin, rules) != answer(char, rules):
            different.append(hex(ord(char)))
    assert different == []


@pytest.mark.skipif(unicodedata.unidata_version != "14.0.0", reason="compares with Unicode 14.0")
def test_the_table_is_unicode_14_over_every_code_point():
    wrong = [
        hex(code_point)
        for code_point in EVERY_CODE_POINT
        if is_assigned(code_point) != (unicodedata.category(chr(code_point)) != "Cn")
    ]
    assert wrong == []


@pytest.mark.parametrize("profile", BOTH)
def test_accepts_only_unicode_14_whatever_python_knows(profile):
    later = [0x0897, 0x1E030, 0x31350, 0x2EBF0, 0x10D40]  # of Unicode 15, 15.1 and 16
    assert [refusal(chr(point), profile).code for point in later] == ["unassigned"] * 5


def test_white_space_is_the_unicode_property():
    odd = {"\x1c", "\x1d", "\x1e", "\x1f"}  # Python's own idea
    assert set(WHITE_SPACE) == {chr(c) for c in EVERY_CODE_POINT if chr(c).isspace()} - odd


def test_width_map_is_all_wide_and_narrow_forms_but_the_space():
    wide = {
        c
        for c in EVERY_CODE_POINT
        if unicodedata.decomposition(chr(c)).startswith(("<wide>", "<narrow>"))
    }
    assert set(WIDTH_MAP) == wide - {0x3000}


# Properties ------------------------------------------------------------------------------------

anything = st.text(max_size=40) | st.text(st.characters(codec="ascii"), max_size=300)
tricky = st.text(
    st.sampled_from(
        "aZ0- \t\xe4\u0308\u0301\u0323\u212a\u03a9\u0416\uff21\u30ab\u3099\u200b\u1112\u1161"
    )
)


@given(anything | tricky, profiles)
def test_either_refuses_or_gives_a_stable_form(raw, profile):
    try:
        form = canonicalize(raw, profile).text
    except InvalidIdentity as error:
        place = error
    else:
        place = None
    if place is not None:
        assert place.offset is None or ord(raw[place.offset]) == place.code_point
        return
    assert canonicalize(form, profile).text == form
    assert unicodedata.is_normalized("NFC", form)
    assert form == form.strip(WHITE_SPACE)
    assert 0 < len(form.encode()) <= MAX_PART_BYTES
    assert PART_SEPARATOR not in form


@given(anything | tricky, profiles)
def test_the_fast_path_is_the_slow_path(raw, profile):
    rules = PROFILES[profile]
    if _is_plain(raw, rules):
        assert _attempt(raw, rules) == raw == _canonical_part(raw, rules, 0)


@given(anything | tricky | st.lists(tricky, max_size=3).map(tuple), profiles)
def test_the_texts_of_an_identity_are_those_of_its_canonical_form(raw, profile):
    try:
        identity = canonicalize(raw, profile)
    except InvalidIdentity as error:
        with pytest.raises(InvalidIdentity, match=re.escape(str(error))):
            identity_texts(raw, profile)
        return
    raw_text = identity.raw_text if identity.changed else None
    assert identity_texts(raw, profile) == (identity.text, raw_text)


@given(st.integers(0x20, 0x7E).map(chr), profiles)
def test_the_fast_path_takes_printable_ascii(char, profile):
    assert _is_plain(f"x{char}y", PROFILES[profile]) == (char != " " or profile == "text-v1")


@given(
    anything | tricky, profiles, st.sampled_from(["NFC", "NFD"]), st.text(WHITE_SPACE, max_size=3)
)
def test_twins_by_form_and_padding_are_one(raw, profile, form, padding):
    try:
        expected = canonicalize(raw, profile).text
    except InvalidIdentity:
        return
    twin = padding + unicodedata.normalize(form, raw) + padding
    assert canonicalize(twin, profile).text == expected


@given(st.lists(tricky, min_size=1, max_size=5).map(tuple))
def test_text_splits_back_into_the_parts(raw):
    try:
        identity = canonicalize(raw)
    except InvalidIdentity:
        return
    assert tuple(identity.text.split(PART_SEPARATOR)) == identity.canonical
    assert unicodedata.is_normalized("NFC", identity.text)
