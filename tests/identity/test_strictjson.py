"""Strict JSON: what is refused and where, and that the text is that of RFC 8785."""

from __future__ import annotations

import datetime as dt
import json
import math
import struct
from collections import OrderedDict
from decimal import Decimal
from enum import IntEnum, StrEnum
from random import Random

import orjson
import pytest
import rfc8785
from hypothesis import example, given, settings
from hypothesis import strategies as st

from helixqueue.errors import InvalidPayload
from helixqueue.identity import canonical_text, loads
from helixqueue.identity.strictjson import MAX_NAMES_PER_OBJECT, MAX_TEXT_BYTES
from helixqueue.identity.survey import Survey, _count_strings, is_legal, is_rewritten, survey


def refusal(function, argument):
    with pytest.raises(InvalidPayload) as caught:
        function(argument)
    return caught.value


# Known texts -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "null"),
        (True, "true"),
        ([], "[]"),
        ({}, "{}"),
        ({"pod5": "a.pod5", "n": 3}, '{"n":3,"pod5":"a.pod5"}'),
        (1.0, "1"),
        (-0.0, "0"),
        (0.5, "0.5"),
        (1e-7, "1e-7"),
        (1e-6, "0.000001"),
        (0.0001, "0.0001"),
        ((1, 2), "[1,2]"),
        ("\x1f\x7f\u2028", '"\\u001f\x7f\u2028"'),
        # RFC 8785, section 3.2.2 and 3.2.3
        (
            {
                "numbers": [333333333.33333329, 1e30, 4.50, 2e-3, 1e-27],
                "string": "\u20ac$\u000f\u000aA'\u0042\u0022\u005c\\\"/",
                "literals": [None, True, False],
            },
            (
                '{"literals":[null,true,false],"numbers":[333333333.3333333,1e+30,4.5,0.002,1e-27],'
                '"string":"\u20ac$\\u000f\\nA\'B\\"\\\\\\\\\\"/"}'
            ),
        ),
    ],
)
def test_writes_this_text(value, text):
    assert canonical_text(value) == text


def test_sorts_names_by_utf16_code_units():
    """RFC 8785, section 3.2.3: U+1F600 is a surrogate pair and sorts before U+FB33."""
    names = ["\u20ac", "\r", "\ufb33", "1", "\U0001f600", "\x80", "\xf6"]
    text = canonical_text(dict.fromkeys(names, 0))
    assert list(json.loads(text)) == ["\r", "1", "\x80", "\xf6", "\u20ac", "\U0001f600", "\ufb33"]


@pytest.mark.parametrize(
    ("bits", "text"),
    [  # RFC 8785, appendix B
        ("0000000000000000", "0"),
        ("8000000000000000", "0"),
        ("0000000000000001", "5e-324"),
        ("8000000000000001", "-5e-324"),
        ("7fefffffffffffff", "1.7976931348623157e+308"),
        ("ffefffffffffffff", "-1.7976931348623157e+308"),
        ("44b52d02c7e14af5", "9.999999999999997e+22"),
        ("44b52d02c7e14af6", "1e+23"),
        ("44b52d02c7e14af7", "1.0000000000000001e+23"),
        ("444b1ae4d6e2ef50", "1e+21"),
        ("3eb0c6f7a0b5ed8c", "9.999999999999997e-7"),
        ("3eb0c6f7a0b5ed8d", "0.000001"),
        ("41b3de4355555553", "333333333.3333332"),
        ("41b3de4355555557", "333333333.33333343"),
        ("becbf647612f3696", "-0.0000033333333333333333"),
    ],
)
def test_writes_doubles_like_ecmascript(bits, text):
    (value,) = struct.unpack(">d", bytes.fromhex(bits))
    assert canonical_text(value) == text


@pytest.mark.parametrize(
    ("first", "two"),
    [
        ('{"a":1,"b":2}', '{ "b" : 2, "a" : 1 }'),
        ("[1]", "[1.0]"),
        ("[1]", "[10e-1]"),
        ("[0]", "[-0]"),
        ("[0]", "[-0.0]"),
        ('["\\u00e9"]', '["\u00e9"]'),
        ('["\\ud83d\\ude00"]', '["\U0001f600"]'),
        ('["\\/"]', '["/"]'),
    ],
)
def test_equal_documents_have_one_text(first, two):
    assert canonical_text(loads(first)) == canonical_text(loads(two))


@pytest.mark.parametrize(
    ("first", "two"),
    [("[1]", "[true]"), ("[1]", '["1"]'), ('["\\u00e9"]', '["e\\u0301"]'), ("[null]", "[]")],
)
def test_different_documents_have_two_texts(first, two):
    assert canonical_text(loads(first)) != canonical_text(loads(two))


# Refusals of text ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "code", "path"),
    [
        ("", "syntax", ""),
        ("{", "syntax", ""),
        ("{'a':1}", "syntax", ""),
        ("[1,]", "syntax", ""),
        ("01", "syntax", ""),
        ("[1] x", "syntax", ""),
        ('["a\nb"]', "syntax", ""),
        ('["a\0b"]', "syntax", ""),
        ("\ufeff[]", "syntax", ""),
        (b"\xef\xbb\xbf[]", "syntax", ""),
        (b'["\xff"]', "encoding", ""),
        (b'["\xed\xa0\x80"]', "encoding", ""),
        ("[]".encode("utf-16"), "encoding", ""),
        ('{"a":1,"a":1}', "duplicate-name", "/a"),
        ('{"x":[0,{"a":1,"b":2,"a":3}]}', "duplicate-name", "/x/1/a"),
        ('{"a":1,"\\u0061":2}', "duplicate-name", "/a"),
        ('{"/":{"~":[NaN]}}', "number", "/~1/~0/0"),
        ("Infinity", "number", ""),
        ("[-Infinity]", "number", "/0"),
        ('{"a":1e400}', "number", "/a"),
        ('{"a":-1e400}', "number", "/a"),
        ("[1e-400]", "number", "/0"),
        ("[9007199254740992]", "number", "/0"),
        ("[-9007199254740992]", "number", "/0"),
        ("[9007199254740993.0]", "number", "/0"),
        ("[1e20]", "number", "/0"),
        ("[" + "9" * 5000 + "]", "number", "/0"),
        ('{"a":"\\u0000"}', "nul", "/a"),
        ('{"a":{"\\u0000":1}}', "nul", "/a"),
        ('{"a":"\\ud800"}', "surrogate", "/a"),
        ('{"a":"\\ude00\\ud83d"}', "surrogate", "/a"),
        ('{"\\ud800":1}', "surrogate", ""),
        ('{"\\ud800":1,"\\ud800":2}', "surrogate", ""),
        ('{"\\ud800":{"a":NaN}}', "surrogate", ""),
        ('["\ud800"]', "surrogate", "/0"),
        ("[" * 65 + "]" * 65, "depth", "/0" * 64),
        ('{"a":' * 65 + "1" + "}" * 65, "depth", "/a" * 64),
        ("[" * 900 + "]" * 900, "depth", "/0" * 64),
        ("[" * 100_000 + "]" * 100_000, "depth", ""),
        ("[" * 100_000, "depth", ""),
        ('{"a":' * 50_000, "depth", ""),
        ('"' + "x" * MAX_TEXT_BYTES + '"', "too-large", ""),
        ('"' + "\xe9" * (MAX_TEXT_BYTES // 2) + '"', "too-large", ""),
        (b" " * (MAX_TEXT_BYTES + 1), "too-large", ""),
        (7, "type", ""),
        (None, "type", ""),
    ],
    ids=lambda value: ascii(value)[:30],
)
def test_loads_refuses(text, code, path):
    error = refusal(loads, text)
    assert (error.code, error.path) == (code, path)
    assert str(error).isascii()
    assert "expected" in str(error)
    assert len(str(error)) < 400


def test_loads_refuses_too_many_names():
    text = json.dumps({"in": {str(index): 0 for index in range(MAX_NAMES_PER_OBJECT + 1)}})
    error = refusal(loads, text)
    assert (error.code, error.path) == ("names", "/in")


def test_loads_takes_what_is_just_within_the_bounds():
    assert loads("[" * 64 + "]" * 64)
    assert loads("[" * 63 + "0" + "]" * 63)
    assert loads("9007199254740991") == 2**53 - 1
    assert loads("-9007199254740991") == -(2**53 - 1)
    assert len(loads('"' + "x" * (MAX_TEXT_BYTES - 2) + '"')) == MAX_TEXT_BYTES - 2
    names = {str(index): 0 for index in range(MAX_NAMES_PER_OBJECT)}
    assert loads(json.dumps(names)) == names
    assert loads("1e-300") == 1e-300
    assert loads("0e400") == 0


# Refusals of objects ---------------------------------------------------------------------------


class Plate(StrEnum):
    ONE = "plate-1"


class Lane(IntEnum):
    ONE = 1


def nested(depth):
    value = []
    for _ in range(depth - 1):
        value = [value]
    return value


def cycle():
    value = {}
    value["a"] = value
    return value


def bomb():
    """Forty small lists that unfold to 10**40 values."""
    value = []
    for _ in range(40):
        value = [value] * 10
    return value


@pytest.mark.parametrize(
    ("value", "code", "path"),
    [
        (b"x", "type", ""),
        ({"a": {1, 2}}, "type", "/a"),
        ({"a": [Decimal("1.5")]}, "type", "/a/0"),
        (dt.datetime(2026, 1, 1, tzinfo=dt.UTC), "type", ""),
        (object(), "type", ""),
        ({"a": math.nan}, "number", "/a"),
        ({"a": math.inf}, "number", "/a"),
        ([2**53], "number", "/0"),
        ([-(2**53)], "number", "/0"),
        ([2**70], "number", "/0"),
        ([2.0**53], "number", "/0"),
        ([1e20], "number", "/0"),
        ({1: "a"}, "name-type", ""),
        ({"a": {None: 1}}, "name-type", "/a"),
        ({"a": {"b": 1, 2: 3}}, "name-type", "/a"),
        ({"a": "x\0"}, "nul", "/a"),
        ({"\0": 1}, "nul", ""),
        ({"a": "\ud800"}, "surrogate", "/a"),
        ({"a": "\xe9\udfff"}, "surrogate", "/a"),
        ({"\udc00": 1}, "surrogate", ""),
        (nested(65), "depth", "/0" * 64),
        (cycle(), "depth", "/a" * 64),
        (bomb(), "too-large", ""),
        ([0] * MAX_TEXT_BYTES, "too-large", ""),
        ("x" * MAX_TEXT_BYTES, "too-large", ""),
        ("\xe9" * (MAX_TEXT_BYTES // 2), "too-large", ""),
        ({str(n): 0 for n in range(MAX_NAMES_PER_OBJECT + 1)}, "names", ""),
    ],
    ids=lambda value: type(value).__name__ if not isinstance(value, str) else ascii(value)[:20],
)
def test_canonical_text_refuses(value, code, path):
    error = refusal(canonical_text, value)
    assert (error.code, error.path) == (code, path)
    assert str(error).isascii()


def test_canonical_text_takes_subclasses_by_their_value():
    value = OrderedDict(b=Plate.ONE, a=[Lane.ONE, (1, 2)])
    assert canonical_text(value) == '{"a":[1,[1,2]],"b":"plate-1"}'


def test_canonical_text_takes_the_deepest_legal_value():
    assert canonical_text(nested(64)) == "[" * 64 + "]" * 64


def test_a_backslash_before_u0000_is_no_nul():
    assert canonical_text(["\\u0000"]) == '["\\\\u0000"]'
    assert loads('["\\\\u0000"]') == ["\\u0000"]


# Defects of others: research section 5, item 3 -------------------------------------------------


def test_one_and_one_point_zero_are_one_payload():
    assert canonical_text(loads('{"a":1}')) == canonical_text(loads('{"a":1.0}'))


def test_duplicate_names_do_not_collapse():
    assert refusal(loads, '{"a":1,"a":2}').code == "duplicate-name"


def test_two_overflowing_numbers_are_not_one_payload():
    assert refusal(loads, "1e400").code == refusal(loads, "1e500").code == "number"


def test_large_integers_do_not_collide():
    """2**63 and 2**63+1 are one double."""
    for number in (2**63, 2**63 + 1):
        assert refusal(canonical_text, [number]).code == "number"
        assert refusal(loads, str(number)).code == "number"


# Properties ------------------------------------------------------------------------------------

strings = st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=10)
safe_integers = st.integers(-(2**53) + 1, 2**53 - 1)
safe_floats = st.floats(allow_nan=False, allow_infinity=False).filter(
    lambda number: not 2**53 - 1 < abs(number) < 1e21
)
scalars = st.none() | st.booleans() | safe_integers | safe_floats | strings
documents = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(strings, inner, max_size=4),
    max_leaves=12,
)
ascii_documents = st.recursive(
    st.none() | st.booleans() | safe_integers | safe_floats | strings,
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(st.text(st.characters(codec="ascii")), inner, max_size=4)
    ),
    max_leaves=12,
)


@given(documents | ascii_documents)
@example({"\U0001f600": 1, "\ufb33": 2})
def test_the_text_is_that_of_rfc8785(value):
    try:
        text = canonical_text(value)
    except InvalidPayload as error:
        refused = error.code
    else:
        refused = None
        assert text == rfc8785.dumps(value).decode()
    assert refused in (None, "nul")


bit_patterns = st.integers(0, 2**64 - 1).map(
    lambda bits: struct.unpack(">d", struct.pack(">Q", bits))[0]
)
powers_of_ten = st.builds(lambda power: float(f"1e{power}"), st.integers(-324, 308))
# Decimals that lie between two doubles, where a sloppy writer gives a digit too many or too few.
halfway = st.builds(
    lambda digits, power: float(f"{digits}5e{power}"),
    st.integers(1, 10**17),
    st.integers(-340, 290),
)
neighbours = st.builds(
    lambda number, up: math.nextafter(number, math.inf if up else -math.inf),
    powers_of_ten | st.sampled_from([2.0**53, 2.0**-1022, 1e-6, 1e-7, 1e-5, 1e-4, 1e16, 1e21]),
    st.booleans(),
)
whole = st.integers(-(2**53) + 1, 2**53 - 1).map(float)
subnormal = st.integers(1, 2**52 - 1).map(lambda bits: struct.unpack("<d", struct.pack("<Q", bits)))
any_floats = (
    st.floats()
    | bit_patterns
    | powers_of_ten
    | halfway
    | neighbours
    | whole
    | subnormal.map(lambda found: found[0])
    | st.floats(1e-8, 1e-3)
)


@settings(max_examples=1000)
@given(any_floats, st.booleans())
def test_floats_are_written_as_rfc8785_says(number, negative):
    number = -number if negative else number
    document = {"b": [number, "x"], "a": number}
    if not math.isfinite(number) or 2**53 - 1 < abs(number) < 1e21:
        assert refusal(canonical_text, document).code == "number"
    else:
        assert canonical_text(document) == rfc8785.dumps(document).decode()


def test_floats_of_every_decade_are_written_as_rfc8785_says():
    """All powers of ten with their neighbours, and a few thousand doubles drawn by chance."""
    random = Random(8785)
    numbers = [float(f"{digits}e{power}") for power in range(-330, 309) for digits in (1, 1.5, 9.9)]
    numbers += [math.nextafter(number, way) for number in numbers for way in (0.0, math.inf)]
    numbers += [struct.unpack(">d", random.randbytes(8))[0] for _ in range(5_000)]
    numbers += [round(random.random() * 10 ** random.randint(-8, 8), 6) for _ in range(5_000)]
    for number in filter(is_legal, numbers):
        assert canonical_text(number) == rfc8785.dumps(number).decode()
        assert canonical_text(-number) == rfc8785.dumps(-number).decode()


@given(any_floats)
def test_floats_that_are_not_rewritten_are_written_by_orjson_as_rfc8785_says(number):
    if math.isfinite(number) and is_legal(number) and not is_rewritten(number):
        assert orjson.dumps(number).decode() == rfc8785.dumps(number).decode()


def test_no_legal_float_needs_the_slow_path():
    padding = [0.5] * 100  # more than the loop for small values takes
    for number in (0.0, -0.0, 1.0, -3.0, 1e-7, -2.5e-6, 5e-324, 1e21, 1.7976931348623157e308):
        found = survey({"a": [number, *padding]})
        assert found is not None
        assert found.strings == 1
        assert found.is_rewritten == is_rewritten(number)
    for number in (math.nan, math.inf, 2.0**53, 1e20, -1e20):
        assert survey([number]) is None
        assert survey([number, *padding]) is None


@given(documents)
def test_small_values_are_counted_as_large_ones(value):
    """The loop for small values takes no value that the survey treats in another way."""
    strings = _count_strings(value)
    if strings is not None:
        padded = survey([value, *[1] * 100])
        assert padded == Survey(strings)


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("1e-400", "number"),
        ("-0.1e-322", None),
        ("0." + "0" * 330 + "1", "number"),
        ("0." + "0" * 162 + "1e-163", "number"),
        ("0." + "0" * 159 + "1e-159", None),
        ("1e-0000324", "number"),
        ("0.0", None),
        ("0e-400", None),
        ("123456789012345678901234567890", "number"),
        ("12345678901234567890", "number"),
        ("1234567890123456789012.5", None),
        ("1e300", None),
        ('"\\u0000"', "nul"),
        ('"\\\\u0000"', None),
        ('{"a\\"": 1, "a\\"": 2}', "duplicate-name"),
        ('{"a": "\\"", "b\\\\": 2}', None),
        ('{"a": 1, "\\u0061": 2}', "duplicate-name"),
        ('{"": 1, "": 2}', "duplicate-name"),
        ('{"😀": 1, "דּ": 2}', None),
    ],
)
def test_large_texts_are_read_as_strictly_as_small_ones(text, code):
    padded = f"[{text}{', 0.5' * 100}]"
    if code is None:
        value = json.loads(padded)
        assert loads(padded) == value
        assert canonical_text(value) == rfc8785.dumps(value).decode()
    else:
        error = refusal(loads, padded)
        assert (error.code, refusal(loads, text).code) == (code, code)
        assert error.path.startswith("/0")


names_up_to_uffff = st.text(st.characters(max_codepoint=0xFFFF, exclude_categories=["Cs"]))


@given(st.dictionaries(names_up_to_uffff.filter(lambda name: "\0" not in name), st.just(0)))
def test_names_up_to_uffff_are_sorted_without_the_slow_path(value):
    assert survey(value) == Survey(len(value))
    assert canonical_text(value) == rfc8785.dumps(value).decode()


@given(documents)
def test_the_text_can_be_read_and_has_itself_as_text(value):
    text = canonical_text(value)
    assert canonical_text(loads(text)) == text
    assert canonical_text(loads(text.encode())) == text
    assert canonical_text(loads(json.dumps(value, indent=1))) == text


names = st.sampled_from(["a", "b", 'c"', "d\\", "\u00e9"])
texts = st.recursive(
    st.sampled_from(["null", "1", "0.5", "1.0", '"', '"x"', '"y:\\""', '"a"', '"\\u0061"']),
    lambda inner: (
        st.lists(inner, max_size=3).map(lambda them: f"[{','.join(them)}]")
        | st.lists(st.tuples(names.map(json.dumps), inner), max_size=3).map(
            lambda them: f"{{{', '.join(f'{name}: {text}' for name, text in them)}}}"
        )
    ),
    max_leaves=8,
)


def once(pairs):
    """What no parser may lose."""
    if len(dict(pairs)) < len(pairs):
        raise ValueError("a name twice")
    return dict(pairs)


@given(texts)
@example('{"a": 1, "b": {"a": 2, "a": 2}}')
def test_loads_takes_a_text_only_if_all_of_it_is_in_the_value(text):
    try:
        whole = json.loads(text, object_pairs_hook=once)
    except ValueError:
        assert refusal(loads, text).code in {"duplicate-name", "syntax"}
    else:
        assert loads(text) == whole


@given(st.text() | st.binary())
def test_loads_never_fails_in_another_way(data):
    try:
        value = loads(data)
    except InvalidPayload:
        return
    canonical_text(value)
