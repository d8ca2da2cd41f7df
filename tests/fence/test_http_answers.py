"""What is kept of an answer, and that it is kept before it leaves."""

from __future__ import annotations

import asyncio
import json
from contextlib import suppress

import pytest
from starlette.applications import Starlette
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route as StarletteRoute

from helixqueue import AsyncHelixQueue
from helixqueue.engine import fences as calls
from helixqueue.engine.fences import FenceResult, Times
from tests.support.fence_passing import let_time_pass
from tests.support.fence_shop import KEY, fences_of, fresh, kind_of, open_shop, run


@pytest.mark.parametrize("status", [200, 204, 302, 400, 404, 409, 422])
def test_a_business_answer_is_sealed_whatever_its_status(database, status):
    """A handler that acted and then answered 4xx must not act again."""

    async def story():
        async with open_shop(database, fresh()) as door:
            door.shop.status = status
            answers = [await door.post() for _ in range(3)]
            assert {answer.status_code for answer in answers} == {status}
            assert len(door.shop.effects) == 1

    run(story())


@pytest.mark.parametrize("status", [401, 403, 405, 413, 415, 429])
def test_a_refusal_before_the_effect_uses_no_key_up(database, status):
    async def story():
        async with open_shop(database, fresh()) as door:
            door.shop.status = status
            assert (await door.post()).status_code == status
            door.shop.status = 201
            assert (await door.post()).status_code == 201

    run(story())


def test_an_application_that_says_nothing_happened_is_asked_again(database):
    async def story():
        async with open_shop(database, fresh()) as door:
            door.shop.status, door.shop.headers = 422, {"Idempotency-Effect": "none"}
            refused = await door.post()
            assert refused.status_code == 422
            assert "idempotency-effect" not in refused.headers
            door.shop.status, door.shop.headers = 201, {"Idempotency-Effect": "re_77"}
            assert (await door.post()).status_code == 201
            [row] = await fences_of(door)
            assert row.effect == "re_77"

    run(story())


def test_an_answer_past_its_time_is_told_by_its_receipt_and_not_run_again(database):
    async def story():
        async with open_shop(database, fresh()) as door:
            first = await door.post()
            [row] = await fences_of(door)
            await asyncio.to_thread(let_time_pass, database, row.key, answer=True)
            gone = await door.post()
            assert (gone.status_code, kind_of(gone)) == (409, "result-expired")
            assert gone.json()["receipt"] == first.headers["idempotency-receipt"]
            assert len(door.shop.effects) == 1

    run(story())


def streaming(kind):
    """An application whose answer is too large, or a stream."""
    ran = []

    async def pieces():
        for _ in range(100):
            yield b"data: " + b"x" * 1000 + b"\n\n"

    async def answer(request):
        ran.append(1)
        headers = {"Location": "/refunds/1"}
        if kind == "large":
            return Response(b"x" * 100_000, 201, headers)
        media = "text/event-stream" if kind == "events" else "text/plain"
        return StreamingResponse(pieces(), 201, headers, media_type=media)

    route = StarletteRoute("/orders/{order}/refunds", answer, methods=["POST"])
    return Starlette(routes=[route]), ran


@pytest.mark.parametrize("kind", ["large", "stream", "events"])
def test_large_and_streamed_answers_are_sealed_and_never_run_again(database, kind):
    async def story():
        app, ran = streaming(kind)
        async with open_shop(database, fresh(route={"max_answer_bytes": 5000}), app=app) as door:
            first = await door.post()
            assert len(first.content) > 5000
            assert first.headers["idempotency-stored"] == "partial"
            again = await door.post()
            assert (again.status_code, again.headers["location"]) == (201, "/refunds/1")
            assert again.headers["idempotency-stored"] == "partial"
            assert again.json() == {
                "receipt": first.headers["idempotency-receipt"],
                "body": "omitted",
            }
            assert ran == [1]

    run(story())


def test_a_streamed_answer_within_its_bound_is_kept_whole(database):
    async def story():
        app, ran = streaming("stream")
        async with open_shop(database, fresh(), app=app) as door:
            first, again = await door.post(), await door.post()
            assert first.content == again.content
            assert len(first.content) > 100_000
            assert ran == [1]

    run(story())


def test_nothing_leaves_before_it_is_sealed(database):
    """Seen from the client's side: at the first byte the fence is SEALED."""

    async def story():
        states = []
        async with open_shop(database, fresh()) as door:
            body = json.dumps({"cents": 5}).encode()
            scope = {
                "type": "http", "method": "POST", "path": "/orders/o1/refunds",
                "headers": [(b"idempotency-key", KEY.encode()),
                            (b"content-type", b"application/json")],
                "query_string": b"",
            }  # fmt: skip

            async def receive():
                return {"type": "http.request", "body": body, "more_body": False}

            async def send(message):
                states.append((message["type"], (await fences_of(door))[0].state))

            await door.middleware(scope, receive, send)
        assert states == [("http.response.start", "SEALED"), ("http.response.body", "SEALED")]

    run(story())


def test_a_redactor_that_fails_keeps_the_seal_without_the_body(database):
    async def story():
        def redact(status, headers, body):
            raise ValueError("no idea what this is")

        async with open_shop(database, fresh(), redact=redact) as door:
            assert (await door.post()).json()["refund"] == 1
            assert (await door.post()).json()["body"] == "omitted"
            assert len(door.shop.effects) == 1
        policy = fresh()
        async with open_shop(database, policy, redact=lambda *_: b'"masked"') as door:
            assert (await door.post()).json()["refund"] == 1
            assert (await door.post()).json() == "masked"

    run(story())


def test_an_answer_that_cannot_be_read_is_a_doubt_and_not_run_again(database):
    """Other releases and other hands write too; what is not understood is not thrown away."""

    async def story():
        async with open_shop(database, fresh(), "bare") as door:
            door.shop.fails = RuntimeError("the bank hung up")
            await door.post()
            [row] = await fences_of(door)
            async with AsyncHelixQueue(database.dsn("operator"), tenant="a") as operator:
                answer = FenceResult("json", b'"not an HTTP answer"')
                await operator.fences.run(
                    calls.resolve(
                        row.key, row.version, Times(), actor="ann", reason="x", answer=answer
                    )
                )
            refused = await door.post()
            assert (refused.status_code, kind_of(refused)) == (409, "in-doubt")
            assert refused.json()["receipt"].startswith("r1:")
            assert len(door.shop.effects) == 1

    run(story())


def test_a_zombies_answer_is_not_sent(database):
    """Its lease ran out, somebody else was given the fence, and then it came back."""

    async def story():
        async with open_shop(database, fresh(route={"replayable": True})) as door:
            door.shop.goes_on.clear()
            zombie = asyncio.create_task(door.post())
            await door.shop.going.wait()
            [row] = await fences_of(door)
            await asyncio.to_thread(let_time_pass, database, row.key, deadline=True)
            door.shop.going.clear()
            owner = asyncio.create_task(door.post())
            await door.shop.going.wait()
            door.shop.goes_on.set()
            answers = await asyncio.gather(zombie, owner)
            assert sorted(answer.status_code for answer in answers) == [201, 409]
            [sent] = [answer for answer in answers if answer.status_code == 201]
            assert (await door.post()).content == sent.content

    run(story())


@pytest.mark.parametrize("kept", [b"x" * 5001, "not bytes", None])
def test_a_redactor_that_gives_too_much_or_no_bytes_costs_the_body_only(database, kept):
    async def story():
        policy = fresh(route={"max_answer_bytes": 5000})
        async with open_shop(database, policy, redact=lambda *_: kept) as door:
            assert (await door.post()).json()["refund"] == 1
            assert (await door.post()).json()["body"] == "omitted"
            assert len(door.shop.effects) == 1

    run(story())


def test_an_answer_that_cannot_be_sealed_is_a_doubt_and_never_called_undone(database):
    """The application swallows what `send` raises, and its headers are none."""

    async def app(scope, receive, send):
        with suppress(Exception):
            await send({"type": "http.response.start", "status": 201, "headers": [("a", "b")]})
            await send({"type": "http.response.body", "body": b"done"})

    async def story():
        async with open_shop(database, fresh(), app=app) as door:
            await door.post()
            assert (await fences_of(door))[0].state == "IN_DOUBT"
            assert kind_of(await door.post()) == "in-doubt"

    run(story())


def test_an_effects_id_that_is_too_long_does_not_cost_the_seal(database):
    async def story():
        async with open_shop(database, fresh()) as door:
            door.shop.headers = {"Idempotency-Effect": "x" * 2000}
            assert (await door.post()).status_code == 201
            assert (await door.post()).headers["idempotency-replayed"] == "true"

    run(story())
