"""Sync and async, PostgreSQL and HTTP are one client: same methods, same words, same plans."""

from __future__ import annotations

import ast
import inspect
from pathlib import Path

import pytest

import helixqueue
from helixqueue import AsyncHelixClient, AsyncHelixQueue, HelixClient, HelixQueue
from helixqueue.client import async_client, asynchronous, http, http_async, sync, sync_client

PAIRS = [(HelixQueue, AsyncHelixQueue), (HelixClient, AsyncHelixClient)]
# Where their methods are written.
FILES = [(sync, asynchronous), (sync_client, async_client), (http, http_async)]
# What a loop does otherwise.
OTHERWISE = {"batches", "close", "embedded", "twin", "fences"}


def methods(client):
    """What people can call; `fences` is no method, but makes the fences of its own kind."""
    return {name for name in dir(client) if not name.startswith("_")} - {"fences"}


METHODS = [(one, two, name) for one, two in PAIRS for name in [*sorted(methods(one)), "__init__"]]


@pytest.mark.parametrize(("one", "two"), PAIRS)
def test_both_have_the_same_methods(one, two):
    assert methods(one) == methods(two)
    assert len(methods(one)) > 15


def test_over_http_there_is_everything_but_what_needs_a_database():
    assert methods(HelixQueue) - methods(HelixClient) == {"embedded", "fence"}
    assert methods(HelixClient) <= methods(HelixQueue)
    for name in sorted(methods(HelixClient) - {"run"}):
        there = inspect.signature(getattr(HelixQueue, name)).parameters
        here = inspect.signature(getattr(HelixClient, name)).parameters
        assert [one for one in there if one != "within"] == list(here), name


@pytest.mark.parametrize(("one", "two", "name"), METHODS)
def test_a_method_has_the_same_parameters_and_words_in_both(one, two, name):
    first, second = getattr(one, name), getattr(two, name)
    same = str(inspect.signature(second)).replace("Async", "")
    assert str(inspect.signature(first)) == same
    if name != "twin":  # each is the other's
        assert inspect.getdoc(first) == inspect.getdoc(second)


def plans_of(module):
    """The sources of a client's methods, without what makes them async."""
    tree = ast.parse(Path(inspect.getsourcefile(module)).read_text(encoding="utf-8"))
    [client] = [node for node in tree.body if isinstance(node, ast.ClassDef)]
    return {
        node.name: "\n".join(ast.unparse(line) for line in node.body).replace("await ", "")
        for node in client.body
        if hasattr(node, "name") and not node.name.startswith("_")
    }


@pytest.mark.parametrize(("one", "two"), FILES)
def test_a_method_carries_out_the_same_plan_in_both(one, two):
    first, second = plans_of(one), plans_of(two)
    assert first.keys() == second.keys()
    for name in first.keys() - OTHERWISE:
        assert first[name] == second[name], name


def test_every_exported_name_can_be_had_and_is_listed():
    for name in helixqueue.__all__:
        assert getattr(helixqueue, name) is not None
    assert set(helixqueue.__all__) <= set(dir(helixqueue))
    with pytest.raises(AttributeError, match="no attribute 'HelixQ'"):
        _ = helixqueue.HelixQ
