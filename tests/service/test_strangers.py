"""Whoever comes without a good token, and however often: the rest must not feel it."""

from __future__ import annotations

import asyncio

import httpx
import pytest

from helixqueue.engine import tokens
from helixqueue.service.problems import Problem
from helixqueue.service.rate_limit import PLACES_MAX, AnonymousRateLimit
from helixqueue.service.service import Service
from tests.support.lab import until
from tests.support.service import TLS, Site, serving, settings_for

GUESSES = 20


@pytest.fixture(scope="module")
def strict(database):
    """A service that has patience with five strangers."""
    settings = settings_for(database, strangers_burst=5, strangers_per_second=0.01)
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


def test_guesses_are_told_to_wait_and_good_tokens_from_their_address_never(strict):
    told = [guess(strict) for _ in range(GUESSES)]
    assert [one.status_code for one in told] == [401] * 5 + [429] * (GUESSES - 5)
    problem = told[-1].json()
    assert told[-1].headers["content-type"] == "application/problem+json"
    assert problem["type"].endswith(":too-many-requests")
    assert problem["expected"] == "a good token, or at most 0.01 times a second, 5 at once"
    assert int(told[-1].headers["retry-after"]) >= 1
    assert httpx.get(f"{strict.url}/v1/token", verify=TLS).status_code == 429
    for _ in range(2):  # of tokens that were never seen here before
        with strict.client() as http:
            assert {http.get("/v1/token").status_code for _ in range(3)} == {200}


def test_guessed_codes_are_told_to_wait_and_guessed_tokens_do_not_count_as_such(database):
    """A code is no token: whoever guesses those asks the database to write."""
    settings = settings_for(database, strangers_burst=5, strangers_per_second=0.01)
    with serving(settings) as url, httpx.Client(base_url=url, verify=TLS) as http:
        while http.get("/v1/token").status_code != 429:
            pass
        code = {"code": tokens.new_token("hl_").token}
        told = [http.post("/v1/login", json=code).status_code for _ in range(3)]
        told += [http.post("/login", data=code).status_code for _ in range(3)]
        assert told == [404, 404, 404, 410, 410, 429]
        assert http.post("/v1/login", json=code).status_code == 429


def test_a_flood_of_guesses_is_one_question_at_a_time(site, database):
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
                asking = [asyncio.ensure_future(service.principals.of([one])) for one in sent]
                await asyncio.to_thread(until, lambda: database.value(waiting, database.name))
                late = asyncio.ensure_future(service.principals.of([sent[-1]]))
                await asyncio.sleep(0)
                assert database.value(waiting, database.name) == 1
            *strangers, found = await asyncio.gather(*asking, return_exceptions=True)
        assert {one.kind for one in strangers} == {"unauthenticated"}
        assert found.grant.name == (await late).grant.name == "found"
        await service.close()

    asyncio.run(asyncio.wait_for(flood(), 60))


@pytest.mark.parametrize("host", ["192.0.2.1", "2001:db8::1", "::ffff:192.0.2.1"])
def test_an_address_is_counted_for_itself_and_a_network_for_all_its_addresses(host):
    strangers = AnonymousRateLimit(0.01, 1)
    strangers.take({"client": (host, 1)})
    with pytest.raises(Problem):
        strangers.take({"client": (host, 2)})
    strangers.take({"client": ("192.0.2.7", 1)})
    strangers.take({"client": None})
    neighbour = {"client": ("2001:db8::ffff", 1)}
    if host.startswith("2001"):
        with pytest.raises(Problem):
            strangers.take(neighbour)
    else:
        strangers.take(neighbour)


def test_strangers_from_everywhere_take_no_more_than_so_much_memory():
    strangers = AnonymousRateLimit(0.01, 1)
    for number in range(PLACES_MAX + 10):
        strangers.take({"client": (f"10.{number >> 16}.{number >> 8 & 255}.{number & 255}", 1)})
    assert len(strangers._places) == PLACES_MAX
