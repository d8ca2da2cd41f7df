"""Clients that send or read too slowly lose their connection; others keep theirs."""

from __future__ import annotations

import resource
import socket
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from http.client import HTTPConnection
from urllib.parse import urlsplit

import httpx
import pytest
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from helixqueue import Refused
from helixqueue.dashboard.app import create_app
from helixqueue.service import slow_clients
from helixqueue.service.run import OWN_FILES, config_of
from helixqueue.service.slow_clients import MAX_HEAD_BYTES
from tests.support.lab import wait_until
from tests.support.service import TLS, Site, serving, settings_for

HEAD_SECONDS = 0.3
IDLE_SECONDS = 1


@pytest.fixture(scope="module")
def hasty(database):
    settings = settings_for(
        database,
        head_seconds=HEAD_SECONDS,
        body_seconds=0.3,
        read_seconds=0.5,
        idle_seconds=IDLE_SECONDS,
        max_connections=12,
        max_requests=4,
    )
    with serving(settings) as url:
        yield Site(database, url)


@contextmanager
def connected(site):
    there = urlsplit(site.url)
    with socket.create_connection((there.hostname, there.port), timeout=30) as client:
        yield client


def rest_of(client):
    """Everything received until the service closes the connection."""
    parts = []
    try:
        while part := client.recv(65536):
            parts.append(part)
    except ConnectionError:
        pass
    return b"".join(parts)


def let_go(http, why):
    line = f'helix_http_connections_let_go_total{{why="{why}"}} '
    result = [item for item in http.get("/metrics").text.splitlines() if item.startswith(line)]
    return float(result[0].removeprefix(line)) if result else 0


@pytest.mark.parametrize("sent", [b"", b"GET /health/live HTTP/1.1\r\nHost: x\r\nX-Half: "])
def test_connection_without_a_complete_head_is_closed(hasty, sent):
    began = time.monotonic()
    with connected(hasty) as client:
        client.sendall(sent)
        assert rest_of(client) == b""
    # Close to the limit; timers of an event loop have a resolution of milliseconds.
    assert HEAD_SECONDS - 0.05 < time.monotonic() - began < 20


def test_connection_with_a_slow_head_is_closed(hasty):
    with connected(hasty) as client:
        client.sendall(b"GET /health/live HTTP/1.1\r\nHost: x\r\n\r\n")  # a valid request before it
        assert client.recv(65536).startswith(b"HTTP/1.1 200")
        client.sendall(b"GET /health/live HTTP/1.1\r\nX-Slow: ")
        client.settimeout(0.05)

        def gone():
            try:
                client.sendall(b"x")
                return client.recv(1) == b""
            except TimeoutError:
                return False
            except ConnectionError:
                return True

        assert wait_until(gone, seconds=20)


def test_incomplete_body_gets_408_and_is_closed(hasty):
    token = hasty.token()
    head = "POST /v1/login HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n{}\r\n{{"
    with connected(hasty) as client:
        client.sendall(head.format("").encode())
        response = rest_of(client)
        assert response.startswith(b"HTTP/1.1 408")
        assert b"urn:helixqueue:problem:too-slow" in response
    # Refused before the body was read: its rest may arrive for a limited time.
    head = head.replace("/v1/login", "/v1/tokens")
    with connected(hasty) as client:
        client.sendall(head.format("").encode())
        assert rest_of(client).startswith(b"HTTP/1.1 401")
    with connected(hasty) as client:
        client.sendall(head.format(f"Authorization: Bearer {token}\r\n").encode())
        assert rest_of(client).startswith(b"HTTP/1.1 408")


def test_client_that_does_not_read_is_closed(hasty):
    token = hasty.token()
    ask = f"GET /v1/openapi.json HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {token}\r\n\r\n"
    with hasty.client(token=token) as http, connected(hasty) as client:
        before = let_go(http, "unread")
        client.sendall(ask.encode() * 200)  # far more than the buffers hold
        wait_until(lambda: let_go(http, "unread") > before, seconds=20)


def test_waiting_requests_and_streams_outlast_the_head_timeout(hasty, lab):
    patience = 2 * (IDLE_SECONDS + HEAD_SECONDS)
    wait = {"worker": "w", "queues": [lab.q], "seconds": patience}
    with hasty.client() as http, hasty.client() as other, ThreadPoolExecutor(1) as pool:
        # The first wait for a queue ends when the service starts to listen.
        other.post("/v1/work/wait", json=wait)
        held = pool.submit(other.post, "/v1/work/wait", json=wait)
        with http.stream("GET", "/v1/changes", params={"queue": lab.q}) as stream:
            assert held.result().json()["woken"] is False
            lab.submit("after-the-silence")
            lines = stream.iter_lines()
            assert any(line.startswith("data:") for line in lines)


def test_silent_connections_do_not_block_clients(hasty):
    with hasty.client() as http, ExitStack() as silent:
        for_room, for_silence = let_go(http, "room"), let_go(http, "silent")
        for _ in range(40):
            silent.enter_context(connected(hasty))
        assert http.get("/v1/token").status_code == 200
        for_room = let_go(http, "room") - for_room
        assert for_room > 0
        # On a slow machine some connections have timed out by then.
        assert for_room + let_go(http, "silent") - for_silence >= 40 - 12
        shown = http.get("/metrics").text
        [line] = [item for item in shown.splitlines() if item.startswith("helix_http_connections ")]
        assert float(line.split()[1]) <= 12


def test_request_above_capacity_gets_503_while_health_responds(hasty, lab):
    wait = {"worker": "w", "queues": [lab.q], "seconds": 3}
    with hasty.client() as http, ThreadPoolExecutor(4) as pool, ExitStack() as more:
        # The first wake-up means that the service listens; after it the request waits.
        wait["mark"] = http.post("/v1/work/expect", json=wait).json()["mark"]
        wait["mark"] = http.post("/v1/work/wait", json=wait).json()["mark"]
        others = [more.enter_context(hasty.client(token=http.headers["authorization"][7:]))
                  for _ in range(4)]  # fmt: skip
        # The request for the metrics may itself be the one above the limit.
        held = [
            pool.submit(
                wait_until,
                lambda item=other: (
                    (response := item.post("/v1/work/wait", json=wait)).is_success and response
                ),
            )
            for other in others
        ]
        response = wait_until(
            lambda: (response := http.get("/v1/token")).status_code == 503 and response
        )
        assert response.json()["type"].endswith(":too-busy")
        assert response.headers["content-type"] == "application/problem+json"
        assert int(response.headers["retry-after"]) >= 1
        assert http.get("/health/live").status_code == 200
        assert {item.result().status_code for item in held} == {200}


def test_slow_anonymous_clients_do_not_use_capacity(database):
    """Logins need no token, so any client can start them on any number of connections."""
    half = b"POST /v1/login HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n{"
    with serving(settings_for(database, max_requests=4)) as url, ExitStack() as anonymous:
        site = Site(database, url)
        for _ in range(6):
            anonymous.enter_context(connected(site)).sendall(half)
        with site.client() as http:
            under_way = "\nhelix_http_requests_under_way 7.0\n"
            wait_until(lambda: under_way in http.get("/metrics").text, seconds=10)


@pytest.mark.parametrize(
    ("sent", "status", "kind"),
    [
        (b"this is not HTTP\r\n\r\n", b"400", b"not-http"),
        (b"GET / HTTP/1.1\r\nX-Endless: " + b"x" * 2 * MAX_HEAD_BYTES, b"431", b"head-too-large"),
        (b"GET /" + b"x" * 2 * MAX_HEAD_BYTES, b"431", b"head-too-large"),
    ],
)
def test_bytes_that_are_not_a_request_get_a_problem(hasty, sent, status, kind):
    with connected(hasty) as client:
        client.sendall(sent)
        response = rest_of(client)
    assert response.startswith(b"HTTP/1.1 " + status)
    assert b"\r\ncontent-type: application/problem+json\r\n" in response
    assert b"urn:helixqueue:problem:" + kind in response


def bearer(site):
    return {"Authorization": f"Bearer {site.token()}", "Content-Type": "application/json"}


def test_body_in_tiny_chunks_does_not_count_as_head(site):
    def chunks():
        yield b'{"code": "'
        for _ in range(MAX_HEAD_BYTES // 4):
            yield b"xx"
        yield b'"}'

    url = f"{site.url}/v1/queues/q/batches"
    response = httpx.post(url, content=chunks(), headers=bearer(site), verify=TLS)
    assert response.status_code == 422


@pytest.fixture
def few_files():
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(400, hard), hard))
    yield hard
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_connection_limit_fits_the_file_limit(database, few_files):
    def bound(connections):
        config = config_of(
            settings_for(database, max_connections=connections, connections=3), create_app
        )
        return config.app.state.service.settings.max_connections

    assert bound(700) == 700
    assert resource.getrlimit(resource.RLIMIT_NOFILE)[0] == 700 + OWN_FILES + 3
    if few_files != resource.RLIM_INFINITY:
        assert bound(few_files + 1) == few_files - OWN_FILES - 3


def test_request_sent_before_shutdown_gets_a_response(database, monkeypatch):
    """On an idle connection; closing it at once would make a proxy respond 502."""
    patience = 60  # in which nothing is cut
    monkeypatch.setattr(slow_clients, "SHUTDOWN_SECONDS", patience)
    with ExitStack() as service, ThreadPoolExecutor(1) as pool:
        settings = settings_for(database)
        site = Site(database, service.enter_context(serving(settings, grace_seconds=patience)))
        client = HTTPConnection(urlsplit(site.url).netloc, timeout=patience)

        def response():
            client.request("GET", "/health/live")
            with client.getresponse() as answer:
                answer.read()
            return answer.status, answer.headers["connection"]

        assert response() == (200, None)
        ended = pool.submit(service.close)
        wait_until(lambda: is_refused(site))
        assert response() == (200, "close")
        ended.result()
        client.close()


def is_refused(site):
    try:
        with connected(site):
            return False
    except ConnectionRefusedError:
        return True


def test_uvicorn_without_a_hook_of_the_limits_is_refused_at_the_start(monkeypatch):
    monkeypatch.delattr(HttpToolsProtocol, "on_headers_complete")
    with pytest.raises(Refused, match="whose HTTP protocol has on_headers_complete, got"):
        slow_clients.connection_class(None)
