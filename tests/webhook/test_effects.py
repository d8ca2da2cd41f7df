"""Effects in Python: once per event, in one transaction with dedupe row and order mark."""

from __future__ import annotations

import asyncio
import itertools
import json
import subprocess
import sys
import threading
from contextlib import asynccontextmanager

import httpx
import psycopg
import pytest
from starlette.applications import Starlette
from starlette.routing import Mount

from helixqueue import AsyncHelixQueue, HelixQueue
from helixqueue.errors import NotPermitted, Refused
from tests.support.replicas import ROOT, replica
from tests.support.webhooks import SECRETS, event_body, signed_headers

_numbers = itertools.count(1)
ORDERED = {"entity": "/sample", "version": "/v", "order": "version"}


@pytest.fixture
def table(database):
    """A table of the application."""
    name = f"effects_{next(_numbers)}"
    with database.connect("helix_bootstrap") as connection:
        connection.execute(f"create table public.{name} (event text)".encode())
        connection.execute(f"grant all on public.{name} to app_a".encode())
    return name


def rows_of(database, table):
    return [row for (row,) in database.rows(f"select event from public.{table} order by 1")]  # noqa: S608


@asynccontextmanager
async def provider_of(helix):
    """A client of an application that mounts the receiver."""
    app = Starlette(routes=[Mount("/hooks", helix.webhook_app())])
    transport = httpx.ASGITransport(app, raise_app_exceptions=False)
    async with httpx.AsyncClient(transport=transport, base_url="http://shop") as client:
        yield client


def send(client, source, body, **signed):
    headers = signed_headers(source.scheme, body, **signed)
    return client.post(f"/hooks/{source.name}", content=body, headers=headers)


def test_effect_of_an_async_application_happens_once(database, source_of, table):
    source = source_of("stripe", mapping=ORDERED | {"payload": "/data", "queue": None})
    insert = f"insert into public.{table} values (%s)"  # noqa: S608

    async def story():
        async with AsyncHelixQueue(database.dsn("app_a"), tenant="a") as helix:

            @helix.webhook(source.name, "sample.arrived")
            async def note(event, tx):
                await tx.execute(insert, (event.id,))
                return f"row/{event.payload['n']}"

            async with provider_of(helix) as client:
                first = await send(
                    client, source, source.event("e1", sample="S", v=2, data={"n": 1})
                )
                assert first.json() == {"decision": "new", "effect": "row/1"}
                again = await send(
                    client, source, source.event("e1", sample="S", v=2, data={"n": 1})
                )
                assert again.headers["helix-decision"] == "duplicate"
                assert again.json() == first.json()
                older = await send(
                    client, source, source.event("e0", sample="S", v=1, data={"n": 0})
                )
                assert older.headers["helix-decision"] == "superseded"
                other = await send(
                    client, source, source.event("e1", sample="S", v=2, data={"n": 9})
                )
                assert other.status_code == 409
                assert [op["path"] for op in other.json()["diff"]] == ["/data/n"]
                forged = await client.post(f"/hooks/{source.name}", content=b"{}", headers={})
                unknown = await client.post("/hooks/unknown", content=b"{}", headers={})
                assert forged.status_code == unknown.status_code == 401
                assert forged.headers["www-authenticate"] == "Signature"
                assert forged.json() == unknown.json()

    asyncio.run(story())
    assert rows_of(database, table) == ["e1"]


def test_fifty_deliveries_at_once_have_one_effect_in_a_threaded_application(
    database, source_of, table
):
    source = source_of("stripe", mapping={"queue": None})
    body = source.event("e50", sample="S")
    inside, leave = threading.Event(), threading.Event()
    insert = f"insert into public.{table} values (%s)"  # noqa: S608

    async def story():
        with HelixQueue(database.dsn("app_a"), tenant="a") as helix:

            @helix.webhook(source.name, "sample.arrived")
            def note(event, tx):
                tx.execute(insert, (event.id,))
                inside.set()
                leave.wait(30)

            async with provider_of(helix) as client:
                first = asyncio.create_task(send(client, source, body))
                await asyncio.to_thread(inside.wait, 30)
                others = await asyncio.gather(*(send(client, source, body) for _ in range(49)))
                assert {answer.status_code for answer in others} == {503}
                assert {answer.headers["retry-after"] for answer in others} == {"1"}
                leave.set()
                assert (await first).headers["helix-decision"] == "new"
                last = await send(client, source, body)
                assert last.headers["helix-decision"] == "duplicate"

    asyncio.run(story())
    assert rows_of(database, table) == ["e50"]


def test_failed_effect_is_rolled_back_and_the_event_processed_when_it_is_resent(
    database, source_of, table
):
    source = source_of("stripe", mapping={"queue": None})
    body = source.event("e1", sample="S")
    failures = iter([RuntimeError("the mail server is away"), None])
    insert = f"insert into public.{table} values (%s)"  # noqa: S608

    async def story():
        with HelixQueue(database.dsn("app_a"), tenant="a") as helix:

            @helix.webhook(source.name, "sample.arrived")
            def note(event, tx):
                tx.execute(insert, (event.id,))
                failure = next(failures)
                if failure is not None:
                    raise failure

            async with provider_of(helix) as client:
                assert (await send(client, source, body)).status_code == 500
                assert rows_of(database, table) == []
                [row] = source.deliveries()
                assert (row["decision"], row["detail"]) == ("failed", "RuntimeError")
                first_at = row["first_at"]
                again = await send(client, source, body)
                assert again.headers["helix-decision"] == "new"
                [row] = source.deliveries()
                assert row["first_at"] == first_at

    asyncio.run(story())
    assert rows_of(database, table) == ["e1"]


def received_by_process(database, source, table, delivery, *how, failpoint=None, tmp_path=None):
    environment = {} if failpoint is None else {
        "HELIX_FAILPOINTS": f"{failpoint}=kill", "HELIX_FAILPOINT_FILE": str(tmp_path / "point"),
    }  # fmt: skip
    return subprocess.run(
        [sys.executable, "-m", "tests.support.webhook_process", database.dsn("app_a"), source.name,
         table, *how],
        input=json.dumps(delivery), text=True, capture_output=True, cwd=ROOT, check=False,
        env={"PATH": "", "PYTHONPATH": str(ROOT / "src"), **environment},
    )  # fmt: skip


def test_application_killed_before_its_commit_leaves_no_effect_and_the_resent_event_has_one(
    database, source_of, table
):
    source = source_of("stripe", mapping={"queue": None})
    body = source.event("e1", sample="S")
    delivery = {"body": body.decode(), "headers": signed_headers("stripe", body)}
    killed = received_by_process(database, source, table, delivery, "inside")
    assert killed.returncode == -9, killed.stderr
    assert rows_of(database, table) == []
    resent = received_by_process(database, source, table, delivery)
    assert resent.stdout == "new row/e1\n", resent.stderr
    assert rows_of(database, table) == ["e1"]


def test_application_killed_between_effect_and_answer_answers_the_resent_event_as_a_duplicate(
    database, source_of, table, tmp_path
):
    source = source_of("stripe", mapping={"queue": None})
    body = source.event("e1", sample="S")
    delivery = {"body": body.decode(), "headers": signed_headers("stripe", body)}
    killed = received_by_process(
        database, source, table, delivery, failpoint="webhook.committed", tmp_path=tmp_path
    )
    assert killed.returncode == -9, killed.stderr
    assert (tmp_path / "point.fired").exists()
    resent = received_by_process(database, source, table, delivery)
    assert resent.stdout == "duplicate row/e1\n", resent.stderr
    assert rows_of(database, table) == ["e1"]


def test_service_killed_between_effect_and_answer_has_one_batch_after_the_event_is_resent(
    database, source_of, tmp_path
):
    source = source_of("stripe")
    body = source.event("e1", sample="S-1")
    under = (
        "env", "HELIX_FAILPOINTS=webhook.committed=kill",
        f"HELIX_FAILPOINT_FILE={tmp_path / 'point'}",
    )  # fmt: skip
    with replica(database.dsn("service"), under=under) as (process, url):
        headers = signed_headers("stripe", body)
        with pytest.raises(httpx.TransportError):
            httpx.post(f"{url}/v1/webhooks/a/{source.name}", content=body, headers=headers)
        assert process.wait(30) == -9
    assert (tmp_path / "point.fired").exists()
    [batch] = source.batches()
    resent = source.send(body)
    assert (resent.headers["helix-decision"], resent.json()["effect"]) == (
        "duplicate", batch["batch_id"],
    )  # fmt: skip
    assert len(source.batches()) == 1


def test_service_leaves_events_of_a_python_effect_to_the_provider(source_of):
    source = source_of("stripe", mapping={"queue": None})
    answer = source.send(source.event(sample="S"))
    assert answer.status_code == 503
    assert source.deliveries() == []


def test_login_without_the_role_reads_no_secret(database, source_of):
    source = source_of("stripe")
    with database.connect("helix_bootstrap") as connection:
        connection.execute("create role bystander login")
        connection.execute(
            "grant helix_submit, helix_work, helix_read, helix_payloads, helix_operate, "
            "helix_admin, helix_delegate, helix_intake to bystander"
        )
        connection.execute("select helix.bind_v1('bystander', 'a')")
    body = event_body("stripe", sample="S")
    headers = [(b"stripe-signature", signed_headers("stripe", body)["stripe-signature"].encode())]
    try:
        for role in ("bystander", "operator"):
            with (
                HelixQueue(database.dsn(role), tenant="a") as helix,
                pytest.raises(NotPermitted),
            ):
                helix.webhooks.receive(source.name, headers, body)
            with (
                database.connect(role) as connection,
                pytest.raises(psycopg.errors.InsufficientPrivilege),
            ):
                connection.execute("select secret from helix.webhook_secret")
    finally:
        with database.connect("helix_bootstrap") as connection:
            connection.execute("select helix.unbind_v1('bystander', 'a')")
            connection.execute("drop role bystander")


def test_no_surface_shows_a_secret(source_of):
    source = source_of("stripe")
    secret = SECRETS["stripe"]
    for path in ("", f"/{source.name}", f"/{source.name}/deliveries"):
        assert secret not in source.admin.get(f"/v1/webhook-sources{path}").text
    assert secret not in source.admin.get("/v1/activity").text


def test_second_effect_of_an_event_type_is_refused(database):
    def paid(event, tx):
        tx.execute("select %s", (event.id,))

    def paid_too(event, tx):
        tx.execute("select %s", (event.id,))

    with HelixQueue(database.dsn("app_a"), tenant="a") as helix:
        helix.webhook("stripe", "invoice.paid")(paid)
        with pytest.raises(Refused, match="expected one effect"):
            helix.webhook("stripe", "invoice.paid")(paid_too)
