"""A real service on loopback and on a real database, tokens for it, and its OpenAPI document."""

from __future__ import annotations

import itertools
import json
import socket
import ssl
import threading
import uuid
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta

import httpx
import uvicorn

from helixqueue.dashboard.app import create_app
from helixqueue.engine import tokens
from helixqueue.service import ServiceSettings
from helixqueue.service.run import config_of
from tests.support.lab import POOLED, Lab, wait_until

PROBLEM_PREFIX = "urn:helixqueue:problem:"
ALL = ("submit", "work", "read", "payloads", "operate", "admin", "run", "seal")
# Shared: loading the certificates for each client took most of a test's time.
TLS = ssl.create_default_context()
_numbers = itertools.count(1)


@contextmanager
def serving(settings, grace_seconds=1):
    """Run a service in a thread; yields its URL."""
    listener = socket.create_server(("127.0.0.1", 0), backlog=512)
    config = config_of(settings, create_app)
    config.timeout_graceful_shutdown = grace_seconds
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True)
    thread.start()
    try:
        wait_until(lambda: server.started)
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
        made = tokens.new_token()
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
        """A client whose token has these scopes; all scopes by default."""
        token = token or self.token(*scopes, **options)
        return httpx.Client(
            base_url=self.url,
            headers={"Authorization": f"Bearer {token}"},
            timeout=30,
            verify=TLS,
        )


def settings_for(database, **options):
    # The tests send more unauthenticated requests than the default limit allows.
    options.setdefault("anonymous_burst", 100_000)
    return ServiceSettings(database.dsn("service"), pooled=POOLED, poll_seconds=0.05, **options)


# Operations of the OpenAPI document, and requests for each of them.

DOCUMENT = create_app(ServiceSettings("postgresql://nobody@/nowhere")).openapi()
OPERATIONS = [
    (method.upper(), path, operation["x-scope"])
    for path, methods in DOCUMENT["paths"].items()
    for method, operation in methods.items()
]
GUARDED = [operation for operation in OPERATIONS if operation[2] != "open"]


def fill_path(path, batch_id=None, fence="v1:" + "0" * 64):
    """The path with a value for each of its parameters."""
    return path.format(
        batch_id=batch_id or uuid.uuid4(), queue="shared", name="uploader", fence=fence, letter=1,
        ledger="shared", feed="shared", worker="gpu-1", number=1, run="words",
    )  # fmt: skip


def operation_name(operation):
    return f"{operation[0]} {operation[1]}"


# Requests and responses.


def submit(http, lab, identity="s-1", payload=None, **more):
    body = {"identity": identity, "payload": {} if payload is None else payload, **more}
    headers = body.pop("headers", {})
    return http.post(f"/v1/queues/{lab.q}/batches", json=body, headers=headers)


def problem_kind(response):
    """The kind of a problem response; checks that it has every member a problem needs."""
    assert response.headers["content-type"] == "application/problem+json"
    problem = response.json()
    assert problem["status"] == response.status_code
    assert problem["remedy"]
    assert problem["expected"]
    assert problem["got"]
    assert problem["request"] == response.headers["x-request-id"]
    return problem["type"].removeprefix(PROBLEM_PREFIX)


def stream_events(stream):
    """Each server-sent event as (id, kind, data), as they arrive."""
    fields = {}
    for line in stream.iter_lines():
        name, _, value = line.partition(": ")
        if line:
            fields[name] = value
        elif "data" in fields:
            yield fields.get("id"), fields["event"], json.loads(fields["data"])
            fields = {}


def offer_login(database, tenant="a", **options):
    """The code of a new login link."""
    code = tokens.new_token("hl_")
    offer = tokens.offer_login(tenant=tenant, code_hash=code.hash, actor="ann", **options)
    with Lab(database, "operator") as operator:
        operator.run(offer)
    return code.token
