"""Which datums an input becomes, and the laws of cross, union and group."""

from __future__ import annotations

from collections import Counter
from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from helixqueue.runs.expansion import Part, datum_name, expand, matches
from helixqueue.runs.spec import Atom, InputSpec

NAMES = sorted(["a.txt", "b/x", "b/y/z", "b-c", "c/x", "c/y", "d/sub/x/1", "e"])


@pytest.mark.parametrize(
    ("glob", "paths"),
    [
        ("/", [""]),
        ("/*", ["a.txt", "b-c", "b/", "c/", "d/", "e"]),
        ("/*/x", ["b/x", "c/x"]),
        ("/*/y", ["b/y/", "c/y"]),
        ("/*/y/", ["b/y/"]),
        ("/*/sub/x", ["d/sub/x/"]),
        ("/*/none", []),
        ("/**", NAMES),
    ],
)
def test_glob_matches_files_and_directories(glob, paths):
    assert [match.path for match in matches(glob, NAMES)] == paths


def test_nothing_matches_where_there_are_no_files():
    assert [list(matches(glob, [])) for glob in ("/", "/*", "/**", "/*/x")] == [[], [], [], []]


def test_star_is_the_directory_of_a_path_below_it():
    assert [match.star for match in matches("/*/x", NAMES)] == ["b", "c"]


# Small trees over three atoms, whose listings have few names, so that names repeat.
ATOMS = [
    Atom(URI=f"s3://b/{number}", repo=repo, glob=glob)
    for number, (repo, glob) in enumerate([("r", "/*"), ("r", "/**"), ("s", "/*/x")])
]
FILES = st.lists(st.sampled_from(["a", "b/x", "c/x", "c/y", "d"]), unique=True).map(sorted)
LEAVES = st.sampled_from(ATOMS).map(lambda atom: InputSpec(atom=atom))


def _branch(children):
    lists = st.lists(children, max_size=3).map(tuple)
    return st.one_of(*(lists.map(lambda each, name=name: InputSpec(**{name: each}))
                       for name in ("cross", "union", "group")))  # fmt: skip


TREES = st.recursive(LEAVES, _branch, max_leaves=5)


def expanded(tree, files):
    return list(expand(tree, lambda atom: matches(atom.glob, files)))


@given(TREES, FILES)
def test_expansion_is_deterministic(tree, files):
    assert expanded(tree, files) == expanded(tree, files)


@given(TREES, TREES, FILES)
def test_union_has_the_datums_of_both_in_any_order(left, right, files):
    both = Counter(expanded(InputSpec(union=(left, right)), files))
    assert both == Counter(expanded(InputSpec(union=(right, left)), files))
    assert both == Counter(expanded(left, files)) + Counter(expanded(right, files))


@given(TREES, TREES, TREES, FILES)
def test_cross_distributes_over_union(first, left, right, files):
    inside = InputSpec(cross=(first, InputSpec(union=(left, right))))
    outside = InputSpec(union=(InputSpec(cross=(first, left)), InputSpec(cross=(first, right))))
    assert Counter(expanded(inside, files)) == Counter(expanded(outside, files))


@given(TREES, TREES, FILES)
def test_cross_has_every_pair_once(left, right, files):
    pairs = product(expanded(left, files), expanded(right, files))
    assert expanded(InputSpec(cross=(left, right)), files) == [a + b for a, b in pairs]


@given(TREES, FILES)
def test_group_is_idempotent_and_loses_no_part(tree, files):
    once = expanded(InputSpec(group=(tree,)), files)
    assert expanded(InputSpec(group=(InputSpec(group=(tree,)),)), files) == once
    assert {part for parts in once for part in parts} == {
        part for parts in expanded(tree, files) for part in parts
    }
    names = [datum_name(parts) for parts in once]
    assert len(set(names)) == len(names)


def test_cross_of_nothing_has_no_datum():
    assert expanded(InputSpec(cross=()), NAMES) == []


def test_group_joins_the_files_of_one_name():
    reads, index = (
        Atom(URI="s3://b/r", repo="runs", glob=glob) for glob in ("/*/reads", "/*/index")
    )
    files = ["a/index", "a/reads", "b/reads"]
    tree = InputSpec(group=(InputSpec(atom=reads), InputSpec(atom=index)))
    assert [[part.match.path for part in parts] for parts in expanded(tree, files)] == [
        ["a/reads", "a/index"], ["b/reads"],
    ]  # fmt: skip
    assert [datum_name(parts) for parts in expanded(tree, files)] == ["runs/a", "runs/b"]


def test_names_of_datums_are_their_matches():
    all_of, each = (InputSpec(atom=Atom(URI="s3://b", repo=repo, glob=glob))
                    for repo, glob in (("k", "/"), ("b", "/*")))  # fmt: skip
    parts = expanded(InputSpec(cross=(all_of, each)), ["x", "y/z"])
    assert [datum_name(each) for each in parts] == ["k//b/x", "k//b/y"]


@given(
    st.text("aä/.", min_size=1, max_size=3).filter(lambda star: star.strip("/") == star),
    st.integers(0, 400),
)
def test_name_of_a_datum_fits_an_identity(star, times):
    [match] = matches("/**", ["/".join([star.replace("/", "")] * (times + 1)) or "a"])
    name = datum_name((Part(ATOMS[1], match),))
    assert len(name.encode()) <= 255
