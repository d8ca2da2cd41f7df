"""Clients that hold a connection and say or read nothing: they lose it, and nobody else does."""

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

from helixqueue.service import slow_clients
from helixqueue.service.run import OWN_FILES, config_of
from helixqueue.service.slow_clients import MAX_HEAD_BYTES
from tests.support.lab import until
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
    """All that comes until the service lets go."""
    parts = []
    try:
        while part := client.recv(65536):
            parts.append(part)
    except ConnectionError:
        pass
    return b"".join(parts)


def let_go(http, why):
    line = f'helix_http_connections_let_go_total{{why="{why}"}} '
    found = [one for one in http.get("/metrics").text.splitlines() if one.startswith(line)]
    return int(found[0].removeprefix(line)) if found else 0


@pytest.mark.parametrize("said", [b"", b"GET /health/live HTTP/1.1\r\nHost: x\r\nX-Half: "])
def test_whoever_says_nothing_or_half_of_a_head_is_let_go(hasty, said):
    began = time.monotonic()
    with connected(hasty) as client:
        client.sendall(said)
        assert rest_of(client) == b""
    # Not at once, and soon; an event loop ticks in milliseconds, so a little early is on time.
    assert HEAD_SECONDS - 0.05 < time.monotonic() - began < 20


def test_a_head_that_comes_drop_by_drop_is_let_go(hasty):
    with connected(hasty) as client:
        client.sendall(b"GET /health/live HTTP/1.1\r\nHost: x\r\n\r\n")  # a good request before it
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

        assert until(gone, 20)


def test_half_a_body_is_answered_and_let_go(hasty):
    token = hasty.token()
    head = "POST /v1/login HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n{}\r\n{{"
    with connected(hasty) as client:
        client.sendall(head.format("").encode())
        told = rest_of(client)
        assert told.startswith(b"HTTP/1.1 408")
        assert b"urn:helixqueue:problem:too-slow" in told
    # Refused before the body was asked for: what is left of it may come, for so long.
    head = head.replace("/v1/login", "/v1/tokens")
    with connected(hasty) as client:
        client.sendall(head.format("").encode())
        assert rest_of(client).startswith(b"HTTP/1.1 401")
    with connected(hasty) as client:
        client.sendall(head.format(f"Authorization: Bearer {token}\r\n").encode())
        assert rest_of(client).startswith(b"HTTP/1.1 408")


def test_whoever_does_not_read_the_answers_is_let_go(hasty):
    token = hasty.token()
    ask = f"GET /v1/openapi.json HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {token}\r\n\r\n"
    with hasty.client(token=token) as http, connected(hasty) as client:
        before = let_go(http, "unread")
        client.sendall(ask.encode() * 200)  # far more than buffers take
        until(lambda: let_go(http, "unread") > before, 20)


def test_held_requests_and_streams_outlast_the_silent(hasty, lab):
    patience = 2 * (IDLE_SECONDS + HEAD_SECONDS)
    wait = {"worker": "w", "queues": [lab.q], "seconds": patience}
    with hasty.client() as http, hasty.client() as other, ThreadPoolExecutor(1) as pool:
        # The first that names a queue is woken when the service begins to listen.
        other.post("/v1/work/wait", json=wait)
        held = pool.submit(other.post, "/v1/work/wait", json=wait)
        with http.stream("GET", "/v1/changes", params={"queue": lab.q}) as stream:
            assert held.result().json()["woken"] is False
            lab.submit("after-the-silence")
            lines = stream.iter_lines()
            assert any(line.startswith("data:") for line in lines)


def test_silent_connections_keep_nobody_out(hasty):
    with hasty.client() as http, ExitStack() as silent:
        for_room, for_silence = let_go(http, "room"), let_go(http, "silent")
        for _ in range(40):
            silent.enter_context(connected(hasty))
        assert http.get("/v1/token").status_code == 200
        for_room = let_go(http, "room") - for_room
        assert for_room > 0
        # On a machine that is slow to connect, some have been silent for too long by then.
        assert for_room + let_go(http, "silent") - for_silence >= 40 - 12
        shown = http.get("/metrics").text
        [line] = [one for one in shown.splitlines() if one.startswith("helix_http_connections ")]
        assert int(line.split()[1]) <= 12


def test_one_request_too_many_is_told_so_and_health_is_not(hasty, lab):
    wait = {"worker": "w", "queues": [lab.q], "seconds": 3}
    with hasty.client() as http, ThreadPoolExecutor(4) as pool, ExitStack() as more:
        # The first ring is that the service listens now; whoever heard it is held.
        wait["mark"] = http.post("/v1/work/expect", json=wait).json()["mark"]
        wait["mark"] = http.post("/v1/work/wait", json=wait).json()["mark"]
        others = [more.enter_context(hasty.client(token=http.headers["authorization"][7:]))
                  for _ in range(4)]  # fmt: skip
        # One may come while we ask, and be the one too many itself.
        held = [
            pool.submit(
                until,
                lambda one=one: (told := one.post("/v1/work/wait", json=wait)).is_success and told,
            )
            for one in others
        ]
        told = until(lambda: (one := http.get("/v1/token")).status_code == 503 and one)
        assert told.json()["type"].endswith(":too-busy")
        assert told.headers["content-type"] == "application/problem+json"
        assert int(told.headers["retry-after"]) >= 1
        assert http.get("/health/live").status_code == 200
        assert {one.result().status_code for one in held} == {200}


def test_strangers_who_are_slow_take_no_room_from_those_who_have_a_token(database):
    """Whoever logs in shows no token: anybody can begin to, as often as there are connections."""
    half = b"POST /v1/login HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n{"
    with serving(settings_for(database, max_requests=4)) as url, ExitStack() as strangers:
        site = Site(database, url)
        for _ in range(6):
            strangers.enter_context(connected(site)).sendall(half)
        with site.client() as http:
            under_way = "\nhelix_http_requests_under_way 7\n"
            until(lambda: under_way in http.get("/metrics").text, 10)


@pytest.mark.parametrize(
    ("said", "status", "kind"),
    [
        (b"this is not HTTP\r\n\r\n", b"400", b"not-http"),
        (b"GET / HTTP/1.1\r\nX-Endless: " + b"x" * 2 * MAX_HEAD_BYTES, b"431", b"head-too-large"),
        (b"GET /" + b"x" * 2 * MAX_HEAD_BYTES, b"431", b"head-too-large"),
    ],
)
def test_what_never_becomes_a_request_is_refused_as_a_problem(hasty, said, status, kind):
    with connected(hasty) as client:
        client.sendall(said)
        told = rest_of(client)
    assert told.startswith(b"HTTP/1.1 " + status)
    assert b"\r\ncontent-type: application/problem+json\r\n" in told
    assert b"urn:helixqueue:problem:" + kind in told


def test_a_body_in_tiny_chunks_is_no_head_that_is_too_large(site):
    def chunks():
        yield b'{"code": "'
        for _ in range(MAX_HEAD_BYTES // 4):
            yield b"xx"
        yield b'"}'

    told = httpx.post(f"{site.url}/v1/login", content=chunks(), verify=TLS)
    assert told.status_code == 422


@pytest.fixture
def few_files():
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(400, hard), hard))
    yield hard
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_there_are_never_more_connections_than_files(database, few_files):
    def bound(connections):
        config = config_of(settings_for(database, max_connections=connections, connections=3))
        return config.app.service.settings.max_connections

    assert bound(700) == 700
    assert resource.getrlimit(resource.RLIMIT_NOFILE)[0] == 700 + OWN_FILES + 3
    if few_files != resource.RLIM_INFINITY:
        assert bound(few_files + 1) == few_files - OWN_FILES - 3


def test_what_was_sent_before_the_end_was_known_is_answered(database, monkeypatch):
    """On a connection that rests; to close it at once would make a proxy answer 502."""
    patience = 60  # in which nothing is cut
    monkeypatch.setattr(slow_clients, "LAST_SECONDS", patience)
    with ExitStack() as service, ThreadPoolExecutor(1) as pool:
        settings = settings_for(database)
        site = Site(database, service.enter_context(serving(settings, grace_seconds=patience)))
        client = HTTPConnection(urlsplit(site.url).netloc, timeout=patience)

        def told():
            client.request("GET", "/health/live")
            with client.getresponse() as answer:
                answer.read()
            return answer.status, answer.headers["connection"]

        assert told() == (200, None)
        ended = pool.submit(service.close)
        until(lambda: is_refused(site))
        assert told() == (200, "close")
        ended.result()
        client.close()


def is_refused(site):
    try:
        with connected(site):
            return False
    except ConnectionRefusedError:
        return True
