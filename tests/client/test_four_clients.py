"""Sync and async, PostgreSQL and HTTP are one client: same methods, same docs, same operations."""

from __future__ import annotations

import ast
import asyncio
import inspect
import textwrap
from pathlib import Path

import pytest

import helixqueue
from helixqueue import AsyncHelixClient, AsyncHelixQueue, HelixClient, HelixQueue
from helixqueue.client import (
    async_client,
    asynchronous,
    http,
    http_async,
    letters,
    queue_methods,
    sync,
    sync_client,
)
from helixqueue.errors import Refused
from helixqueue.records.lease import Settlement, Token

CLIENTS = [HelixQueue, AsyncHelixQueue, HelixClient, AsyncHelixClient]
PAIRS = [(HelixQueue, AsyncHelixQueue), (HelixClient, AsyncHelixClient)]
# Where their methods are written.
FILES = [(sync, asynchronous), (sync_client, async_client), (http, http_async)]
# Methods whose async version has another body.
DIFFERENT = {"batches", "fences"}
EVERYWHERE = {
    *("submit", "submit_many", "state", "wait", "result", "history", "batches"),
    *("letters", "letter", "redrive", "discard", "refused", "twins", "delete_queue"),
    *("ledger", "feed"),
    *("cancel", "retry", "erase", "claim", "start", "renew", "release", "settle", "work", "close"),
}
NEEDS_DATABASE = {"embedded", "dsn", "fence", "fences"}
NOWHERE = "http://127.0.0.1:9"


def public_names(client):
    return {name for name in dir(client) if not name.startswith("_")}


@pytest.mark.parametrize("client", CLIENTS)
def test_help_lists_only_what_users_call(client):
    needs = NEEDS_DATABASE if client in {HelixQueue, AsyncHelixQueue} else set()
    assert public_names(client) == EVERYWHERE | needs


@pytest.mark.parametrize("client", CLIENTS)
def test_help_explains_every_name(client):
    unexplained = [name for name in public_names(client) if not getattr(client, name).__doc__]
    assert unexplained == []


METHODS = [
    (client, async_client, name)
    for client, async_client in PAIRS
    for name in [*sorted(public_names(client) - {"dsn", "fences"}), "__init__"]
]


@pytest.mark.parametrize(("client", "async_client", "name"), METHODS)
def test_async_method_has_the_same_parameters_and_docs(client, async_client, name):
    method, async_method = getattr(client, name), getattr(async_client, name)
    signature = str(inspect.signature(async_method)).replace("Async", "")
    assert str(inspect.signature(method)) == signature
    assert inspect.getdoc(method) == inspect.getdoc(async_method)


def bodies_of(module):
    """The sources of a client's methods, without what makes them async."""
    tree = ast.parse(Path(inspect.getsourcefile(module)).read_text(encoding="utf-8"))
    [client] = [node for node in tree.body if isinstance(node, ast.ClassDef)]
    return {
        node.name: "\n".join(ast.unparse(line) for line in node.body)
        .replace("await ", "")
        .replace("Async", "")
        for node in client.body
        if hasattr(node, "name") and not node.name.startswith("_")
    }


@pytest.mark.parametrize(("module", "async_module"), FILES)
def test_async_method_runs_the_same_operation(module, async_module):
    bodies, async_bodies = bodies_of(module), bodies_of(async_module)
    assert bodies.keys() == async_bodies.keys()
    for name in bodies.keys() - DIFFERENT:
        assert bodies[name] == async_bodies[name], name


@pytest.mark.parametrize(
    ("methods", "async_methods"),
    [
        (letters.LetterMethods, letters.AsyncLetterMethods),
        (queue_methods.QueueMethods, queue_methods.AsyncQueueMethods),
    ],
)
def test_async_method_of_a_base_class_runs_the_same_operation(methods, async_methods):
    names = {name for name in vars(methods) if not name.startswith("_")}
    assert names == {name for name in vars(async_methods) if not name.startswith("_")}
    for name in names - {"letters"}:
        source, async_source = (
            textwrap.dedent(inspect.getsource(getattr(owner, name)))
            for owner in (methods, async_methods)
        )
        assert source == async_source.replace("async def", "def").replace("await ", ""), name


SETTLEMENT = Settlement(1, Token(1, 1, 1), "completed")


def test_service_client_refuses_a_transaction_of_the_caller():
    with (
        HelixClient(NOWHERE, "hx_none") as helix,
        pytest.raises(Refused, match="cannot join your transaction"),
    ):
        helix.settle("w", [SETTLEMENT], within=object())


def test_async_service_client_refuses_a_transaction_of_the_caller():
    async def settle():
        async with AsyncHelixClient(NOWHERE, "hx_none") as helix:
            await helix.settle("w", [SETTLEMENT], within=object())

    with pytest.raises(Refused, match="cannot join your transaction"):
        asyncio.run(settle())


def test_every_exported_name_exists_and_is_listed():
    for name in helixqueue.__all__:
        assert getattr(helixqueue, name) is not None
    assert set(helixqueue.__all__) <= set(dir(helixqueue))
    with pytest.raises(AttributeError, match="no attribute 'HelixQ'"):
        _ = helixqueue.HelixQ
