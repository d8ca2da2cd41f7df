"""Tenants share the limits of a process fairly, and every slot is released."""

from __future__ import annotations

import asyncio
import json
from contextlib import ExitStack, asynccontextmanager

import httpx
import pytest

from helixqueue.postgres.fairness import FairSemaphore
from helixqueue.service.app import create_app
from helixqueue.service.problems import Problem
from helixqueue.service.routes import leases
from helixqueue.service.tenant_limits import TenantLimits
from tests.support.lab import TIMEOUT_S, wait_until
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


def assert_limited(response, status, kind, has):
    problem = response.json()
    assert (response.status_code, problem["type"].rpartition(":")[2]) == (status, kind)
    assert response.headers["content-type"] == "application/problem+json"
    assert int(response.headers["retry-after"]) >= 1
    assert f"the tenant uses {has} of the 4 " in problem["detail"]
    assert problem["expected"] == f"at most {has} per tenant at the moment"
    assert problem["got"] == str(has + 1)
    return bool(problem["remedy"])


def gauge(http, name):
    lines = http.get("/metrics").text.splitlines()
    return next(float(item.split()[1]) for item in lines if item.startswith(f"{name} "))


def test_streams_of_one_tenant_leave_room_for_another(small):
    with (
        small.client(tenant="a") as http,
        small.client(tenant="a") as twin,  # another token of the same tenant
        small.client(tenant="b") as other,
        ExitStack() as streams,
    ):
        wait_until(lambda: gauge(http, "helix_http_streams") == 0)

        def opened(client):
            stream = client.stream("GET", "/v1/changes", params={"seconds": 60})
            return streams.enter_context(stream).status_code

        assert [opened(http) for _ in range(3)] == [200] * 3, "three times as many as are free"
        assert assert_limited(twin.get("/v1/changes"), 429, "too-many-streams", 3)
        assert opened(other) == 200
        assert assert_limited(other.get("/v1/changes"), 429, "too-many-streams", 1)
        assert gauge(http, "helix_http_streams") == 4
        streams.close()
        wait_until(lambda: gauge(http, "helix_http_streams") == 0)


@asynccontextmanager
async def within(database, **options):
    """A service in this event loop, and a token of each tenant."""
    app = create_app(settings_for(database, **options))
    site = Site(database, "")
    async with httpx.AsyncClient(
        transport=httpx.ASGITransport(app), base_url="http://here", timeout=TIMEOUT_S
    ) as http:
        tokens = {tenant: {"Authorization": f"Bearer {site.token(tenant=tenant)}"}
                  for tenant in ("a", "b")}  # fmt: skip
        try:
            yield app, http, tokens
        finally:
            await app.state.service.close()


async def becomes(ask):
    async with asyncio.timeout(TIMEOUT_S):
        while not ask():  # noqa: ASYNC110 - the service tells nobody
            await asyncio.sleep(0.005)


async def mark_of_listener(http, token):
    """The mark after the first wake-up: the service listens, so a wait with this mark lasts."""
    mark = (await http.post("/v1/work/expect", json=WAIT, headers=token)).json()["mark"]
    wait = {**WAIT, "mark": mark}
    return (await http.post("/v1/work/wait", json=wait, headers=token)).json()["mark"]


async def held(app, http, token, number):
    """Start this many waiting workers."""
    wait = {**WAIT, "mark": await mark_of_listener(http, token)}
    waiting = [
        asyncio.create_task(http.post("/v1/work/wait", json=wait, headers=token))
        for _ in range(number)
    ]
    await becomes(lambda: app.state.service.waits.taken == number)
    return waiting


async def ended(waiting):
    for item in waiting:
        item.cancel()
    await asyncio.gather(*waiting, return_exceptions=True)


@pytest.mark.usefixtures("small")
def test_waiting_workers_of_one_tenant_leave_room_for_another(database):
    async def requests():
        async with within(database, max_waits=4) as (app, http, tokens):
            waiting = await held(app, http, tokens["a"], 3)
            response = await http.post("/v1/work/wait", json=WAIT, headers=tokens["a"])
            assert assert_limited(response, 429, "too-many-streams", 3)
            brief = {**WAIT, "seconds": 0.01}
            response = await http.post("/v1/work/wait", json=brief, headers=tokens["b"])
            assert response.status_code == 200
            await ended(waiting)
            assert app.state.service.waits.taken == 0

    asyncio.run(requests())


@pytest.mark.usefixtures("small")
def test_requests_of_one_tenant_leave_room_for_another(database):
    async def requests():
        async with within(database, max_requests=4) as (app, http, tokens):
            waiting = await held(app, http, tokens["a"], 3)
            response = await http.get("/v1/token", headers=tokens["a"])
            assert assert_limited(response, 503, "too-busy", 3)
            assert (await http.get("/v1/token", headers=tokens["b"])).status_code == 200
            await ended(waiting)
            assert app.state.service.requests.taken == 0

    asyncio.run(requests())


def test_queries_of_one_tenant_leave_a_connection_for_another(database):
    answered = []

    async def requests():
        async with within(database, connections=1, duties=False) as (app, http, tokens):

            async def ask(tenant):
                response = await http.get("/v1/batches", headers=tokens[tenant])
                answered.append((tenant, response.status_code))

            # Its token is known, so it needs the connection once.
            await ask("b")
            answered.clear()
            with database.connect("helix_bootstrap", autocommit=False) as connection:
                connection.execute("lock table helix.batch in access exclusive mode")
                sent = [asyncio.create_task(ask("a")) for _ in range(12)]
                await becomes(lambda: app.state.service.requests.taken == 12)
                sent.append(asyncio.create_task(ask("b")))
                await asyncio.sleep(0)
                connection.rollback()
            await asyncio.gather(*sent)

    asyncio.run(requests())
    assert {status for _, status in answered} == {200}
    # It came last of all, while one query ran.
    assert answered.index(("b", 200)) <= 2


def test_tenant_blocked_on_locks_leaves_a_connection_for_another(database, lab):
    """A tenant's own program may hold a lock for any time."""
    rows = [{"identity": "locked", "payload": 1}, {"identity": "other", "payload": 1}]
    chunk = {"submissions": rows}

    async def requests():
        async with within(database, connections=4, duties=False) as (_, http, tokens):

            async def submit():
                path = f"/v1/queues/{lab.q}/chunks"
                return (await http.post(path, json=chunk, headers=tokens["a"])).status_code

            with lab.store.connection.transaction():
                lab.submit("locked", payload=1)  # uncommitted: a submission of it waits
                sent = [asyncio.create_task(submit()) for _ in range(6)]
                await becomes(lambda: waiting_for_locks(database) == 3)
                for _ in range(3):
                    response = await http.get("/v1/batches", headers=tokens["b"])
                    assert response.status_code == 200
                assert waiting_for_locks(database) == 3, "three quarters, and no more"
            return await asyncio.gather(*sent)

    assert asyncio.run(requests()) == [200] * 6


def waiting_for_locks(database):
    return database.value(
        "select count(*) from pg_stat_activity where wait_event_type = 'Lock' "
        "and datname = current_database() and usename = 'service'"
    )


def test_waiting_tenants_alternate_and_unused_permits_pass_on():
    served = []

    async def take(turns, tenant):
        async with turns.permit(tenant):
            served.append(tenant)
            await asyncio.sleep(0)

    async def requests():
        turns = FairSemaphore(1)
        assert turns.try_acquire("a")
        waiting = [asyncio.create_task(take(turns, tenant)) for tenant in "aaab"]
        leaving = asyncio.create_task(take(turns, "c"))
        late = asyncio.create_task(take(turns, "d"))
        await asyncio.sleep(0)
        leaving.cancel()  # while it waits
        await asyncio.sleep(0)
        turns.release("a")
        late.cancel()
        waiting[0].cancel()  # it was granted a permit and has been cancelled
        await asyncio.gather(*waiting, leaving, late, return_exceptions=True)
        assert turns.try_acquire("e"), "all was given back"

    asyncio.run(requests())
    assert served == ["b", "a", "a"]


def test_single_tenant_gets_three_quarters_and_others_share_the_rest():
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


def test_tenant_without_a_share_gets_its_own_problem_detail():
    places = TenantLimits(2, "checks and replays", kind="check-under-way", retry_after=1)
    places.take("a")
    places.take("b")
    with pytest.raises(Problem) as refused:
        places.take("c")
    assert refused.value.detail == "all 2 checks and replays of this process are in use"
    assert refused.value.members["expected"] == "a free one"
    assert refused.value.members["got"] == "none"


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
        "headers": [
            (name.lower().encode(), value.encode())
            for name, value in ({"Host": "here"} | headers).items()
        ],
        "client": ("127.0.0.1", 1),
        "server": ("127.0.0.1", 2),
        "state": {},
    }


class Client:
    """A client that sends its request and disconnects on demand."""

    def __init__(self, body=b""):
        self._messages = [{"type": "http.request", "body": body, "more_body": False}]
        self.gone = asyncio.Event()
        self.answer = []

    async def receive(self):
        if self._messages:
            return self._messages.pop()
        await self.gone.wait()
        return {"type": "http.disconnect"}

    async def send(self, message):
        if self.gone.is_set():
            raise OSError("nobody is there")
        self.answer.append(message)


@pytest.mark.parametrize("version", ["2.3", "2.4"])
@pytest.mark.parametrize("how", ["leaves", "cancelled", "refused"])
def test_stream_that_ends_before_its_first_byte_is_released(database, how, version):
    async def come_and_go():
        async with within(database, duties=False) as (app, _, tokens):
            streams = app.state.service.streams
            client = Client()
            with database.connect("helix_bootstrap", autocommit=False) as connection:
                connection.execute("lock table helix.event in access exclusive mode")
                wrong = {"Last-Event-ID": "x"} if how == "refused" else {}
                scope = scope_of(tokens["a"] | wrong, "/v1/changes", version=version)
                stream = asyncio.create_task(app(scope, client.receive, client.send))
                if how != "refused":
                    await becomes(lambda: streams.taken == 1)
                if how == "leaves":
                    client.gone.set()
                if how == "cancelled":
                    stream.cancel()
                connection.rollback()
            await asyncio.gather(stream, return_exceptions=True)
            assert (streams.taken, app.state.service.requests.taken) == (0, 0)
            return [item["status"] for item in client.answer if "status" in item]

    assert asyncio.run(come_and_go()) == ([400] if how == "refused" else [])


async def broken(_, waiting):
    waiting.close()
    raise ZeroDivisionError


@pytest.mark.parametrize("how", ["leaves", "cancelled", "fault"])
@pytest.mark.usefixtures("small")
def test_wait_that_ends_early_is_released(database, how, monkeypatch):
    async def come_and_go():
        async with within(database, duties=False) as (app, http, tokens):
            waits = app.state.service.waits
            mark = await mark_of_listener(http, tokens["a"])
            client = Client(json.dumps({**WAIT, "mark": mark}).encode())
            if how == "fault":
                monkeypatch.setattr(leases, "unless_disconnected", broken)
            headers = tokens["a"] | {"Content-Type": "application/json"}
            scope = scope_of(headers, "/v1/work/wait", "POST")
            wait = asyncio.create_task(app(scope, client.receive, client.send))
            if how != "fault":
                await becomes(lambda: waits.taken == 1)
            if how == "leaves":
                client.gone.set()
            if how == "cancelled":
                wait.cancel()
            async with asyncio.timeout(WAIT["seconds"] / 2):
                await asyncio.gather(wait, return_exceptions=True)
            return waits.taken, app.state.service.requests.taken

    assert asyncio.run(come_and_go()) == (0, 0)


def test_wait_of_a_disconnected_client_ends(small):
    with small.client() as http, small.client() as leaving:
        mark = http.post("/v1/work/expect", json=WAIT).json()["mark"]
        mark = http.post("/v1/work/wait", json={**WAIT, "mark": mark}).json()["mark"]
        with pytest.raises(httpx.ReadTimeout):
            leaving.post("/v1/work/wait", json={**WAIT, "mark": mark}, timeout=1)
        wait_until(lambda: gauge(http, "helix_http_waits") == 0, seconds=WAIT["seconds"] / 2)
