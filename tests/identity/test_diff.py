"""Diffs: applied to what was, they give what came; bounded; never silently empty."""

from __future__ import annotations

import time

import jsonpatch
import pytest
from hypothesis import given
from hypothesis import strategies as st

from helixqueue.identity import canonical_text, diff
from helixqueue.identity.diff import MAX_DEPTH, MAX_OPS

strings = st.text("ab~/\xe9", max_size=3)
scalars = st.none() | st.booleans() | st.integers(-2, 2) | st.sampled_from([0.5, 1.0]) | strings
documents = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=5) | st.dictionaries(strings, inner, max_size=5),
    max_leaves=20,
)


@pytest.mark.parametrize(
    ("was", "got", "ops"),
    [
        ({"a": 1}, {"a": 1}, []),
        ({"a": 1}, {"a": 1.0}, []),
        (
            {"pod5": "a.pod5"},
            {"pod5": "b.pod5"},
            [{"op": "replace", "path": "/pod5", "value": "b.pod5", "was": "a.pod5"}],
        ),
        ({"a": 1}, {}, [{"op": "remove", "path": "/a", "was": 1}]),
        ({}, {"a": 1}, [{"op": "add", "path": "/a", "value": 1}]),
        ([1, 2, 3], [1, 3], [{"op": "remove", "path": "/1", "was": 2}]),
        ([1, 3], [1, 2, 3], [{"op": "add", "path": "/1", "value": 2}]),
        (
            {"a/b": {"~": [0]}},
            {"a/b": {"~": [5]}},
            [{"op": "replace", "path": "/a~1b/~0/0", "value": 5, "was": 0}],
        ),
        (1, "1", [{"op": "replace", "path": "", "value": "1", "was": 1}]),
        ([], {}, [{"op": "replace", "path": "", "value": {}, "was": []}]),
        ({"a": None}, {}, [{"op": "remove", "path": "/a", "was": None}]),
    ],
)
def test_gives_these_operations(was, got, ops):
    assert diff(was, got) == ops


@given(documents, documents)
def test_applied_to_what_was_gives_what_came(was, got):
    result = jsonpatch.apply_patch(was, diff(was, got))
    assert canonical_text(result) == canonical_text(got)


@given(documents, documents)
def test_is_empty_only_for_equal_payloads(was, got):
    assert (diff(was, got) == []) == (canonical_text(was) == canonical_text(got))


@given(documents, documents)
def test_tells_what_it_takes_away(was, got):
    for op in diff(was, got):
        assert ("was" in op) == (op["op"] in ("replace", "remove"))


# Bounds ----------------------------------------------------------------------------------------


def whole(was, got):
    return [{"op": "replace", "path": "", "value": got, "was": was}]


def test_too_many_operations_become_one():
    was = dict.fromkeys(map(str, range(MAX_OPS + 1)), 0)
    got = dict.fromkeys(map(str, range(MAX_OPS + 1)), 1)
    assert diff(was, got) == whole(was, got)


def test_too_many_bytes_become_one():
    was, got = {"a": "x" * 70_000, "b": 1}, {"a": "y", "b": 1}
    assert diff(was, got) == whole(was, got)


def test_a_deep_difference_is_shown_by_what_holds_it():
    was, got = 1, 2
    for _ in range(60):
        was, got = {"a": was}, {"a": got}
    (op,) = diff(was, got)
    assert op["path"] == "/a" * MAX_DEPTH
    assert jsonpatch.apply_patch(was, [op]) == got


# Defects of others: research section 5, item 7 -------------------------------------------------


@pytest.mark.parametrize(
    ("was", "got"), [([True], [1]), ([False], [0]), (True, 1), ([1.0], [True])]
)
def test_true_and_one_differ(was, got):
    assert diff(was, got)


def test_five_thousand_elements_take_no_second():
    was, got = list(range(5000)), list(range(5000))[::-1]
    began = time.process_time()
    assert diff(was, got) == whole(was, got)
    assert time.process_time() - began < 0.5


def test_depth_two_thousand_is_no_recursion_error():
    was, got = [], [1]
    for _ in range(2000):
        was, got = [was], [got]
    (op,) = diff(was, got)
    assert op["path"] == "/0" * MAX_DEPTH
