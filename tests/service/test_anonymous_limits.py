"""Requests without a valid token are limited and do not affect others."""

from __future__ import annotations

import asyncio
import json
from contextlib import closing
from http.client import HTTPConnection
from urllib.parse import urlsplit

import httpx
import pytest

from helixqueue.engine import tokens
from helixqueue.service.problems import Problem
from helixqueue.service.rate_limit import ADDRESSES_MAX, AnonymousRateLimit
from helixqueue.service.service import Service
from helixqueue.service.settings import MAX_OPEN_BODY_BYTES
from tests.support.lab import wait_until
from tests.support.service import TLS, Site, offer_login, serving, settings_for

GUESSES = 20


@pytest.fixture(scope="module")
def strict(database):
    """A service that allows five anonymous requests."""
    settings = settings_for(database, anonymous_burst=5, anonymous_per_second=0.01)
    with serving(settings) as url:
        yield Site(database, url)


def guesses():
    return [tokens.new_token().token for _ in range(GUESSES)]


def guess(site):
    return httpx.get(
        f"{site.url}/v1/token",
        headers={"Authorization": f"Bearer {tokens.new_token().token}"},
        verify=TLS,
        timeout=30,
    )


def test_guessed_tokens_get_429_and_valid_tokens_of_the_address_do_not(strict):
    response = [guess(strict) for _ in range(GUESSES)]
    assert [item.status_code for item in response] == [401] * 5 + [429] * (GUESSES - 5)
    problem = response[-1].json()
    assert response[-1].headers["content-type"] == "application/problem+json"
    assert problem["type"].endswith(":too-many-requests")
    assert (
        problem["expected"] == "a valid token, or at most 0.01 requests per second with bursts of 5"
    )
    assert int(response[-1].headers["retry-after"]) >= 1
    assert httpx.get(f"{strict.url}/v1/token", verify=TLS).status_code == 429
    for _ in range(2):  # with tokens that are not cached
        with strict.client() as http:
            assert {http.get("/v1/token").status_code for _ in range(3)} == {200}


def test_guessed_codes_get_429_and_are_counted_apart_from_tokens(database):
    """Codes are counted separately: guessing them makes the database write."""
    settings = settings_for(database, anonymous_burst=5, anonymous_per_second=0.01)
    with serving(settings) as url, httpx.Client(base_url=url, verify=TLS) as http:
        while http.get("/v1/token").status_code != 429:
            pass
        code = {"code": tokens.new_token("hl_").token}
        response = [http.post("/v1/login", json=code).status_code for _ in range(3)]
        response += [
            http.post("/login", data=code, headers={"Origin": url}).status_code for _ in range(3)
        ]
        assert response == [404, 404, 404, 410, 410, 429]
        assert http.post("/v1/login", json=code).status_code == 429


@pytest.mark.parametrize("path", ["/v1/login", "/login"])
def test_login_over_the_limit_gets_429_before_its_body_is_read(database, path):
    """The head announces a body that never comes; a service that reads first would wait for it."""
    settings = settings_for(database, anonymous_burst=1, anonymous_per_second=0.01)
    with serving(settings) as url:
        assert httpx.post(f"{url}{path}", content=b"{", verify=TLS).status_code in {400, 403}
        with closing(HTTPConnection(urlsplit(url).netloc, timeout=5)) as http:
            http.putrequest("POST", path)
            http.putheader("Content-Length", "100")
            http.endheaders()
            assert http.getresponse().status == 429


@pytest.mark.parametrize("chunked", [False, True])
def test_body_over_1_kib_without_a_token_is_refused_unparsed(site, database, chunked):
    code = offer_login(database)
    body = json.dumps({"code": code}).encode()
    largest, larger = body.ljust(MAX_OPEN_BODY_BYTES), body.ljust(MAX_OPEN_BODY_BYTES + 1)
    headers = {"Content-Type": "application/json"}
    with httpx.Client(base_url=site.url, verify=TLS, headers=headers) as http:
        for method, path in (("POST", "/v1/login"), ("POST", "/login"), ("GET", "/health/live")):
            refused = http.request(method, path, content=iter([larger]) if chunked else larger)
            assert refused.status_code == 413
        assert http.post("/v1/login", content=largest).status_code == 201  # the code was not used


def test_concurrent_guesses_run_one_lookup_at_a_time(site, database):
    waiting = (
        "select count(*) from pg_stat_activity where usename = 'service' and datname = %s "
        "and wait_event_type = 'Lock' and query like '%%authenticate_v1%%'"
    )
    sent = [f"Bearer {token}".encode() for token in (*guesses(), site.token(name="found"))]

    async def flood():
        service = Service(settings_for(database))
        with database.connect("helix_bootstrap") as blocker:
            with blocker.transaction():
                blocker.execute("lock table helix.api_token in access exclusive mode")
                asking = [asyncio.ensure_future(service.principals.get([item])) for item in sent]
                await asyncio.to_thread(wait_until, lambda: database.value(waiting, database.name))
                late = asyncio.ensure_future(service.principals.get([sent[-1]]))
                await asyncio.sleep(0)
                assert database.value(waiting, database.name) == 1
            *anonymous, found = await asyncio.gather(*asking, return_exceptions=True)
        assert {item.kind for item in anonymous} == {"unauthenticated"}
        assert found.grant.name == (await late).grant.name == "found"
        await service.close()

    asyncio.run(asyncio.wait_for(flood(), 60))


@pytest.mark.parametrize("host", ["192.0.2.1", "2001:db8::1", "::ffff:192.0.2.1"])
def test_limit_counts_ipv4_addresses_and_ipv6_networks(host):
    limit = AnonymousRateLimit(0.01, 1)
    limit.count({"client": (host, 1)})
    with pytest.raises(Problem):
        limit.count({"client": (host, 2)})
    limit.count({"client": ("192.0.2.7", 1)})
    limit.count({"client": None})
    neighbour = {"client": ("2001:db8::ffff", 1)}
    if host.startswith("2001"):
        with pytest.raises(Problem):
            limit.count(neighbour)
    else:
        limit.count(neighbour)


def test_number_of_counted_addresses_is_limited():
    limit = AnonymousRateLimit(0.01, 1)
    for number in range(ADDRESSES_MAX + 10):
        limit.count({"client": (f"10.{number >> 16}.{number >> 8 & 255}.{number & 255}", 1)})
    assert len(limit._limits) == ADDRESSES_MAX
