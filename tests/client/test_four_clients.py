"""Sync and async, PostgreSQL and HTTP are one client: same methods, same docs, same operations."""

from __future__ import annotations

import asyncio
import inspect

import pytest

import helixqueue
from helixqueue import AsyncHelixClient, AsyncHelixQueue, HelixClient, HelixQueue
from helixqueue.errors import Refused
from helixqueue.records.lease import SealedToken, Settlement

CLIENTS = [HelixQueue, AsyncHelixQueue, HelixClient, AsyncHelixClient]
PAIRS = [(HelixQueue, AsyncHelixQueue), (HelixClient, AsyncHelixClient)]
EVERYWHERE = {
    *("submit", "submit_many", "state", "wait", "result", "history", "batches"),
    *("manifests", "outputs", "seals"),
    *("letters", "letter", "redrive", "discard", "refused", "twins", "delete_queue"),
    *("batch", "ledger", "feed", "duties", "findings", "intakes"),
    *("runs", "run", "run_text", "run_outputs", "datums"),
    *("start_run", "append_run", "wait_run", "cancel_run", "retry_run"),
    *("cancel", "retry", "erase", "claim", "start", "renew", "release", "settle", "work", "close"),
}
NEEDS_DATABASE = {
    *("embedded", "dsn", "fence", "fences"),
    *("webhook", "webhooks", "webhook_app", "apply_webhook"),
}
PROPERTIES = {"dsn", "fences", "webhooks"}
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
    for name in [*sorted(public_names(client) - PROPERTIES), "__init__"]
]


@pytest.mark.parametrize(("client", "async_client", "name"), METHODS)
def test_async_method_has_the_same_parameters_and_docs(client, async_client, name):
    method, async_method = getattr(client, name), getattr(async_client, name)
    signature = str(inspect.signature(async_method)).replace("Async", "")
    assert str(inspect.signature(method)) == signature
    assert inspect.getdoc(method) == inspect.getdoc(async_method)


@pytest.mark.parametrize("name", sorted(PROPERTIES))
def test_async_property_has_the_same_docs(name):
    properties = (getattr(client, name) for client in (HelixQueue, AsyncHelixQueue))
    sync_doc, async_doc = map(inspect.getdoc, properties)
    assert sync_doc == async_doc


SETTLEMENT = Settlement(1, SealedToken("sealed"), "completed")


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
