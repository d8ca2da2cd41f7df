"""docs/deploy/proxy.md: its nginx in front of a real service, with real clients over TLS."""

from __future__ import annotations

import asyncio
import json
import logging
import re
import socket
import ssl
import uuid
from http.client import HTTPSConnection
from urllib.parse import urlsplit

import httpx
import pytest

from helixqueue import AsyncHelixClient, HelixClient, Queue, Refused, State, Unavailable
from helixqueue.service import ServiceSettings
from helixqueue.service.routes.changes import KEEPALIVE_SECONDS
from helixqueue.service.settings import MAX_WAIT_SECONDS
from tests.support.lab import Lab, new_database, wait_until
from tests.support.nginx import GUIDE, Nginx, _program, configuration
from tests.support.service import Site, offer_login, serving, settings_for, stream_events

NAME = "helix.example.org"
MIB = 1024 * 1024
# Client addresses; the document admits 127.0.0.1 to metrics and health.
MONITOR, OUTSIDER, OTHER_OUTSIDER = "127.0.0.1", "127.0.0.2", "127.0.0.3"


@pytest.fixture(scope="module")
def database(server, template, pooler):
    yield from new_database(server, template, pooler)


@pytest.fixture(scope="module")
def site(database):
    with serving(settings_for(database)) as url:
        yield Site(database, url)


@pytest.fixture(scope="module")
def proxy(site, tmp_path_factory):
    service = urlsplit(site.url).netloc
    with Nginx(tmp_path_factory.mktemp("nginx"), service, [NAME, "127.0.0.1"]) as proxy:
        yield proxy


@pytest.fixture
def trusted(proxy, monkeypatch):
    """Trust the private certificate authority."""
    monkeypatch.setenv("SSL_CERT_FILE", str(proxy.authority))
    return proxy


@pytest.fixture
def lab(database):
    with Lab(database) as lab:
        lab.queue()
        yield lab


@pytest.fixture
def http(site, proxy):
    with connect(proxy, token=site.token()) as client:
        yield client


def connect(proxy, address=MONITOR, *, token=None, **headers):
    if token is not None:
        headers["Authorization"] = f"Bearer {token}"
    way = httpx.HTTPTransport(local_address=address, verify=trust(proxy))
    return httpx.Client(base_url=proxy.url, headers=headers, transport=way, timeout=30)


def status_of(response):
    return int(response.split()[1])


def trust(proxy):
    return ssl.create_default_context(cafile=proxy.authority)


def test_repeat_with_its_key_gets_the_first_response(http, lab):
    body, key = (
        {"identity": "Sämple-Ω-1", "payload": {"n": 1}},
        {"Idempotency-Key": str(uuid.uuid4())},
    )
    path = f"/v1/queues/{lab.q}/batches"
    first, second = (http.post(path, json=body, headers=key) for _ in range(2))
    assert (first.status_code, second.status_code) == (201, 201)
    assert first.json() == second.json()
    assert second.headers["idempotency-replayed"] == "true"
    [found] = http.get("/v1/batches", params={"identity": "Sämple-Ω-1"}).json()["rows"]
    assert found["batch_id"] == first.json()["receipt"]["batch_id"]


def test_idle_worker_is_woken_renews_and_completes(site, trusted, database, lab):
    """The heartbeat process must trust the authority too."""
    queue = Queue(lab.q, lease=2)
    deadline = (
        "select w.deadline from helix.work w join helix.queue q on q.id = w.queue where q.name = %s"
    )

    @queue.handler
    async def run(lease):
        first = database.value(deadline, lab.q)
        await asyncio.to_thread(wait_until, lambda: database.value(deadline, lab.q) > first)
        return lease.payload["n"] + 1

    async def main():
        async with AsyncHelixClient(trusted.url, token=site.token()) as helix:
            # It polls once a minute: completing earlier shows the wake-up.
            working = asyncio.create_task(helix.work(queue, poll_seconds=60))
            waits = "select from helix.waiter where queue = %s"
            await asyncio.to_thread(wait_until, lambda: database.rows(waits, lab.q))
            item = await helix.submit(queue, identity="s", payload={"n": 1})
            assert await helix.wait(item.receipt, timeout=30) is State.COMPLETED
            assert await helix.result(item.receipt) == 2
            working.cancel()
            await asyncio.wait([working])

    asyncio.run(main())


def test_change_stream_delivers_while_open_and_resumes_after_the_last_event(http, lab):
    def open_stream(**headers):
        return http.stream("GET", "/v1/changes", params={"queue": lab.q}, headers=headers)

    with open_stream() as stream:
        changes = stream_events(stream)
        assert next(changes)[1] == "begin"
        lab.submit("a")
        place, _, change = next(changes)
        assert change["to_state"] == "PENDING"
    lab.claim(start=False)
    with open_stream(**{"Last-Event-ID": place}) as stream:
        changes = stream_events(stream)
        assert next(changes)[1] == "begin"
        assert next(changes)[2]["to_state"] == "ASSIGNED"


def test_body_above_one_mebibyte_is_refused_before_it_is_sent(proxy, http, lab):
    path, head = f"/v1/queues/{lab.q}/batches", '{"identity":"s","payload":"'
    largest = f'{head}{"x" * (MIB - len(head) - 2)}"}}'
    assert len(largest) == MIB
    assert http.post(path, content=largest).status_code == 201
    # Chunked: its length is unknown in advance.
    assert http.post(path, content=iter([largest.encode()])).status_code == 200
    assert http.post(path, content=iter([b" ", largest.encode()])).status_code == 413

    def asked_first(body):
        lines = [f"POST {path} HTTP/1.1", f"Host: {NAME}", "Expect: 100-continue",
                 f"Authorization: {http.headers['authorization']}",
                 f"Content-Length: {len(body)}", "Connection: close", "", ""]  # fmt: skip
        with (
            socket.create_connection(proxy.address, timeout=30) as plain,
            trust(proxy).wrap_socket(plain, server_hostname=NAME) as client,
        ):
            client.sendall("\r\n".join(lines).encode())
            yield status_of(client.recv(1000))
            client.sendall(body.encode())
            yield status_of(client.recv(1000))

    assert list(asked_first(largest)) == [100, 200]
    assert next(asked_first(largest + " ")) == 413
    assert "temporary file" not in proxy.errors, "payloads are not for the proxy's disk"


def test_response_to_a_slow_client_is_not_buffered_on_disk(http, proxy, lab):
    lab.submit_many(8, payload="x" * (MIB - 100))
    claim = {"worker": "w", "request": str(uuid.uuid4()), "queues": [lab.q], "count": 8}
    with http.stream("POST", "/v1/work/claim", json=claim) as slow:
        for _ in range(20):  # time for the proxy to read what it buffers
            assert http.get("/v1/token").status_code == 200
        assert "temporary file" not in proxy.errors
        assert len(slow.read()) > 7 * MIB


def test_login_link_works_and_its_code_is_in_no_log(proxy, database):
    code = offer_login(database)
    with connect(proxy, OUTSIDER, Authorization="x", Host=NAME) as person:
        responses = [person.get("/login", params={"code": code}) for _ in range(30)]
        assert {item.status_code for item in responses} == {200, 429}
    with connect(proxy, OTHER_OUTSIDER, Host=NAME, Origin=f"https://{NAME}") as person:
        pressed = person.post("/login", data={"code": code})
    assert pressed.status_code == 303
    assert "; Secure" in pressed.headers["set-cookie"]
    assert [OUTSIDER, "GET", "/login"] in [[item[0], *item[2:4]] for item in proxy.requests]
    assert "hl_" not in str(proxy.requests) + proxy.errors


@pytest.mark.parametrize("path", ["/health/live", "/health/ready", "/metrics"])
def test_internal_paths_are_for_monitors_only(proxy, site, path):
    headers = {"Authorization": f"Bearer {site.token()}"}
    # Sent unchanged: an HTTP client would normalise the path.
    spelt = [path, f"/{path}", path.replace("e", "%65"), f"/v1/..{path}", f"/.{path}", path + "?x"]
    for item in spelt:
        outsider = HTTPSConnection(
            *proxy.address, context=trust(proxy), source_address=(OUTSIDER, 0), timeout=30
        )
        outsider.request("GET", item, headers=headers)
        assert outsider.getresponse().status == 403, item
        outsider.close()
    with connect(proxy, MONITOR, token=site.token()) as monitor:
        assert monitor.get(path).status_code == 200


def test_request_has_one_id_in_both_logs_and_its_response(proxy, http, caplog):
    with caplog.at_level(logging.INFO, "helixqueue.service.request"):
        response = http.get("/v1/token", headers={"X-Request-Id": "the-client-s-own"})
        wait_until(lambda: caplog.messages)
    request = json.loads(caplog.messages[-1])["request"]
    assert response.headers["x-request-id"] == request
    assert wait_until(lambda: [item for item in proxy.requests if item[-1] == request])


def test_service_keeps_connections_longer_than_the_proxy(site, http):
    [keepalive] = re.findall(r"keepalive_timeout (\d+)s;", configuration())
    [read_timeout] = re.findall(r"proxy_read_timeout (\d+)s;", configuration())
    settings = ServiceSettings("postgresql://db/lab")
    assert int(keepalive) < settings.idle_seconds
    assert int(read_timeout) > max(MAX_WAIT_SECONDS, settings.check_seconds, KEEPALIVE_SECONDS) + 10
    assert http.get("/v1/token").status_code == 200
    with site.client() as direct:
        [connections] = re.findall(
            r"^helix_http_connections (\d+)\.0$", direct.get("/metrics").text, re.MULTILINE
        )
    assert int(connections) > 1, "the proxy keeps connections open"


def test_unauthenticated_requests_are_counted_by_client_address(proxy, site):
    def ask(address, count, **options):
        with connect(proxy, address, **options) as client:
            return {client.get("/v1/token").status_code for _ in range(count)}

    assert ask("127.0.0.9", 40) == {401, 429}
    assert ask("127.0.0.10", 1) == {401}
    assert ask("127.0.0.9", 40, token=site.token()) == {200}


def test_client_reports_an_untrusted_certificate_at_once(proxy, site, monkeypatch, tmp_path):
    def ask():
        with HelixClient(proxy.url, token=site.token(), retry_seconds=600) as helix:
            helix.state(uuid.uuid4())

    monkeypatch.delenv("SSL_CERT_FILE", raising=False)
    with pytest.raises(Unavailable, match=r"is not trusted.* SSL_CERT_FILE"):
        ask()
    for nothing in (tmp_path / "missing", GUIDE):
        monkeypatch.setenv("SSL_CERT_FILE", str(nothing))
        with pytest.raises(Refused, match=f"SSL_CERT_FILE: expected .*{nothing.name}"):
            ask()


def test_without_nginx_a_local_run_skips_and_ci_fails(monkeypatch):
    monkeypatch.setattr("shutil.which", lambda *_, **__: None)
    monkeypatch.delenv("CI", raising=False)
    with pytest.raises(pytest.skip.Exception, match="apt-get install -y nginx"):
        _program()
    monkeypatch.setenv("CI", "true")
    with pytest.raises(pytest.fail.Exception, match="apt-get install -y nginx"):
        _program()
