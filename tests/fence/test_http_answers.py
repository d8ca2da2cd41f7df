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
from tests.support.fence_shop import KEY, fences_of, fresh, kind_of, open_shop, run
from tests.support.fence_time import expire


@pytest.mark.parametrize("status", [200, 204, 302, 400, 404, 409, 422])
def test_business_response_is_sealed_with_any_status(database, status):
    """A handler that acted and then answered 4xx must not act again."""

    async def story():
        async with open_shop(database, fresh()) as fenced:
            fenced.shop.status = status
            answers = [await fenced.post() for _ in range(3)]
            assert {answer.status_code for answer in answers} == {status}
            assert len(fenced.shop.effects) == 1

    run(story())


@pytest.mark.parametrize("status", [401, 403, 405, 413, 415, 429])
def test_refusal_before_the_effect_keeps_the_key_free(database, status):
    async def story():
        async with open_shop(database, fresh()) as fenced:
            fenced.shop.status = status
            assert (await fenced.post()).status_code == status
            fenced.shop.status = 201
            assert (await fenced.post()).status_code == 201

    run(story())


def test_effect_header_none_keeps_the_key_free(database):
    async def story():
        async with open_shop(database, fresh()) as fenced:
            fenced.shop.status, fenced.shop.headers = 422, {"Idempotency-Effect": "none"}
            refused = await fenced.post()
            assert refused.status_code == 422
            assert "idempotency-effect" not in refused.headers
            fenced.shop.status, fenced.shop.headers = 201, {"Idempotency-Effect": "re_77"}
            assert (await fenced.post()).status_code == 201
            [row] = await fences_of(fenced)
            assert row.effect == "re_77"

    run(story())


def test_expired_response_returns_the_receipt_and_is_not_executed_again(database):
    async def story():
        async with open_shop(database, fresh()) as fenced:
            first = await fenced.post()
            [row] = await fences_of(fenced)
            await asyncio.to_thread(expire, database, row.key, answer=True)
            gone = await fenced.post()
            assert (gone.status_code, kind_of(gone)) == (409, "result-expired")
            assert gone.json()["receipt"] == first.headers["idempotency-receipt"]
            assert len(fenced.shop.effects) == 1

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
def test_large_and_streamed_responses_are_sealed_and_never_executed_again(database, kind):
    async def story():
        app, ran = streaming(kind)
        async with open_shop(database, fresh(route={"max_answer_bytes": 5000}), app=app) as fenced:
            first = await fenced.post()
            assert len(first.content) > 5000
            assert first.headers["idempotency-stored"] == "partial"
            again = await fenced.post()
            assert (again.status_code, again.headers["location"]) == (201, "/refunds/1")
            assert again.headers["idempotency-stored"] == "partial"
            assert again.json() == {
                "receipt": first.headers["idempotency-receipt"],
                "body": "omitted",
            }
            assert ran == [1]

    run(story())


def test_streamed_response_within_its_limit_is_kept(database):
    async def story():
        app, ran = streaming("stream")
        async with open_shop(database, fresh(), app=app) as fenced:
            first, again = await fenced.post(), await fenced.post()
            assert first.content == again.content
            assert len(first.content) > 100_000
            assert ran == [1]

    run(story())


def test_no_byte_is_sent_before_the_seal(database):
    """Seen from the client's side: at the first byte the fence is SEALED."""

    async def story():
        states = []
        async with open_shop(database, fresh()) as fenced:
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
                states.append((message["type"], (await fences_of(fenced))[0].state))

            await fenced.middleware(scope, receive, send)
        assert states == [("http.response.start", "SEALED"), ("http.response.body", "SEALED")]

    run(story())


def test_failing_redactor_seals_without_the_body(database):
    async def story():
        def redact(status, headers, body):
            raise ValueError("no idea what this is")

        async with open_shop(database, fresh(), redact=redact) as fenced:
            assert (await fenced.post()).json()["refund"] == 1
            assert (await fenced.post()).json()["body"] == "omitted"
            assert len(fenced.shop.effects) == 1
        policy = fresh()
        async with open_shop(database, policy, redact=lambda *_: b'"masked"') as fenced:
            assert (await fenced.post()).json()["refund"] == 1
            assert (await fenced.post()).json() == "masked"

    run(story())


def test_unreadable_stored_response_is_in_doubt_and_not_executed_again(database):
    """A later release may write another form; an unreadable response stays as it is."""

    async def story():
        async with open_shop(database, fresh(), "bare") as fenced:
            fenced.shop.fails = RuntimeError("the bank hung up")
            await fenced.post()
            [row] = await fences_of(fenced)
            async with AsyncHelixQueue(database.dsn("operator"), tenant="a") as operator:
                answer = FenceResult("of a later release", b"not a stored response")
                await operator.fences.run(
                    calls.resolve(
                        row.key, row.version, Times(), actor="ann", reason="x", result=answer
                    )
                )
            refused = await fenced.post()
            assert (refused.status_code, kind_of(refused)) == (409, "in-doubt")
            assert refused.json()["receipt"].startswith("r2:")
            assert len(fenced.shop.effects) == 1

    run(story())


def test_response_of_a_replaced_holder_is_not_sent(database):
    """Its lease ran out, somebody else was given the fence, and then it came back."""

    async def story():
        async with open_shop(database, fresh(route={"replayable": True})) as fenced:
            fenced.shop.goes_on.clear()
            zombie = asyncio.create_task(fenced.post())
            await fenced.shop.going.wait()
            [row] = await fences_of(fenced)
            await asyncio.to_thread(expire, database, row.key, deadline=True)
            fenced.shop.going.clear()
            owner = asyncio.create_task(fenced.post())
            await fenced.shop.going.wait()
            fenced.shop.goes_on.set()
            answers = await asyncio.gather(zombie, owner)
            assert sorted(answer.status_code for answer in answers) == [201, 409]
            [sent] = [answer for answer in answers if answer.status_code == 201]
            assert (await fenced.post()).content == sent.content

    run(story())


@pytest.mark.parametrize("kept", [b"x" * 5001, "not bytes", None])
def test_oversized_or_invalid_redaction_seals_without_the_body(database, kept):
    async def story():
        policy = fresh(route={"max_answer_bytes": 5000})
        async with open_shop(database, policy, redact=lambda *_: kept) as fenced:
            assert (await fenced.post()).json()["refund"] == 1
            assert (await fenced.post()).json()["body"] == "omitted"
            assert len(fenced.shop.effects) == 1

    run(story())


def test_response_that_cannot_be_sealed_is_in_doubt(database):
    """The application swallows what `send` raises, and its headers are none."""

    async def app(scope, receive, send):
        with suppress(Exception):
            await send({"type": "http.response.start", "status": 201, "headers": [("a", "b")]})
            await send({"type": "http.response.body", "body": b"done"})

    async def story():
        async with open_shop(database, fresh(), app=app) as fenced:
            await fenced.post()
            assert (await fences_of(fenced))[0].state == "IN_DOUBT"
            assert kind_of(await fenced.post()) == "in-doubt"

    run(story())


def test_oversized_effect_header_does_not_prevent_the_seal(database):
    async def story():
        async with open_shop(database, fresh()) as fenced:
            fenced.shop.headers = {"Idempotency-Effect": "x" * 2000}
            assert (await fenced.post()).status_code == 201
            assert (await fenced.post()).headers["idempotency-replayed"] == "true"

    run(story())
