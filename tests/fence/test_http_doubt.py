"""A request whose handler or database fails or hangs, and the response to its client."""

from __future__ import annotations

import asyncio
import logging
import os
import socket
from dataclasses import replace

import pytest

from helixqueue import AsyncHelixQueue
from helixqueue.engine import fences as calls
from helixqueue.engine.fences import FenceResult, Times
from helixqueue.fence import NOT_APPLIED, UNKNOWN, Applied
from helixqueue.fence.http import StoredResponse
from helixqueue.fence.operations import resolved_result
from helixqueue.fence.policy import Ttl
from tests.support.fence_shop import KEY, KINDS, fences_of, fresh, kind_of, open_shop, run
from tests.support.fence_time import expire

FOUND = StoredResponse.of(201, [(b"location", b"/refunds/found")], b"found")


@pytest.mark.parametrize(
    ("says", "quiet", "then"),
    [
        (Applied(FOUND, "re_1"), False, "found"),
        (NOT_APPLIED, False, "in-doubt"),  # too early: a frozen server may still act
        (NOT_APPLIED, True, "runs"),
        (UNKNOWN, True, "in-doubt"),
        (None, True, "in-doubt"),  # a forgotten `return`
        (Applied({"refund": 1}), True, "in-doubt"),  # not an answer
        (ConnectionError("the bank is away"), True, "in-doubt"),
    ],
)
def test_probe_decides_a_request_in_doubt(database, says, quiet, then):
    async def story():
        ids = []

        async def probe(scope, body):
            ids.append((scope["path"], body))
            if isinstance(says, Exception):
                raise says
            return says

        async with open_shop(database, fresh(), probe=probe) as fenced:
            fenced.shop.fails = RuntimeError("the bank hung up")
            await fenced.post()
            assert ids == []
            fenced.shop.fails = None
            [row] = await fences_of(fenced)
            await asyncio.to_thread(expire, database, row.key, quiet=quiet)
            answer = await fenced.post()
            assert ids == [("/orders/o1/refunds", b'{"cents":500}')]
            if then == "in-doubt":
                assert kind_of(answer) == "in-doubt"
            elif then == "found":
                assert (answer.status_code, answer.content) == (201, b"found")
                assert answer.headers["location"] == "/refunds/found"
                assert (await fences_of(fenced))[0].effect == "re_1"
            else:
                assert answer.json()["refund"] == 2
            assert len(fenced.shop.effects) == (2 if then == "runs" else 1)

    run(story())


async def deadline(fenced):
    [row] = await fences_of(fenced)
    return row.deadline


def test_heartbeats_keep_the_lease_of_a_slow_request(database):
    async def story():
        async with open_shop(database, fresh(ttl=Ttl(lease_seconds=0.2))) as fenced:
            fenced.shop.goes_on.clear()
            slow = asyncio.create_task(fenced.post())
            await fenced.shop.going.wait()
            born = await deadline(fenced)
            while (await deadline(fenced) - born).total_seconds() < 0.6:
                assert kind_of(await fenced.post()) == "in-progress"
            fenced.shop.goes_on.set()
            assert (await slow).status_code == 201

    run(story())


def test_handler_past_its_limit_is_in_doubt(database):
    async def story():
        ttl = Ttl(lease_seconds=0.2, limit_seconds=0.3)
        async with open_shop(database, fresh(ttl=ttl)) as fenced:
            fenced.shop.goes_on.clear()
            hangs = asyncio.create_task(fenced.post())
            await fenced.shop.going.wait()
            while kind_of(answer := await fenced.post()) == "in-progress":
                await asyncio.sleep(0.01)
            assert kind_of(answer) == "in-doubt"
            fenced.shop.goes_on.set()
            # It ended after all, before anybody decided: it is the one who knows.
            assert (await hangs).status_code == 201
            assert (await fenced.post()).headers["idempotency-replayed"] == "true"
            assert len(fenced.shop.effects) == 1

    run(story())


def test_problem_discloses_no_internals(database):
    async def story():
        async with open_shop(database, fresh(documentation="https://shop/keys")) as fenced:
            fenced.shop.goes_on.clear()
            fenced.shop.fails = RuntimeError("password of the bank")
            first = asyncio.create_task(fenced.post())
            await fenced.shop.going.wait()
            busy = await fenced.post()
            fenced.shop.goes_on.set()
            await first
            doubted = await fenced.post()
            assert (kind_of(busy), kind_of(doubted)) == ("in-progress", "in-doubt")
            assert doubted.headers["link"] == '<https://shop/keys>; rel="describedby"'
            for answer in (busy, doubted):
                for inside in (socket.gethostname(), str(os.getpid()), "password", "helix."):
                    assert inside not in answer.json()["detail"]

    run(story())


def swallowing(fenced, status):
    """An application that loses its store, and does not care what `send` raises."""

    async def app(scope, receive, send):
        await receive()
        fenced.shop.effects.append(1)
        await fenced.helix.close()
        try:
            await send({"type": "http.response.start", "status": status, "headers": []})
            await send({"type": "http.response.body", "body": b"refunded"})
        except Exception:  # noqa: BLE001, S110 - that is the point
            pass

    return app


@pytest.mark.parametrize(("status", "then"), [(201, (409, "in-doubt")),
                                              (401, (503, "storage-unavailable"))])  # fmt: skip
def test_response_is_not_sent_when_its_seal_fails(database, monkeypatch, status, then):
    monkeypatch.setattr("helixqueue.fence.protocol.SEAL_SECONDS", 0.05)
    monkeypatch.setattr("helixqueue.fence.protocol.CLAIM_SECONDS", 0.05)

    async def story():
        async with open_shop(database, fresh()) as fenced:
            app = swallowing(fenced, status)
            fenced.middleware.fenced = replace(fenced.middleware.fenced, app=app)
            answer = await fenced.post()
            assert (answer.status_code, kind_of(answer)) == then
            assert b"refunded" not in answer.content

    run(story())


def test_waiting_requests_hold_no_connection(database):
    async def story():
        policy = fresh(route={"wait_ms": 60_000})
        async with open_shop(database, policy, settings={"connections": 1}) as fenced:
            fenced.shop.goes_on.clear()
            waiting = [asyncio.create_task(fenced.post()) for _ in range(20)]
            await fenced.shop.going.wait()
            # One connection, twenty that wait: another request still comes through.
            fenced.shop.going.clear()
            other = asyncio.create_task(fenced.post(key="another"))
            await fenced.shop.going.wait()
            fenced.shop.goes_on.set()
            answers = await asyncio.gather(other, *waiting)
            assert {answer.status_code for answer in answers} == {201}
            assert len(fenced.shop.effects) == 2

    run(story())


def test_repeat_requires_authorisation(database):
    """The middleware stands behind authentication, which judges every request anew."""

    async def story():
        allowed = {"ann"}

        def behind(app):
            async def authenticated(scope, receive, send):
                if allowed:
                    await app(scope, receive, send)
                    return
                await send({"type": "http.response.start", "status": 403, "headers": []})
                await send({"type": "http.response.body", "body": b""})

            return authenticated

        async with open_shop(database, fresh()) as fenced:
            fenced.client._transport.app = behind(fenced.middleware)
            assert (await fenced.post()).status_code == 201
            allowed.clear()
            refused = await fenced.post()
            assert (refused.status_code, refused.content) == (403, b"")

    run(story())


def test_new_application_release_repeats_the_stored_bytes(database):
    async def story():
        policy = fresh()
        async with open_shop(database, policy) as fenced:
            first = await fenced.post()
        async with open_shop(database, policy) as fenced:
            fenced.shop.status, fenced.shop.headers = 200, {"Location": "/v2/refunds/1"}
            again = await fenced.post()
            assert (again.status_code, again.content) == (201, first.content)
            assert again.headers["location"] == first.headers["location"]
            assert fenced.shop.effects == []

    run(story())


def test_headers_are_kept_in_order_without_those_of_one_exchange():
    found = [(b"Link", b"<a>"), (b"Set-Cookie", b"s=1"), (b"X-Shop", b"1"), (b"Date", b"now"),
             (b"link", b"<b>"), (b"Vary", b"*"), (b"traceparent", b"00"), (b"X-Other", b"2"),
             (b"WWW-Authenticate", b"Basic"), (b"Transfer-Encoding", b"chunked")]  # fmt: skip
    kept = StoredResponse.of(200, found, b"", ["X-Shop", "Set-Cookie", "Date"])
    assert kept.headers == ((b"link", b"<a>"), (b"x-shop", b"1"), (b"link", b"<b>"))
    assert StoredResponse.read(kept.write()) == kept


def test_corrected_request_after_a_refusal_is_executed(database):
    """The body was refused before any effect; the client corrects it and keeps its key."""

    async def story():
        async with open_shop(database, fresh()) as fenced:
            fenced.shop.status, fenced.shop.headers = 422, {"Idempotency-Effect": "none"}
            assert (await fenced.post({"cents": -1})).status_code == 422
            fenced.shop.status, fenced.shop.headers = 201, {}
            corrected = await fenced.post({"cents": 500})
            assert corrected.status_code == 201
            assert (await fenced.post({"cents": 500})).content == corrected.content
            assert kind_of(await fenced.post({"cents": -1})) == "key-reused"
            assert len(fenced.shop.effects) == 2

    run(story())


@pytest.mark.parametrize(
    ("options", "status", "body"),
    [
        ({"result": '{"refund":9}'}, 200, b'{"refund":9}'),
        ({"result": '{"refund":9}', "http_status": 201}, 201, b'{"refund":9}'),
        ({"http_status": 201}, 201, None),
        ({}, 409, None),
    ],
)
def test_doubt_resolved_without_a_status_does_not_break_its_key(database, options, status, body):
    async def story():
        async with open_shop(database, fresh()) as fenced:
            fenced.shop.fails = RuntimeError("the bank hung up")
            await fenced.post()
            [row] = await fences_of(fenced)
            values = {"effect": "re_9", "result": None, "http_status": None} | options
            await resolve(database, row, resolved_result(row.name, **values))
            for _ in range(2):
                repeat = await fenced.post()
                assert repeat.status_code == status
                if body is not None:
                    assert repeat.content == body
            if status == 409:
                assert kind_of(repeat) == "result-expired"
            assert len(fenced.shop.effects) == 1

    run(story())


def test_json_result_sealed_for_a_request_is_repeated_as_json(database):
    """A resolution through SQL names no status and no HTTP form."""

    async def story():
        async with open_shop(database, fresh()) as fenced:
            fenced.shop.fails = RuntimeError("the bank hung up")
            await fenced.post()
            [row] = await fences_of(fenced)
            await resolve(database, row, FenceResult("json", b"[1]"))
            repeat = await fenced.post()
            assert (repeat.status_code, repeat.json()) == (200, [1])

    run(story())


async def resolve(database, row, result):
    async with AsyncHelixQueue(database.dsn("operator"), tenant="a") as operator:
        call = calls.resolve(row.key, row.version, Times(), actor="ann", reason="x", result=result)
        assert (await operator.fences.run(call)).decision == "sealed"


@pytest.mark.parametrize("kind", KINDS)
def test_exception_that_led_to_a_doubt_is_kept(database, kind):
    """Frameworks turn it into a 500, which alone does not help the operator."""

    async def story():
        async with open_shop(database, fresh(), kind) as fenced:
            fenced.shop.fails = RuntimeError("the bank hung up")
            await fenced.post()
            [row] = await fences_of(fenced)
            assert row.detail.endswith("RuntimeError: the bank hung up")

    run(story())


def test_status_without_an_exception_is_the_cause_of_a_doubt(database):
    async def story():
        async with open_shop(database, fresh()) as fenced:
            fenced.shop.status = 502
            await fenced.post()
            [row] = await fences_of(fenced)
            assert row.detail == "answered 502"

    run(story())


def test_decisions_name_the_effect_of_the_winning_request(database, caplog):
    fields = ("key", "decision", "effect_id", "source_type", "source_id")

    async def story():
        async with open_shop(database, fresh(log_fields=fields)) as fenced:
            fenced.shop.headers = {"Idempotency-Effect": "re_77"}
            with caplog.at_level(logging.INFO, "helixqueue.fence.http"):
                await fenced.post()
                await fenced.post()
                await fenced.post({"cents": 1})
        expected = {"key": KEY, "effect_id": "re_77", "source_type": "api", "source_id": KEY}
        lines = [record.event for record in caplog.records]
        assert [line["decision"] for line in lines] == ["new", "duplicate", "conflict"]
        assert all(line.items() >= expected.items() for line in lines)

    run(story())
