"""docs/deploy/proxy.md, done: its nginx before a real service, and real clients over TLS."""

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
from helixqueue.service.changes import QUIET_SECONDS
from helixqueue.service.settings import MAX_WAIT_SECONDS
from tests.support.lab import Lab, one_database, until
from tests.support.nginx import GUIDE, Nginx, _program, block
from tests.support.service import Site, offer_login, serving, settings_for, stream_events

NAME = "helix.example.org"
MIB = 1024 * 1024
# On loopback everybody has a network to be from; the document lets 127.0.0.1 watch.
WATCHER, STRANGER, ANOTHER = "127.0.0.1", "127.0.0.2", "127.0.0.3"


@pytest.fixture(scope="module")
def database(server, template, pooler):
    yield from one_database(server, template, pooler)


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
    """What a lab does for its private authority."""
    monkeypatch.setenv("SSL_CERT_FILE", str(proxy.authority))
    return proxy


@pytest.fixture
def lab(database):
    with Lab(database) as lab:
        lab.queue()
        yield lab


@pytest.fixture
def http(site, proxy):
    with asking(proxy, token=site.token()) as client:
        yield client


def asking(proxy, address=WATCHER, *, token=None, **headers):
    if token is not None:
        headers["Authorization"] = f"Bearer {token}"
    way = httpx.HTTPTransport(local_address=address, verify=trust(proxy))
    return httpx.Client(base_url=proxy.url, headers=headers, transport=way, timeout=30)


def status_of(said):
    return int(said.split()[1])


def trust(proxy):
    return ssl.create_default_context(cafile=proxy.authority)


def test_a_repeat_with_its_key_gets_the_first_answer(http, lab):
    body, key = (
        {"identity": "Sämple-Ω-1", "payload": {"n": 1}},
        {"Idempotency-Key": str(uuid.uuid4())},
    )
    path = f"/v1/queues/{lab.q}/batches"
    first, second = (http.post(path, json=body, headers=key) for _ in range(2))
    assert (first.status_code, second.status_code) == (201, 201)
    assert first.json() == second.json()
    assert second.headers["idempotency-replayed"] == "true"
    [found] = http.get("/v1/batches", params={"identity": "Sämple-Ω-1"}).json()["batches"]
    assert found["batch_id"] == first.json()["receipt"]["batch_id"]


def test_a_worker_that_waits_is_woken_renews_and_completes(site, trusted, database, lab):
    """Renewals come from a process of their own, which must trust the authority too."""
    queue = Queue(lab.q, lease=2)
    deadline = (
        "select w.deadline from helix.work w join helix.queue q on q.id = w.queue where q.name = %s"
    )

    @queue.handler
    async def run(lease):
        first = database.value(deadline, lab.q)
        await asyncio.to_thread(until, lambda: database.value(deadline, lab.q) > first)
        return lease.payload["n"] + 1

    async def main():
        async with AsyncHelixClient(trusted.url, token=site.token()) as helix:
            # It looks once a minute: what is done sooner, it was woken for.
            working = asyncio.create_task(helix.work(queue, poll_seconds=60))
            waits = "select from helix.waiter where queue = %s"
            await asyncio.to_thread(until, lambda: database.rows(waits, lab.q))
            one = await helix.submit(queue, identity="s", payload={"n": 1})
            assert await helix.wait(one.receipt, timeout=30) is State.COMPLETED
            assert await helix.result(one.receipt) == 2
            working.cancel()
            await asyncio.wait([working])

    asyncio.run(main())


def test_changes_arrive_while_their_stream_is_open_and_go_on_behind_the_last(http, lab):
    def told(**headers):
        return http.stream("GET", "/v1/changes", params={"queue": lab.q}, headers=headers)

    with told() as stream:
        changes = stream_events(stream)
        assert next(changes)[1] == "begin"
        lab.submit("a")
        place, _, change = next(changes)
        assert change["to_state"] == "PENDING"
    lab.claim(start=False)
    with told(**{"Last-Event-ID": place}) as stream:
        changes = stream_events(stream)
        assert next(changes)[1] == "begin"
        assert next(changes)[2]["to_state"] == "ASSIGNED"


def test_a_body_has_a_mebibyte_and_more_is_refused_before_it_is_sent(proxy, http, lab):
    path, head = f"/v1/queues/{lab.q}/batches", '{"identity":"s","payload":"'
    largest = f'{head}{"x" * (MIB - len(head) - 2)}"}}'
    assert len(largest) == MIB
    assert http.post(path, content=largest).status_code == 201
    # In pieces, whose sum nobody knows before.
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


def test_what_a_client_is_slow_to_read_does_not_wait_on_the_proxy_s_disk(http, proxy, lab):
    lab.submit_many(8, payload="x" * (MIB - 100))
    claim = {"worker": "w", "request": str(uuid.uuid4()), "queues": [lab.q], "count": 8}
    with http.stream("POST", "/v1/work/claim", json=claim) as slow:
        for _ in range(20):  # in which the proxy takes what it can
            assert http.get("/v1/token").status_code == 200
        assert "temporary file" not in proxy.errors
        assert len(slow.read()) > 7 * MIB


def test_a_login_link_works_and_its_code_stands_in_no_log(proxy, database):
    code = offer_login(database)
    with asking(proxy, STRANGER, Authorization="x", Host=NAME) as person:
        told = [person.get("/login", params={"code": code}) for _ in range(30)]
        assert {one.status_code for one in told} == {200, 429}
    with asking(proxy, ANOTHER, Host=NAME) as person:
        pressed = person.post("/login", data={"code": code})
    assert pressed.status_code == 200
    assert f" https://{NAME}/v1/queues" in pressed.text
    assert [STRANGER, "GET", "/login"] in [[one[0], *one[2:4]] for one in proxy.requests]
    assert "hl_" not in str(proxy.requests) + proxy.errors


@pytest.mark.parametrize("path", ["/health/live", "/health/ready", "/metrics"])
def test_the_inside_is_told_to_watchers_alone(proxy, site, path):
    headers = {"Authorization": f"Bearer {site.token()}"}
    # As they are: a client that is kind would make them one.
    spelt = [path, f"/{path}", path.replace("e", "%65"), f"/v1/..{path}", f"/.{path}", path + "?x"]
    for one in spelt:
        stranger = HTTPSConnection(
            *proxy.address, context=trust(proxy), source_address=(STRANGER, 0), timeout=30
        )
        stranger.request("GET", one, headers=headers)
        assert stranger.getresponse().status == 403, one
        stranger.close()
    with asking(proxy, WATCHER, token=site.token()) as watcher:
        assert watcher.get(path).status_code == 200


def test_a_request_has_one_id_in_both_logs_and_its_answer(proxy, http, caplog):
    with caplog.at_level(logging.INFO, "helixqueue.service.request"):
        told = http.get("/v1/token", headers={"X-Request-Id": "the-client-s-own"})
        until(lambda: caplog.messages)
    request = json.loads(caplog.messages[-1])["request"]
    assert told.headers["x-request-id"] == request
    assert until(lambda: [one for one in proxy.requests if one[-1] == request])


def test_whoever_closes_first_and_waits_longest_is_the_proxy(site, http):
    [resting] = re.findall(r"keepalive_timeout (\d+)s;", block())
    [patience] = re.findall(r"proxy_read_timeout (\d+)s;", block())
    settings = ServiceSettings("postgresql://db/lab")
    assert int(resting) < settings.idle_seconds
    assert int(patience) > max(MAX_WAIT_SECONDS, settings.check_seconds, QUIET_SECONDS) + 10
    assert http.get("/v1/token").status_code == 200
    with site.client() as direct:
        [connections] = re.findall(
            r"^helix_http_connections (\d+)$", direct.get("/metrics").text, re.MULTILINE
        )
    assert int(connections) > 1, "one is kept for the next who asks the proxy"


def test_strangers_are_counted_by_their_own_address(proxy, site):
    def ask(address, count, **options):
        with asking(proxy, address, **options) as client:
            return {client.get("/v1/token").status_code for _ in range(count)}

    assert ask("127.0.0.9", 40) == {401, 429}
    assert ask("127.0.0.10", 1) == {401}
    assert ask("127.0.0.9", 40, token=site.token()) == {200}


def test_a_client_that_knows_no_such_authority_says_so_at_once(proxy, site, monkeypatch, tmp_path):
    def ask():
        with HelixClient(proxy.url, token=site.token(), patience_seconds=600) as helix:
            helix.state(uuid.uuid4())

    monkeypatch.delenv("SSL_CERT_FILE", raising=False)
    with pytest.raises(Unavailable, match=r"is not trusted.* SSL_CERT_FILE"):
        ask()
    for nothing in (tmp_path / "missing", GUIDE):
        monkeypatch.setenv("SSL_CERT_FILE", str(nothing))
        with pytest.raises(Refused, match=f"SSL_CERT_FILE: expected .*{nothing.name}"):
            ask()


def test_without_the_program_a_local_run_skips_and_a_build_fails(monkeypatch):
    monkeypatch.setattr("shutil.which", lambda *_, **__: None)
    monkeypatch.delenv("CI", raising=False)
    with pytest.raises(pytest.skip.Exception, match="apt-get install -y nginx"):
        _program()
    monkeypatch.setenv("CI", "true")
    with pytest.raises(pytest.fail.Exception, match="apt-get install -y nginx"):
        _program()
