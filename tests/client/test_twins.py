"""The sync and the async client are one client: same methods, same parameters, same plans."""

from __future__ import annotations

import ast
import inspect
from pathlib import Path

import pytest

import helixqueue
from helixqueue import AsyncHelixQueue, HelixQueue
from helixqueue.client import asynchronous, sync

METHODS = sorted(name for name in vars(HelixQueue) if not name.startswith("_"))
# What is no method, but makes the fences of its own kind.
METHODS.remove("fences")


def test_both_have_the_same_methods():
    other = sorted(name for name in vars(AsyncHelixQueue) if not name.startswith("_"))
    assert other == sorted([*METHODS, "fences"])
    assert len(METHODS) > 15


@pytest.mark.parametrize("name", [*METHODS, "__init__"])
def test_a_method_has_the_same_parameters_and_words_in_both(name):
    one, two = getattr(HelixQueue, name), getattr(AsyncHelixQueue, name)
    same = str(inspect.signature(two)).replace("Async", "")
    assert str(inspect.signature(one)) == same
    assert inspect.getdoc(one) == inspect.getdoc(two)


def plan_of(module, method):
    """The source of a method without what makes it async."""
    tree = ast.parse(Path(inspect.getsourcefile(module)).read_text(encoding="utf-8"))
    [client] = [node for node in tree.body if isinstance(node, ast.ClassDef)]
    node = [n for n in client.body if getattr(n, "name", "") == method][-1]
    text = "\n".join(ast.unparse(statement) for statement in node.body)
    return text.replace("await ", "")


@pytest.mark.parametrize("name", sorted(set(METHODS) - {"batches", "close", "embedded"}))
def test_a_method_carries_out_the_same_plan_in_both(name):
    assert plan_of(sync, name) == plan_of(asynchronous, name)


def test_every_exported_name_can_be_had_and_is_listed():
    for name in helixqueue.__all__:
        assert getattr(helixqueue, name) is not None
    assert set(helixqueue.__all__) <= set(dir(helixqueue))
    with pytest.raises(AttributeError, match="no attribute 'HelixQ'"):
        _ = helixqueue.HelixQ
