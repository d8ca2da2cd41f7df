"""Tenants share a process: no tenant's many keep another from its first; all is given back."""

from __future__ import annotations

import asyncio
from contextlib import ExitStack, asynccontextmanager

import httpx
import pytest

from helixqueue.postgres.fair_semaphore import FairSemaphore
from helixqueue.service import work
from helixqueue.service.app import create_app
from helixqueue.service.problems import Problem
from helixqueue.service.tenant_limits import TenantLimits
from tests.support.lab import PATIENCE_S, until
from tests.support.service import Site, serving, settings_for

WAIT = {"worker": "w", "queues": ["held"], "seconds": 30}


@pytest.fixture(scope="module")
def small(database):
    with serving(settings_for(database, max_streams=4)) as url:
        site = Site(database, url)
        for tenant in ("a", "b"):
            with site.client(tenant=tenant) as http:
                http.put("/v1/queues/held", json={"reason": "a queue that stays empty"})
        yield site


def is_told_the_number(told, status, kind, has):
    problem = told.json()
    assert (told.status_code, problem["type"].rpartition(":")[2]) == (status, kind)
    assert told.headers["content-type"] == "application/problem+json"
    assert int(told.headers["retry-after"]) >= 1
    assert f"the tenant has {has} of the 4 " in problem["detail"]
    assert problem["expected"] == f"at most {has} of one tenant at this moment"
    assert problem["got"] == str(has + 1)
    return bool(problem["remedy"])


def gauge(http, name):
    lines = http.get("/metrics").text.splitlines()
    return next(int(one.split()[1]) for one in lines if one.startswith(f"{name} "))


def test_many_streams_of_one_tenant_do_not_keep_another_from_its_first(small):
    with (
        small.client(tenant="a") as http,
        small.client(tenant="a") as twin,  # another token of the same tenant is no other tenant
        small.client(tenant="b") as other,
        ExitStack() as streams,
    ):
        until(lambda: gauge(http, "helix_http_streams") == 0)

        def opened(client):
            stream = client.stream("GET", "/v1/changes", params={"seconds": 60})
            return streams.enter_context(stream).status_code

        assert [opened(http) for _ in range(3)] == [200] * 3, "three times as many as are free"
        assert is_told_the_number(twin.get("/v1/changes"), 429, "too-many-streams", 3)
        assert opened(other) == 200
        assert is_told_the_number(other.get("/v1/changes"), 429, "too-many-streams", 1)
        assert gauge(http, "helix_http_streams") == 4
        streams.close()
        until(lambda: gauge(http, "helix_http_streams") == 0)


@asynccontextmanager
async def within(database, **options):
    """A service in this event loop, and a client of each tenant."""
    gate = create_app(settings_for(database, **options))
    site = Site(database, "")
    async with httpx.AsyncClient(
        transport=httpx.ASGITransport(gate), base_url="http://here", timeout=PATIENCE_S
    ) as http:
        tokens = {tenant: {"Authorization": f"Bearer {site.token(tenant=tenant)}"}
                  for tenant in ("a", "b")}  # fmt: skip
        try:
            yield gate, http, tokens
        finally:
            await gate.service.close()


async def becomes(ask):
    async with asyncio.timeout(PATIENCE_S):
        while not ask():  # noqa: ASYNC110 - the service tells nobody
            await asyncio.sleep(0.005)


async def held(gate, http, token, number):
    """So many workers that wait."""

    async def wait():
        return (await http.post("/v1/work/wait", json={**WAIT, "mark": mark}, headers=token)).json()

    mark = (await http.post("/v1/work/expect", json=WAIT, headers=token)).json()["mark"]
    mark = (await wait())["mark"]  # the first ring is that the service listens now
    waiting = [asyncio.create_task(wait()) for _ in range(number)]
    await becomes(lambda: gate.service.waits.taken == number)
    return waiting


async def ended(waiting):
    for one in waiting:
        one.cancel()
    await asyncio.gather(*waiting, return_exceptions=True)


@pytest.mark.usefixtures("small")
def test_many_waiting_workers_of_one_tenant_do_not_keep_another_from_its_first(database):
    async def crowd():
        async with within(database, max_waits=4) as (gate, http, tokens):
            waiting = await held(gate, http, tokens["a"], 3)
            told = await http.post("/v1/work/wait", json=WAIT, headers=tokens["a"])
            assert is_told_the_number(told, 429, "too-many-streams", 3)
            brief = {**WAIT, "seconds": 0.01}
            told = await http.post("/v1/work/wait", json=brief, headers=tokens["b"])
            assert told.status_code == 200
            await ended(waiting)
            assert gate.service.waits.taken == 0

    asyncio.run(crowd())


@pytest.mark.usefixtures("small")
def test_many_requests_of_one_tenant_do_not_keep_another_from_its_first(database):
    async def crowd():
        async with within(database, max_requests=4) as (gate, http, tokens):
            waiting = await held(gate, http, tokens["a"], 3)
            told = await http.get("/v1/token", headers=tokens["a"])
            assert is_told_the_number(told, 503, "too-busy", 3)
            assert (await http.get("/v1/token", headers=tokens["b"])).status_code == 200
            await ended(waiting)
            assert gate.service.requests.taken == 0

    asyncio.run(crowd())


def test_many_questions_of_one_tenant_do_not_keep_another_from_a_connection(database):
    answered = []

    async def crowd():
        async with within(database, connections=1, duties=False) as (gate, http, tokens):

            async def ask(tenant):
                told = await http.get("/v1/batches", headers=tokens[tenant])
                answered.append((tenant, told.status_code))

            with database.connect("helix_bootstrap", autocommit=False) as connection:
                connection.execute("lock table helix.batch in access exclusive mode")
                asked = [asyncio.create_task(ask("a")) for _ in range(12)]
                await becomes(lambda: gate.service.requests.taken == 12)
                asked.append(asyncio.create_task(ask("b")))
                await asyncio.sleep(0)
                connection.rollback()
            await asyncio.gather(*asked)

    asyncio.run(crowd())
    assert {status for _, status in answered} == {200}
    # One is under way when it comes, and its token is asked for; yet it came last of all.
    assert answered.index(("b", 200)) <= 4


def test_a_tenant_that_waits_for_its_own_locks_does_not_keep_another_from_a_connection(
    database, lab
):
    """A program of its own may hold a lock for as long as it likes."""
    rows = [{"identity": "locked", "payload": 1}, {"identity": "other", "payload": 1}]
    chunk = {"submissions": rows}

    async def crowd():
        async with within(database, connections=4, duties=False) as (_, http, tokens):

            async def submit():
                path = f"/v1/queues/{lab.q}/chunks"
                return (await http.post(path, json=chunk, headers=tokens["a"])).status_code

            with lab.store.connection.transaction():
                lab.submit("locked", payload=1)  # not committed: whoever submits it waits
                asked = [asyncio.create_task(submit()) for _ in range(6)]
                await becomes(lambda: waiting_for_locks(database) == 3)
                for _ in range(3):
                    told = await http.get("/v1/batches", headers=tokens["b"])
                    assert told.status_code == 200
                assert waiting_for_locks(database) == 3, "three quarters, and no more"
            return await asyncio.gather(*asked)

    assert asyncio.run(crowd()) == [200] * 6


def waiting_for_locks(database):
    return database.value(
        "select count(*) from pg_stat_activity where wait_event_type = 'Lock' "
        "and datname = current_database() and usename = 'service'"
    )


def test_who_waits_is_served_by_turns_and_what_nobody_takes_goes_on():
    served = []

    async def take(turns, whose):
        async with turns.permit(whose):
            served.append(whose)
            await asyncio.sleep(0)

    async def crowd():
        turns = FairSemaphore(1)
        assert turns.try_acquire("a")
        waiting = [asyncio.create_task(take(turns, whose)) for whose in "aaab"]
        leaving = asyncio.create_task(take(turns, "c"))
        late = asyncio.create_task(take(turns, "d"))
        await asyncio.sleep(0)
        leaving.cancel()  # while it waits
        await asyncio.sleep(0)
        turns.release("a")
        late.cancel()
        waiting[0].cancel()  # it was handed its turn, and is not there any more
        await asyncio.gather(*waiting, leaving, late, return_exceptions=True)
        assert turns.try_acquire("e"), "all was given back"

    asyncio.run(crowd())
    assert served == ["b", "a", "a"]


def test_a_tenant_that_is_alone_has_three_quarters_and_others_share_what_it_leaves():
    places = TenantLimits(64, "streams", kind="too-many-streams", retry_after=10)

    def taken(tenant):
        for number in range(65):
            try:
                places.take(tenant)
            except Problem:
                return number
        return None

    assert [taken(tenant) for tenant in ("a", "b", "c", "d")] == [48, 12, 3, 1]
    for _ in range(32):
        places.give_back("a")
    assert taken("c") == 23, "who had little has more as soon as the first gives back"


def test_who_has_none_because_others_have_all_is_told_so():
    places = TenantLimits(2, "checks and replays", kind="check-under-way", retry_after=1)
    places.take("a")
    places.take("b")
    with pytest.raises(Problem) as refused:
        places.take("c")
    assert refused.value.detail == "all 2 checks and replays that this process has are taken"
    assert refused.value.told["expected"] == "one that is free"
    assert refused.value.told["got"] == "none"


def scope_of(headers, path, method="GET", query=b"", version="2.4"):
    return {
        "type": "http",
        "asgi": {"version": "3.0", "spec_version": version},
        "http_version": "1.1",
        "method": method,
        "scheme": "http",
        "path": path,
        "raw_path": path.encode(),
        "query_string": query,
        "root_path": "",
        "headers": [(name.lower().encode(), value.encode()) for name, value in headers.items()],
        "client": ("127.0.0.1", 1),
        "server": ("127.0.0.1", 2),
        "state": {},
    }


class Client:
    """One that says its piece, and then is gone when told so."""

    def __init__(self, body=b""):
        self._said = [{"type": "http.request", "body": body, "more_body": False}]
        self.gone = asyncio.Event()
        self.answer = []

    async def receive(self):
        if self._said:
            return self._said.pop()
        await self.gone.wait()
        return {"type": "http.disconnect"}

    async def send(self, message):
        if self.gone.is_set():
            raise OSError("nobody is there")
        self.answer.append(message)


@pytest.mark.parametrize("version", ["2.3", "2.4"])
@pytest.mark.parametrize("how", ["leaves", "cancelled", "refused"])
def test_a_stream_that_ends_before_its_first_byte_gives_its_place_back(database, how, version):
    async def come_and_go():
        async with within(database, duties=False) as (gate, _, tokens):
            streams = gate.service.streams
            client = Client()
            with database.connect("helix_bootstrap", autocommit=False) as connection:
                connection.execute("lock table helix.event in access exclusive mode")
                wrong = {"Last-Event-ID": "x"} if how == "refused" else {}
                scope = scope_of(tokens["a"] | wrong, "/v1/changes", version=version)
                stream = asyncio.create_task(gate(scope, client.receive, client.send))
                if how != "refused":
                    await becomes(lambda: streams.taken == 1)
                if how == "leaves":
                    client.gone.set()
                if how == "cancelled":
                    stream.cancel()
                connection.rollback()
            await asyncio.gather(stream, return_exceptions=True)
            assert (streams.taken, gate.service.requests.taken) == (0, 0)
            return [one["status"] for one in client.answer if "status" in one]

    assert asyncio.run(come_and_go()) == ([422] if how == "refused" else [])


async def broken(_, waiting):
    waiting.close()
    raise ZeroDivisionError


@pytest.mark.parametrize("how", ["leaves", "cancelled", "fault"])
@pytest.mark.usefixtures("small")
def test_a_wait_that_ends_before_its_time_gives_its_place_back(database, how, monkeypatch):
    body = b'{"worker": "w", "queues": ["held"], "seconds": 30}'

    async def come_and_go():
        async with within(database, duties=False) as (gate, _, tokens):
            waits = gate.service.waits
            client = Client(body)
            if how == "fault":
                monkeypatch.setattr(work, "unless_left", broken)
            headers = tokens["a"] | {"Content-Type": "application/json"}
            scope = scope_of(headers, "/v1/work/wait", "POST")
            wait = asyncio.create_task(gate(scope, client.receive, client.send))
            if how != "fault":
                await becomes(lambda: waits.taken == 1)
            if how == "leaves":
                client.gone.set()
            if how == "cancelled":
                wait.cancel()
            async with asyncio.timeout(WAIT["seconds"] / 2):
                await asyncio.gather(wait, return_exceptions=True)
            return waits.taken, gate.service.requests.taken

    assert asyncio.run(come_and_go()) == (0, 0)


def test_nobody_is_waited_for_who_has_closed_its_connection(small):
    with small.client() as http, small.client() as leaving:
        mark = http.post("/v1/work/expect", json=WAIT).json()["mark"]
        mark = http.post("/v1/work/wait", json={**WAIT, "mark": mark}).json()["mark"]
        with pytest.raises(httpx.ReadTimeout):
            leaving.post("/v1/work/wait", json={**WAIT, "mark": mark}, timeout=1)
        until(lambda: gauge(http, "helix_http_waits") == 0, seconds=WAIT["seconds"] / 2)
