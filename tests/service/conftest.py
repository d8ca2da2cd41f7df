"""A real service on loopback, on a real database, and tokens for whoever a test needs."""

from __future__ import annotations

import itertools
import socket
import ssl
import threading
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta

import httpx
import pytest
import uvicorn

from helixqueue.engine import tokens
from helixqueue.service import ServiceSettings
from helixqueue.service.run import config_of
from tests.support.lab import POOLED, Lab, one_database, until

ALL = ("submit", "work", "read", "payloads", "operate", "admin")
# Reading all certificates for each client took most of a test's time.
TLS = ssl.create_default_context()
_numbers = itertools.count(1)


@contextmanager
def serving(settings, grace_seconds=1):
    """The URL of a service, in a thread of its own."""
    listener = socket.create_server(("127.0.0.1", 0), backlog=512)
    config = config_of(settings)
    config.timeout_graceful_shutdown = grace_seconds
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True)
    thread.start()
    try:
        until(lambda: server.started)
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join()
        listener.close()


class Site:
    """One service and the database behind it."""

    def __init__(self, database, url):
        self.database = database
        self.url = url

    def token(self, *scopes, tenant="a", queues=None, name=None, expires_at=None):
        made = tokens.fresh()
        with Lab(self.database, "operator") as operator:
            assert operator.run(
                tokens.create(
                    tenant=tenant,
                    name=name or f"t{next(_numbers)}",
                    token_hash=made.hash,
                    scopes=scopes or ALL,
                    queues=queues,
                    expires_at=expires_at or datetime.now(UTC) + timedelta(days=1),
                )
            )
        return made.token

    def client(self, *scopes, token=None, **options):
        """A client with a token of these scopes; of all of them unless said."""
        token = token or self.token(*scopes, **options)
        return httpx.Client(
            base_url=self.url,
            headers={"Authorization": f"Bearer {token}"},
            timeout=30,
            verify=TLS,
        )


def settings_for(database, **options):
    # The tests are strangers more often than anybody should be.
    options.setdefault("strangers_burst", 100_000)
    return ServiceSettings(database.dsn("service"), pooled=POOLED, poll_seconds=0.05, **options)


@pytest.fixture(scope="module")
def database(server, template, pooler):
    yield from one_database(server, template, pooler)


@pytest.fixture(scope="module")
def site(database):
    with serving(settings_for(database)) as url:
        yield Site(database, url)


@pytest.fixture
def http(site):
    with site.client() as client:
        yield client


@pytest.fixture
def lab(database):
    """A queue of this test's own, of tenant a, and a client of the engine."""
    with Lab(database) as lab:
        lab.queue()
        yield lab
