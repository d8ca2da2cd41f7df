"""A request whose handler fails, hangs or loses its store, and what its client is told."""

from __future__ import annotations

import asyncio
import os
import socket

import pytest

from helixqueue.fence import NOT_APPLIED, UNKNOWN, Applied
from helixqueue.fence.http import Stored
from helixqueue.fence.policy import Ttl
from tests.support.fence_passing import let_time_pass
from tests.support.fence_shop import fences_of, fresh, kind_of, open_shop, run

FOUND = Stored.of(201, [(b"location", b"/refunds/found")], b"found")


@pytest.mark.parametrize(
    ("says", "quiet", "then"),
    [
        (Applied(FOUND, "re_1"), False, "found"),
        (NOT_APPLIED, False, "in-doubt"),  # too early: a frozen server may still be at it
        (NOT_APPLIED, True, "runs"),
        (UNKNOWN, True, "in-doubt"),
        (None, True, "in-doubt"),  # a forgotten `return`
        (Applied({"refund": 1}), True, "in-doubt"),  # not an answer
        (ConnectionError("the bank is away"), True, "in-doubt"),
    ],
)
def test_a_probe_decides_a_doubted_request(database, says, quiet, then):
    async def story():
        asked = []

        async def probe(scope, body):
            asked.append((scope["path"], body))
            if isinstance(says, Exception):
                raise says
            return says

        async with open_shop(database, fresh(), probe=probe) as door:
            door.shop.fails = RuntimeError("the bank hung up")
            await door.post()
            assert asked == []
            door.shop.fails = None
            [row] = await fences_of(door)
            await asyncio.to_thread(let_time_pass, database, row.key, quiet=quiet)
            answer = await door.post()
            assert asked == [("/orders/o1/refunds", b'{"cents":500}')]
            if then == "in-doubt":
                assert kind_of(answer) == "in-doubt"
            elif then == "found":
                assert (answer.status_code, answer.content) == (201, b"found")
                assert answer.headers["location"] == "/refunds/found"
                assert (await fences_of(door))[0].effect == "re_1"
            else:
                assert answer.json()["refund"] == 2
            assert len(door.shop.effects) == (2 if then == "runs" else 1)

    run(story())


async def deadline(door):
    [row] = await fences_of(door)
    return row.deadline


def test_heartbeats_keep_a_slow_request_alive(database):
    async def story():
        async with open_shop(database, fresh(ttl=Ttl(lease_seconds=0.2))) as door:
            door.shop.goes_on.clear()
            slow = asyncio.create_task(door.post())
            await door.shop.going.wait()
            born = await deadline(door)
            while (await deadline(door) - born).total_seconds() < 0.6:
                assert kind_of(await door.post()) == "in-progress"
            door.shop.goes_on.set()
            assert (await slow).status_code == 201

    run(story())


def test_a_handler_that_hangs_past_its_limit_is_in_doubt(database):
    async def story():
        ttl = Ttl(lease_seconds=0.2, limit_seconds=0.3)
        async with open_shop(database, fresh(ttl=ttl)) as door:
            door.shop.goes_on.clear()
            hangs = asyncio.create_task(door.post())
            await door.shop.going.wait()
            while kind_of(told := await door.post()) == "in-progress":
                await asyncio.sleep(0.01)
            assert kind_of(told) == "in-doubt"
            door.shop.goes_on.set()
            # It ended after all, before anybody decided: it is the one who knows.
            assert (await hangs).status_code == 201
            assert (await door.post()).headers["idempotency-replayed"] == "true"
            assert len(door.shop.effects) == 1

    run(story())


def test_a_refusal_tells_nothing_of_the_inside(database):
    async def story():
        async with open_shop(database, fresh(documentation="https://shop/keys")) as door:
            door.shop.goes_on.clear()
            door.shop.fails = RuntimeError("password of the bank")
            first = asyncio.create_task(door.post())
            await door.shop.going.wait()
            busy = await door.post()
            door.shop.goes_on.set()
            await first
            doubted = await door.post()
            assert (kind_of(busy), kind_of(doubted)) == ("in-progress", "in-doubt")
            assert doubted.headers["link"] == '<https://shop/keys>; rel="describedby"'
            for answer in (busy, doubted):
                for inside in (socket.gethostname(), str(os.getpid()), "password", "helix."):
                    assert inside not in answer.json()["detail"]

    run(story())


def swallowing(door, status):
    """An application that loses its store, and does not care what `send` raises."""

    async def app(scope, receive, send):
        await receive()
        door.shop.effects.append(1)
        await door.helix.close()
        try:
            await send({"type": "http.response.start", "status": status, "headers": []})
            await send({"type": "http.response.body", "body": b"refunded"})
        except Exception:  # noqa: BLE001, S110 - that is the point
            pass

    return app


@pytest.mark.parametrize(("status", "then"), [(201, (409, "in-doubt")),
                                              (401, (503, "storage-unavailable"))])  # fmt: skip
def test_an_answer_whose_store_went_away_is_not_sent(database, monkeypatch, status, then):
    monkeypatch.setattr("helixqueue.fence.protocol.SEAL_SECONDS", 0.05)
    monkeypatch.setattr("helixqueue.fence.protocol.CLAIM_SECONDS", 0.05)

    async def story():
        async with open_shop(database, fresh()) as door:
            door.middleware.app = swallowing(door, status)
            answer = await door.post()
            assert (answer.status_code, kind_of(answer)) == then
            assert b"refunded" not in answer.content

    run(story())


def test_those_who_wait_hold_no_connection(database):
    async def story():
        policy = fresh(route={"wait_ms": 60_000})
        async with open_shop(database, policy, settings={"connections": 1}) as door:
            door.shop.goes_on.clear()
            waiting = [asyncio.create_task(door.post()) for _ in range(20)]
            await door.shop.going.wait()
            # One connection, twenty that wait: another request still comes through.
            door.shop.going.clear()
            other = asyncio.create_task(door.post(key="another"))
            await door.shop.going.wait()
            door.shop.goes_on.set()
            answers = await asyncio.gather(other, *waiting)
            assert {answer.status_code for answer in answers} == {201}
            assert len(door.shop.effects) == 2

    run(story())


def test_who_may_ask_no_more_gets_no_repeat(database):
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

        async with open_shop(database, fresh()) as door:
            door.client._transport.app = behind(door.middleware)
            assert (await door.post()).status_code == 201
            allowed.clear()
            refused = await door.post()
            assert (refused.status_code, refused.content) == (403, b"")

    run(story())


def test_a_later_release_of_the_application_repeats_the_first_ones_bytes(database):
    async def story():
        policy = fresh()
        async with open_shop(database, policy) as door:
            first = await door.post()
        async with open_shop(database, policy) as door:
            door.shop.status, door.shop.headers = 200, {"Location": "/v2/refunds/1"}
            again = await door.post()
            assert (again.status_code, again.content) == (201, first.content)
            assert again.headers["location"] == first.headers["location"]
            assert door.shop.effects == []

    run(story())


def test_headers_are_kept_in_order_and_never_those_of_one_exchange():
    given = [(b"Link", b"<a>"), (b"Set-Cookie", b"s=1"), (b"X-Shop", b"1"), (b"Date", b"now"),
             (b"link", b"<b>"), (b"Vary", b"*"), (b"traceparent", b"00"), (b"X-Other", b"2"),
             (b"WWW-Authenticate", b"Basic"), (b"Transfer-Encoding", b"chunked")]  # fmt: skip
    kept = Stored.of(200, given, b"", ["X-Shop", "Set-Cookie", "Date"])
    assert kept.headers == ((b"link", b"<a>"), (b"x-shop", b"1"), (b"link", b"<b>"))
    assert Stored.read(kept.write()) == kept
