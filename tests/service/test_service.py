"""The service: readiness, database outages, logs, poolers, start and end."""

from __future__ import annotations

import asyncio
import gc
import json
import logging
import os
import re
import signal
import subprocess
import sys
import time
import uuid
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import httpx
import psycopg
import pytest

from helixqueue.dashboard.app import create_app
from helixqueue.log.lines import JsonFormatter
from helixqueue.log.requests import RequestLog
from helixqueue.service import ServiceSettings
from helixqueue.service.problems import PROBLEMS
from helixqueue.service.run import (
    COLLECT_TICKS,
    COLLECT_WITH_BODIES_TICKS,
    NEVER,
    HttpServer,
    check_database,
    config_of,
)
from helixqueue.service.service import Service
from tests.support.cli import HELIXQ, run_in_process
from tests.support.database import Database
from tests.support.faults import FaultProxy
from tests.support.lab import wait_until
from tests.support.pooler import Pooler
from tests.support.service import Site, serving, settings_for

DOCUMENT = Path(__file__).parents[2] / "docs" / "http.md"


def test_health_needs_no_token_and_discloses_nothing(site):
    with httpx.Client(base_url=site.url) as http:
        assert http.get("/health/live").json() == {"status": "live"}
        response = http.get("/health/ready").json()
        assert response.pop("duties")
        assert response == {"status": "ready"}
        for path in ("/health/live", "/health/ready"):
            head = http.head(path)  # as some load balancers do
            assert (head.status_code, head.content) == (200, b"")
        assert http.head("/v1/batches").status_code == 401


def test_concurrent_health_checks_run_one_query_per_second(database, monkeypatch):
    """Anonymous health checks must not take connections from authenticated clients."""
    sent = []

    async def flood():
        service = Service(settings_for(database, connections=1))
        look = service.sessions.run_without_tenant
        monkeypatch.setattr(
            service.sessions, "run_without_tenant", lambda call: sent.append(call) or look(call)
        )
        response = await asyncio.gather(*(service.check_ready() for _ in range(200)))
        await service.sessions.close()
        return response

    assert set(asyncio.run(flood())) == {None}
    assert len(sent) == 3


def test_login_with_too_many_rights_is_not_ready(database):
    with serving(ServiceSettings(database.dsn("pool"))) as url:
        response = httpx.get(f"{url}/health/ready")
        assert response.status_code == 503
        assert "bound by setting" in response.json()["detail"]


def test_metrics_have_counts_without_tenants_or_identities(http, lab):
    http.post(f"/v1/queues/{lab.q}/batches", json={"identity": "zebra-7", "payload": 1})
    response = http.get("/metrics")
    assert response.headers["content-type"].startswith("text/plain")
    assert "# TYPE helix_submissions_total counter" in response.text
    labels = 'method="POST",route="/v1/queues/{queue}/batches",status="201"'
    assert f"helix_http_requests_total{{{labels}}}" in response.text
    assert "zebra" not in response.text
    assert "tenant=" not in response.text


def timed(ask):
    began = time.monotonic()
    return ask(), time.monotonic() - began


def test_service_recovers_from_a_database_outage_without_restart(database, lab, tmp_path):
    dsn = database.dsn("service", direct=True)
    work = {"identity": "later", "payload": 1}
    first = FaultProxy(dsn, tmp_path)
    first.__enter__()
    with (
        serving(ServiceSettings(first.dsn, statement_seconds=1, connect_seconds=2)) as url,
        Site(database, url).client() as http,
    ):
        path = f"/v1/queues/{lab.q}/batches"
        assert http.post(path, json={"identity": "now", "payload": 1}).status_code == 201
        first.__exit__()
        response, seconds = timed(lambda: http.post(path, json=work))
        assert (response.status_code, int(response.headers["retry-after"]) >= 1) == (503, True)
        assert response.json()["type"].endswith(":unavailable")
        assert seconds < 8
        assert http.get("/health/live").status_code == 200
        assert wait_until(lambda: http.get("/health/ready").status_code == 503)
        with FaultProxy(dsn, tmp_path) as second:
            assert wait_until(lambda: http.post(path, json=work).status_code in {200, 201})
            assert wait_until(lambda: http.get("/health/ready").status_code == 200)
            # An unresponsive connection is another kind of outage.
            second.freeze()
            response, seconds = timed(lambda: http.post(path, json=work))
            assert response.status_code == 503
            assert seconds < 20
            second.thaw()
            assert wait_until(lambda: http.post(path, json=work).status_code == 200)


def test_no_secret_reaches_log_response_or_screen(database, lab, tmp_path, caplog):
    faults = FaultProxy(database.dsn("service", direct=True), tmp_path)
    faults.__enter__()
    dsn = faults.dsn.replace("service@", "service:canary-password@")
    outputs = []  # responses to a token without the scope payloads, and command output
    with (
        caplog.at_level(logging.DEBUG),
        serving(ServiceSettings(dsn, statement_seconds=2)) as url,
    ):
        site = Site(database, url)
        token = site.token()
        blind = site.token("submit", "work", "read", "operate")
        with site.client(token=token) as http, site.client(token=blind) as other:
            path = f"/v1/queues/{lab.q}/batches"
            key = {"Idempotency-Key": "canary-idempotency-key"}
            secret = {"identity": "s", "payload": {"card": "canary-payload"}}
            assert http.post(path, json=secret, headers=key).status_code == 201
            for response in (
                other.post(path, json={**secret, "payload": "canary-other"}),
                other.post(path, json={**secret, "priority": "canary-priority"}),
                other.post(path, content=b'{"canary-broken": '),
                other.get("/v1/batches", params={"state": "canary-query"}),
                httpx.get(f"{url}/v1/batches", params={"token": token}),
                httpx.get(f"{url}/v1/batches", headers={"Authorization": "Bearer canary-bearer"}),
            ):
                assert response.headers["content-type"] == "application/problem+json"
                outputs.append(response.text)
            claim = {"worker": token, "request": str(uuid.uuid4()), "queues": [lab.q]}
            [lease] = http.post("/v1/work/claim", json=claim).json()["leases"]
            held = lease["lease"]
            for text in (held, held[:-8]):
                other.post("/v1/work/renew", json={"worker": "w", "leases": [text]})
            made = http.post("/v1/tokens", json={"name": "canary", "scopes": ["read"]}).json()
            outputs.append(other.get("/metrics").text)
            faults.__exit__()
            gone = http.post(path, json=secret)
            assert gone.status_code == 503
            outputs.append(gone.text)
    for command in (
        ["batch", "list", "--dsn", dsn],
        ["batch", "list", "--dsn", f"{dsn}&nonsense=1"],
        ["batch", "list", "--dsn", "host=nowhere.invalid password=canary-password"],
        ["token", "list", "--dsn", database.dsn("pool", direct=True), "--tenant", "a"],
        ["serve", "--dsn", dsn, "--port", "0", "--host", "203.0.113.1"],
    ):
        done = run_in_process(command, os.environ | {"PGCONNECT_TIMEOUT": "3"})
        outputs.append(done.out + done.err)
    text = "\n".join(
        record.getMessage() for record in caplog.records if record.name.startswith("helixqueue")
    )
    lines = [json.loads(line) for line in text.splitlines() if line.startswith("{")]
    assert len(lines) >= 14
    for canary in (token, blind, made["token"], held[:-8], "canary-payload", "canary-other",
                   "canary-broken", "canary-query", "canary-password",
                   "canary-priority", "canary-bearer"):  # fmt: skip
        assert canary not in text, canary
        assert canary not in "\n".join(outputs), canary
    first = next(line for line in lines if line.get("decision") == "new" and "request" in line)
    assert not any({"key", "source_id"} & line.keys() for line in lines)
    assert {"at", "request", "operation", "method", "route", "status", "ms", "tenant", "token",
            "queue", "batch"} <= first.keys()  # fmt: skip


@pytest.mark.parametrize(
    "secret",
    [
        "hx_" + "x" * 43,
        "hl_" + "x" * 43,
        "postgresql://ann:canary@db/lab",
        "password=canary",
        "PASSWORD = 'can ary'",
    ],
)
def test_formatter_masks_secrets_of_every_logger(secret):
    record = logging.LogRecord("any", logging.INFO, __file__, 1, "was: %s", (secret,), None)
    response = JsonFormatter().format(record)
    assert "(masked)" in response
    assert not {"x" * 43, "canary", "ary"} & set(re.split(r"[^a-z]+", response))


def test_masking_of_one_field_keeps_the_others(caplog):
    """A worker name that starts like a secret does not hide the other fields."""
    request_log = RequestLog("r", "POST")
    request_log.add(worker="://:", fault="x" * 290 + "hx_" + "y" * 43)
    for begin in ("://:", "password='"):
        known = {"queue": begin, "batch": uuid.uuid4(), "conflicting_worker": "bo'@gpu"}
        request_log.add_line("settle", **known, decision="refused")
    with caplog.at_level(logging.INFO, "helixqueue.service.request"):
        request_log.write(200)
    *steps, request = [json.loads(line) for line in caplog.messages[-1].splitlines()]
    for response in steps:
        assert response.keys() >= {"worker", "queue", "batch", "conflicting_worker", "decision"}
        assert response["conflicting_worker"] == "bo'@gpu"
    assert "y" not in request["fault"], "half a secret is one, too"


def test_request_log_has_the_trace_id_of_the_client(http, caplog):
    trace = uuid.uuid4().hex
    with caplog.at_level(logging.INFO, "helixqueue.service.request"):
        http.get("/v1/batches", headers={"traceparent": f"00-{trace}-00f067aa0ba902b7-01"})
        http.get("/v1/batches", headers={"traceparent": "canary"})
        wait_until(lambda: len(caplog.messages) >= 2)  # a line is written after its response
    assert [json.loads(line).get("trace") for line in caplog.messages] == [trace, None]


def test_request_log_has_the_request_id_of_the_client(http, caplog):
    value = uuid.uuid4().hex
    with caplog.at_level(logging.INFO, "helixqueue.service.request"):
        response = http.get("/v1/batches", headers={"X-Request-Id": value})
        forged = http.get("/v1/batches", headers={"X-Request-Id": "x\ty z"})
        wait_until(lambda: len(caplog.messages) >= 2)
    assert response.headers["x-request-id"] == value
    assert forged.headers["x-request-id"] != "x\ty z"
    assert value in {json.loads(line)["request"] for line in caplog.messages}


def test_tenants_are_isolated_behind_a_pooler(server, database, tmp_path_factory):
    with Pooler(tmp_path_factory.mktemp("pooler"), server) as pooler:
        behind = Database(server, database.name, pooler)
        settings = ServiceSettings(behind.dsn("service"), pooled=True, connections=2)
        warned = []
        for pooled in (True, False):
            check_database(
                replace(settings, pooled=pooled), warn=warned.append, unreachable=pytest.fail
            )
        assert [text.partition(":")[0] for text in warned] == ["the DSN connects through a pooler"]
        with serving(settings) as url:
            site = Site(database, url)
            clients = {tenant: site.client(tenant=tenant) for tenant in ("a", "b")}
            for _ in range(5):
                for tenant, http in clients.items():
                    response = http.put(f"/v1/queues/only-{tenant}", json={"reason": "x"})
                    assert response.status_code == 200
                    names = {item["name"] for item in http.get("/v1/queues").json()["rows"]}
                    assert f"only-{tenant}" in names
                    assert not names & {f"only-{other}" for other in {"a", "b"} - {tenant}}
            for http in clients.values():
                http.close()


def test_waiting_workers_are_woken_behind_a_pooler(server, database, lab, tmp_path_factory):
    with Pooler(tmp_path_factory.mktemp("pooler"), server) as pooler:
        settings = ServiceSettings(
            Database(server, database.name, pooler).dsn("service"),
            pooled=True,
            listen_dsn=database.dsn("service", direct=True),
        )
        with (
            serving(settings) as url,
            Site(database, url).client() as http,
            ThreadPoolExecutor() as threads,
        ):
            text = {"worker": "bo", "queues": [lab.q]}
            mark = http.post("/v1/work/expect", json={**text, "seconds": 60}).json()["mark"]
            # The first wake-up means that the service listens; later ones mean work.
            first = http.post("/v1/work/wait", json={**text, "seconds": 20, "mark": mark}).json()
            waits = {**text, "seconds": 20, "mark": first["mark"]}
            waiting = threads.submit(http.post, "/v1/work/wait", json=waits)
            lab.submit("a")
            assert waiting.result().json()["woken"]


def test_serve_runs_until_a_signal(site, database):
    environment = {
        name: value for name, value in os.environ.items() if not name.startswith("HELIX")
    }
    with subprocess.Popen(
        [HELIXQ, "serve", "--dsn", database.dsn("service", direct=True), "--port", "0", "--json"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=environment,
        text=True,
    ) as process:
        url = json.loads(process.stdout.readline())["url"]
        token = site.token("read")
        wait_until(lambda: _answers(url))
        response = httpx.get(f"{url}/v1/batches", headers={"Authorization": f"Bearer {token}"})
        assert response.status_code == 200
        process.send_signal(signal.SIGTERM)
        _, errors = process.communicate(timeout=60)
    lines = [json.loads(line) for line in errors.splitlines() if line.startswith("{")]
    assert "/v1/batches" in {line["route"] for line in lines}
    assert token not in errors


SERVED = """
import gc, os, signal, sys, threading, time
from helixqueue.service import ServiceSettings, create_app
from helixqueue.service.run import serve

def watch():
    deadline = time.monotonic() + 30
    while not gc.get_freeze_count() and time.monotonic() < deadline:
        time.sleep(0.01)
    print(gc.get_freeze_count(), *gc.get_threshold(), flush=True)
    os.kill(os.getpid(), signal.SIGTERM)

def listening(url):
    threading.Thread(target=watch).start()

settings = ServiceSettings(sys.argv[1])
serve(settings, create_app, host="127.0.0.1", port=0, listening=listening, warn=print)
"""


def test_garbage_collection_skips_the_objects_of_the_start(database):
    """A full collection would delay every response by a tenth of a second."""
    done = subprocess.run(
        [sys.executable, "-c", SERVED, database.dsn("service", direct=True)],
        capture_output=True, text=True, check=False, timeout=60,
    )  # fmt: skip
    spared, young, _, oldest = map(int, done.stdout.split() or [done.stderr])
    assert spared > 50_000  # enough to matter
    assert young > 10_000  # no collection during a bulk submit
    assert oldest == NEVER, "a large body would start one full collection after the other"


def test_full_collections_run_on_a_clock_and_rarely_beside_large_bodies():
    server = HttpServer(config_of(ServiceSettings("postgresql://nobody@/nowhere"), create_app))
    server.config.load()
    parsed = server.config.app.state.service.memory.parsed
    collected = []

    def note(phase, info):
        if phase == "stop":
            collected.append(info["generation"])

    def tick(counter):
        gc.disable()
        gc.callbacks.append(note)
        asyncio.run(server.on_tick(counter))
        gc.callbacks.remove(note)
        gc.enable()
        found = collected[:]
        collected.clear()
        return found

    assert tick(COLLECT_TICKS) == [2]
    assert tick(COLLECT_TICKS + 1) == []
    assert parsed.try_acquire("a", 1)
    assert tick(COLLECT_TICKS) == []
    assert tick(COLLECT_WITH_BODIES_TICKS) == [2]


def _answers(url):
    try:
        return httpx.get(f"{url}/health/ready").status_code == 200
    except httpx.TransportError:
        return False


@pytest.fixture
def ungranted(server):
    """A login without any grant."""
    with psycopg.connect(server.bootstrap_dsn, autocommit=True) as connection:
        connection.execute("create role ungranted login")
        yield "ungranted"
        connection.execute("drop role ungranted")


@pytest.mark.parametrize("login", ["sees too much", "may do nothing"])
def test_serve_refuses_an_unfit_login(database, ungranted, login):
    """And does not report an unreachable database."""
    role = "pool" if login == "sees too much" else ungranted
    arguments = ["serve", "--dsn", database.dsn(role, direct=True), "--port", "0"]
    done = run_in_process(arguments, os.environ)
    assert done.code == 5
    assert "bind_v1" in done.err


def test_docs_list_every_problem():
    text = DOCUMENT.read_text(encoding="utf-8")
    assert [kind for kind in PROBLEMS if f"`{kind}`" not in text] == []
