"""Requests that no HTTP library sends: trailers, large heads, missing and repeated hosts."""

from __future__ import annotations

import json
import logging
import socket
from urllib.parse import urlsplit

import pytest

from helixqueue import HelixClient
from helixqueue.errors import Refused
from helixqueue.service.address import client_address, proxy_networks
from helixqueue.service.settings import ServiceSettings
from helixqueue.service.slow_clients import MAX_HEAD_BYTES
from helixqueue.transport.http import connection
from tests.support.service import Site, serving, settings_for

CLOSE = b"Connection: close\r\n"


def raw_response(site, request):
    """The status and the body that the service sends for these bytes."""
    address = urlsplit(site.url)
    with socket.create_connection((address.hostname, address.port), timeout=30) as client:
        client.sendall(request)
        parts = []
        while part := client.recv(65536):
            parts.append(part)
    head, _, body = b"".join(parts).partition(b"\r\n\r\n")
    return int(head.split()[1]), body


def problem(body):
    return json.loads(body)["type"].rpartition(":")[2]


def test_trailers_never_become_headers(site, lab):
    """All in one write: the trailers are parsed before the application reads the headers."""
    token = site.token("submit").encode()
    body = json.dumps({"identity": "t", "payload": 1}).encode()
    chunk = b"%x\r\n%b\r\n0\r\n" % (len(body), body)
    head = b"POST /v1/queues/%b/batches HTTP/1.1\r\nHost: x\r\n%b" % (lab.q.encode(), CLOSE)
    head += b"Transfer-Encoding: chunked\r\n"
    authorization = b"Authorization: Bearer %b\r\n" % token
    key = b"Idempotency-Key: trailer-idempotency-key\r\n"
    status, content = raw_response(site, head + b"\r\n" + chunk + authorization + b"\r\n")
    assert (status, problem(content)) == (401, "unauthenticated")
    for trailer in (key, b"Host: other\r\n", b"Content-Type: text/plain\r\n", authorization):
        status, content = raw_response(
            site, head + authorization + b"\r\n" + chunk + trailer + b"\r\n"
        )
        assert status in {200, 201}, content
    with site.client("submit") as client:
        reused = {"Idempotency-Key": "trailer-idempotency-key"}
        other = {"identity": "u", "payload": 2}
        path = f"/v1/queues/{lab.q}/batches"
        assert client.post(path, json=other, headers=reused).status_code == 201


@pytest.mark.parametrize("over", [0, 1, MAX_HEAD_BYTES])
def test_head_beyond_the_limit_is_refused_also_in_one_write(site, over):
    start = b"GET /health/live HTTP/1.1\r\nHost: x\r\n" + CLOSE
    counted = len("/health/live") + len(start) - len("GET /health/live HTTP/1.1\r\n")
    name = b"X-Pad: "
    pad = name + b"x" * (MAX_HEAD_BYTES - counted - len(name) - 2 + over) + b"\r\n"
    status, body = raw_response(site, start + pad + b"\r\n")
    assert status == (431 if over else 200)
    if over:
        assert problem(body) == "head-too-large"


def test_body_after_a_refused_head_is_no_request(site):
    pad = b"X-Pad: " + b"x" * MAX_HEAD_BYTES + b"\r\n"
    inner = b"GET /health/live HTTP/1.1\r\nHost: x\r\n\r\n"
    head = b"POST /v1/login HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\n" + pad
    status, body = raw_response(site, head + b"\r\nhello" + inner)
    assert status == 431
    assert body.count(b"HTTP/1.1") == 0


@pytest.mark.parametrize(
    "hosts", [b"", b"Host: a\r\nHost: b\r\n", b"Host: a\r\nHost: a\r\n", b"Host: \r\n",
              b"Host: a b\r\n", b"Host: a/b\r\n", b"Host: user@a\r\n"]
)  # fmt: skip
@pytest.mark.parametrize("path", [b"/health/live", b"/v1/queues"])
def test_request_without_exactly_one_valid_host_is_refused(site, hosts, path):
    request = b"GET %b HTTP/1.1\r\n%b%b\r\n" % (path, hosts, CLOSE)
    status, body = raw_response(site, request)
    assert (status, problem(body)) == (400, "invalid-host")


@pytest.fixture(scope="module")
def named(database):
    """A service with a name, behind a proxy on loopback."""
    settings = settings_for(
        database,
        allowed_hosts=("Helix.example.org", "*.lab.example.org", "[::1]"),
        trusted_proxies=("127.0.0.0/8",),
        anonymous_burst=3,
        anonymous_per_second=0.01,
    )
    with serving(settings) as url:
        yield Site(database, url)


@pytest.mark.parametrize(
    ("host", "status"),
    [
        (b"helix.example.org", 200),
        (b"HELIX.example.org:8443", 200),
        (b"a.lab.example.org", 200),
        (b"[::1]:80", 200),
        (b"lab.example.org", 400),
        (b"evil-lab.example.org", 400),
        (b"helix.example.org.evil.org", 400),
        (b"127.0.0.1", 400),
    ],
)
def test_only_allowed_hosts_are_served(named, host, status):
    token = named.token("read").encode()
    request = b"GET /v1/queues HTTP/1.1\r\nHost: %b\r\nAuthorization: Bearer %b\r\n%b\r\n"
    assert raw_response(named, request % (host, token, CLOSE))[0] == status
    live = b"GET /health/live HTTP/1.1\r\nHost: %b\r\n%b\r\n" % (host, CLOSE)
    assert raw_response(named, live)[0] == 200


def test_clients_behind_a_trusted_proxy_are_limited_each_by_itself(named):
    def status(forwarded):
        head = (
            b"GET /v1/queues HTTP/1.1\r\nHost: helix.example.org\r\nX-Forwarded-For: %b\r\n%b\r\n"
        )
        return raw_response(named, head % (forwarded, CLOSE))[0]

    # The client invents addresses; the proxy appends the real one.
    invented = [b"198.51.100.%d, 203.0.113.7" % number for number in range(5)]
    assert [status(item) for item in invented] == [401] * 3 + [429] * 2
    assert status(b"203.0.113.8") == 401


@pytest.mark.parametrize(
    ("peer", "forwarded", "client"),
    [
        ("203.0.113.9", "198.51.100.1", "203.0.113.9"),  # not a proxy: any client can send it
        ("10.0.0.1", "198.51.100.1", "198.51.100.1"),
        ("::ffff:10.0.0.1", "198.51.100.1", "198.51.100.1"),
        ("10.0.0.1", "198.51.100.1, 10.0.0.2", "198.51.100.1"),
        ("10.0.0.1", "192.0.2.1, 198.51.100.1", "198.51.100.1"),
        ("10.0.0.1", "192.0.2.1, unknown", "10.0.0.1"),
        ("10.0.0.1", "", "10.0.0.1"),
        ("10.0.0.1", "2001:db8::1", "2001:db8::1"),
    ],
)
def test_address_of_a_client_comes_from_trusted_proxies_only(peer, forwarded, client):
    scope = {"client": (peer, 1), "headers": [(b"x-forwarded-for", forwarded.encode())]}
    assert client_address(scope, proxy_networks(["10.0.0.0/8"])) == client
    assert client_address(scope, ()) == peer


def test_invalid_hosts_and_proxies_are_refused_at_the_start():
    dsn = "postgresql://nobody@/nowhere"
    for names in (["a b"], ["https://a"], ["*"]):
        with pytest.raises(Refused, match="allowed host"):
            ServiceSettings(dsn, allowed_hosts=tuple(names))
    for proxies in (["proxy"], ["10.0.0.1/8"]):
        with pytest.raises(Refused, match="trusted proxy"):
            ServiceSettings(dsn, trusted_proxies=tuple(proxies))


@pytest.mark.parametrize(
    ("url", "warns"),
    [
        ("http://helix.example.org", True),
        ("http://192.0.2.1:8080", True),
        ("https://helix.example.org", False),
        ("http://127.0.0.1:8080", False),
        ("http://[::1]:8080", False),
        ("http://localhost:8080", False),
    ],
)
def test_client_warns_about_a_token_in_plain_text(caplog, url, warns):
    connection._warn_of_plain_text.cache_clear()
    with caplog.at_level(logging.WARNING, "helixqueue.client"):
        HelixClient(url, "hx_" + "A" * 43).close()
        HelixClient(url, "hx_" + "A" * 43).close()
    assert caplog.text.count("in plain text") == int(warns)
    assert "hx_" not in caplog.text
