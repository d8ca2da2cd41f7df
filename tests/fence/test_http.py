"""The middleware: a keyed request takes effect once, whatever clients, servers and bodies do."""

from __future__ import annotations

import asyncio
import json
import logging
import re
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path

import httpx
import pytest
from fastapi import FastAPI
from starlette.applications import Starlette
from starlette.middleware.base import BaseHTTPMiddleware
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route as StarletteRoute

from helixqueue import AsyncHelixQueue
from helixqueue.fence.http import IdempotencyMiddleware, describe
from helixqueue.fence.http.problem import PREFIX, PROBLEMS
from helixqueue.fence.policy import OnConflict, Policy, Route
from helixqueue.store import fences as calls
from helixqueue.store.fences import Answer, Times
from tests.fence.passing import let_time_pass
from tests.fence.shop import KEY, KINDS, fences_of, fresh, kind_of, open_shop, run


@pytest.mark.parametrize("kind", KINDS)
def test_a_repeat_gets_the_same_answer_and_no_second_effect(database, kind):
    async def story():
        async with open_shop(database, fresh(), kind) as door:
            first = await door.post()
            again = await door.post()
            assert first.status_code == again.status_code == 201
            assert first.content == again.content
            assert len(door.shop.effects) == 1
            assert "idempotency-replayed" not in first.headers
            assert again.headers["idempotency-replayed"] == "true"
            assert again.headers["idempotent-replayed"] == "true"
            assert again.headers["cache-control"] == "no-store"
            assert again.headers["idempotency-recorded-at"]
            receipts = {r.headers["idempotency-receipt"] for r in (first, again)}
            assert len(receipts) == 1
            assert again.headers["location"] == "/refunds/1"
            for private in ("set-cookie", "x-request-id"):
                assert private in first.headers
                assert private not in again.headers

    run(story())


@pytest.mark.parametrize("kind", KINDS)
def test_a_hundred_requests_at_once_have_one_effect(database, kind):
    async def story():
        async with open_shop(database, fresh(route={"wait_ms": 60_000}), kind) as door:
            answers = await asyncio.gather(*(door.post() for _ in range(100)))
            assert {answer.status_code for answer in answers} == {201}
            assert len({answer.content for answer in answers}) == 1
            assert len(door.shop.effects) == 1
            timed = door.helix.fences.counters.snapshot()["seconds"]
            assert {what for _, _, what in timed} == {"sealed", "waited"}

    run(story())


@pytest.mark.parametrize("kind", KINDS)
def test_another_body_under_the_same_key_is_refused_with_its_difference(database, kind):
    async def story():
        async with open_shop(database, fresh(), kind) as door:
            await door.post({"cents": 500, "card": "4242"})
            refused = await door.post({"cents": 600, "card": "4242"})
            assert (refused.status_code, kind_of(refused)) == (409, "key-reused")
            assert refused.headers["content-type"] == "application/problem+json"
            assert refused.json()["diff"] == [{"op": "replace", "path": "/body/cents"}]
            assert len(door.shop.effects) == 1

    run(story())


@pytest.mark.parametrize(
    ("rules", "status", "diff"),
    [
        (OnConflict(status=422, include_diff="none"), 422, None),
        (
            OnConflict(include_diff="values", mask=("/card",)),
            409,
            [
                {"op": "replace", "path": "/body/card", "value": "(masked)", "was": "(masked)"},
                {"op": "replace", "path": "/body/cents", "value": 6, "was": 5},
            ],
        ),
    ],
)
def test_a_conflict_shows_as_much_as_the_policy_allows(database, rules, status, diff):
    async def story():
        async with open_shop(database, fresh(on_conflict=rules)) as door:
            await door.post({"cents": 5, "card": "4242"})
            refused = await door.post({"cents": 6, "card": "4111"})
            assert refused.status_code == status
            assert refused.json().get("diff") == diff
            if rules.include_diff == "none":
                assert "4242" not in refused.text

    run(story())


@pytest.mark.parametrize("method", ["GET", "HEAD", "OPTIONS", "PUT", "DELETE"])
def test_other_methods_pass_untouched(database, method):
    async def story():
        async with open_shop(database, fresh()) as door:
            for _ in range(2):
                headers = {"Idempotency-Key": KEY}
                await door.client.request(method, "/orders/o1/refunds", headers=headers)
            assert len(door.shop.effects) == 2
            assert await fences_of(door) == []

    run(story())


@pytest.mark.parametrize("method", ["PUT", "DELETE"])
def test_a_method_that_is_fenced_later_makes_no_key_new(database, method):
    async def story():
        before = fresh()
        [route] = before.routes
        async with open_shop(database, before) as door:
            await door.post()
        after = Policy(routes=(replace(route, methods=route.methods | {method}),))
        async with open_shop(database, after) as door:
            assert (await door.post()).headers["idempotency-replayed"] == "true"
            ask = partial(door.client.request, method, "/orders/o1/refunds")
            for _ in range(2):
                assert (await ask(headers={"Idempotency-Key": "another"})).status_code == 201
            assert kind_of(await ask(headers={"Idempotency-Key": KEY})) == "key-reused"
            assert len(door.shop.effects) == 1

    run(story())


def test_in_flight_is_told_so_and_then_gets_the_answer(database):
    async def story():
        async with open_shop(database, fresh()) as door:
            door.shop.goes_on.clear()
            first = asyncio.create_task(door.post())
            await door.shop.going.wait()
            busy = await door.post()
            assert (busy.status_code, kind_of(busy)) == (409, "in-progress")
            assert 1 <= int(busy.headers["retry-after"]) <= 30
            other = await door.post({"cents": 1})
            assert kind_of(other) == "key-reused"
            door.shop.goes_on.set()
            assert (await first).status_code == 201
            assert (await door.post()).headers["idempotency-replayed"] == "true"

    run(story())


def test_keys_of_two_tenants_and_two_principals_do_not_meet(database):
    async def story():
        def tenant(scope):
            return dict(scope["headers"]).get(b"x-verified-tenant", b"").decode() or None

        async def principal(scope):
            return dict(scope["headers"]).get(b"x-verified-user", b"").decode() or None

        policy = fresh()
        async with open_shop(database, policy, tenant=tenant, principal=principal) as door:

            async def ask(who, user, body):
                headers = {"x-verified-tenant": who, "x-verified-user": user}
                return await door.post(body, headers=headers)

            for who, user in (("a", "ann"), ("a", "bob"), ("b", "ann")):
                for _ in range(2):
                    assert (await ask(who, user, {"of": who + user})).status_code == 201
            assert len(door.shop.effects) == 3
            for who, user in (("", "ann"), ("a", ""), ("No Tenant", "ann")):
                refused = await ask(who, user, {})
                assert (refused.status_code, kind_of(refused)) == (500, "scope-unavailable")
            assert len(door.shop.effects) == 3

    run(story())


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


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("how", ["exception", "500", "503"])
def test_a_failure_after_the_marker_is_a_doubt_and_never_run_again(database, kind, how):
    async def story():
        async with open_shop(database, fresh(), kind) as door:
            if how == "exception":
                door.shop.fails = RuntimeError("the bank hung up")
            else:
                door.shop.status = int(how)
            failed = await door.post()
            assert failed.status_code == (500 if how == "exception" else int(how))
            for _ in range(2):
                doubted = await door.post()
                assert (doubted.status_code, kind_of(doubted)) == (409, "in-doubt")
                assert doubted.json()["fence"].startswith("v1:")
            assert kind_of(await door.post({"other": 1})) == "key-reused"
            assert len(door.shop.effects) == 1

    run(story())


def test_a_replayable_route_is_driven_again(database):
    async def story():
        async with open_shop(database, fresh(route={"replayable": True})) as door:
            door.shop.fails = RuntimeError("the bank hung up")
            await door.post()
            door.shop.fails = None
            assert (await door.post()).status_code == 201
            assert len(door.shop.effects) == 2

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


def test_a_request_larger_than_its_bound_is_refused_and_never_slips_through(database):
    async def story():
        async with open_shop(database, fresh(route={"max_body_bytes": 1000})) as door:
            for _ in range(2):
                answer = await door.post({"blob": "x" * 1000})
                assert (answer.status_code, kind_of(answer)) == (413, "body-too-large")
            assert door.shop.effects == []

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


@pytest.mark.parametrize("kind", KINDS)
def test_a_client_that_hangs_up_and_a_server_that_cancels_stop_nothing(database, kind):
    async def story():
        async with open_shop(database, fresh(), kind) as door:
            door.shop.goes_on.clear()
            first = asyncio.create_task(door.post())
            await door.shop.going.wait()
            first.cancel()
            await asyncio.sleep(0.01)
            assert not first.done()
            door.shop.goes_on.set()
            with suppress(asyncio.CancelledError):
                await first
            again = await door.post()
            assert again.headers["idempotency-replayed"] == "true"
            assert len(door.shop.effects) == 1

    run(story())


def test_a_client_that_hangs_up_in_the_middle_of_its_body_does_nothing(database):
    async def story():
        async with open_shop(database, fresh()) as door:
            messages = iter(
                [
                    {"type": "http.request", "body": b"{", "more_body": True},
                    {"type": "http.disconnect"},
                ]
            )
            scope = {
                "type": "http", "method": "POST", "path": "/orders/o1/refunds",
                "headers": [(b"idempotency-key", KEY.encode())], "query_string": b"",
            }  # fmt: skip

            async def receive():
                return next(messages)

            async def send(message):
                raise AssertionError(message)

            await door.middleware(scope, receive, send)
            assert door.shop.effects == []
            assert await fences_of(door) == []

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


def test_without_its_database_a_keyed_request_is_refused_and_not_run(database):
    async def story():
        ran = []

        async def app(scope, receive, send):
            ran.append(scope["type"])

        async with AsyncHelixQueue("host=/nowhere dbname=none", tenant="a") as helix:
            middleware = IdempotencyMiddleware(app, helix=helix, policy=fresh())
            sent = []

            async def receive():
                return {"type": "http.request", "body": b"{}", "more_body": False}

            async def send(message):
                sent.append(message)

            scope = {
                "type": "http", "method": "POST", "path": "/orders/o1/refunds",
                "headers": [(b"idempotency-key", KEY.encode())], "query_string": b"",
            }  # fmt: skip
            await middleware(scope, receive, send)
            assert sent[0]["status"] == 503
            assert dict(sent[0]["headers"])[b"retry-after"] == b"1"
            assert b"nowhere" not in sent[1]["body"]
            await middleware({"type": "lifespan"}, receive, send)
            assert ran == ["lifespan"]

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


def test_it_works_between_other_middleware(database):
    """Also around BaseHTTPMiddleware, which runs its application in a task of its own."""

    async def story():
        ran = []

        async def answer(request):
            ran.append(await request.json())
            return JSONResponse({"n": len(ran)})

        class Stamp(BaseHTTPMiddleware):
            async def dispatch(self, request, call_next):
                response = await call_next(request)
                response.headers["x-stamp"] = "1"
                return response

        app = Starlette(routes=[StarletteRoute("/orders/{o}/refunds", answer, methods=["POST"])])
        app.add_middleware(Stamp)
        policy = fresh(route={"keep_headers": ("x-stamp",)})
        async with open_shop(database, policy, app=app) as door:
            first, again = await door.post(), await door.post()
            assert first.json() == again.json() == {"n": 1}
            assert first.headers["x-stamp"] == again.headers["x-stamp"] == "1"

    run(story())


def test_it_is_added_to_an_application_as_any_middleware_is(database):
    async def story():
        async with open_shop(database, fresh(), "fastapi") as door:
            app = door.shop.fastapi()
            app.add_middleware(IdempotencyMiddleware, helix=door.helix, policy=fresh())
            transport = httpx.ASGITransport(app, raise_app_exceptions=False)
            async with httpx.AsyncClient(transport=transport, base_url="http://shop") as client:

                async def ask(key):
                    headers = {"Idempotency-Key": key}
                    return await client.post("/orders/1/refunds", json={}, headers=headers)

                first, again = await ask(KEY), await ask(KEY)
                assert first.json() == again.json()
                door.shop.fails = RuntimeError("the bank hung up")
                assert (await ask("another-key")).status_code == 500
                assert kind_of(await ask("another-key")) == "in-doubt"
            assert len(door.shop.effects) == 2

    run(story())


def test_a_tenant_that_the_role_is_not_bound_to_is_refused(database):
    async def story():
        async with open_shop(database, fresh(), tenant=lambda _: "b", role="app_a") as door:
            refused = await door.post()
            assert (refused.status_code, kind_of(refused)) == (500, "scope-unavailable")
            assert door.shop.effects == []

    run(story())


def test_what_is_counted_and_logged_is_what_the_policy_names(database, caplog):
    async def story():
        policy = fresh(log_fields=("decision", "source_type", "key", "diff_ops"))
        async with open_shop(database, policy) as door:
            with caplog.at_level(logging.INFO, "helixqueue.fence.http"):
                await door.post()
                await door.post()
                await door.post({"cents": 1})
            told = [record.idempotency for record in caplog.records]
            assert [one["decision"] for one in told] == ["executed", "repeated", "key-reused"]
            assert set(told[0]) == {"decision", "source_type", "key", "diff_ops"}
            assert told[2]["diff_ops"] == 1
            decisions = door.helix.fences.counters.snapshot()["decisions"]
            assert sorted(word for _, _, word in decisions) == [
                "executed",
                "key-reused",
                "repeated",
            ]
            assert not any(KEY in str(label) for label in decisions)

    run(story())


def test_openapi_tells_of_the_header_and_the_refusals():
    app = FastAPI()

    @app.post("/orders/{order}/refunds")
    async def refund(order: str):
        return order

    @app.get("/orders")
    async def orders():
        return []

    policy = Policy(routes=(Route(path="/orders/{id}/refunds"),))
    described = describe(app.openapi(), policy)
    operation = described["paths"]["/orders/{order}/refunds"]["post"]
    [header] = [p for p in operation["parameters"] if p["in"] == "header"]
    assert (header["name"], header["required"]) == ("Idempotency-Key", True)
    assert {"400", "409", "413", "503"} <= set(operation["responses"])
    assert "parameters" not in described["paths"]["/orders"]["get"]
    named = described["components"]["schemas"]["IdempotencyProblem"]["properties"]["type"]["enum"]
    assert set(named) == {PREFIX + kind for kind in PROBLEMS}


def test_an_answer_that_cannot_be_read_is_a_doubt_and_not_run_again(database):
    """Other releases and other hands write too; what is not understood is not thrown away."""

    async def story():
        async with open_shop(database, fresh(), "bare") as door:
            door.shop.fails = RuntimeError("the bank hung up")
            await door.post()
            [row] = await fences_of(door)
            async with AsyncHelixQueue(database.dsn("operator"), tenant="a") as operator:
                answer = Answer("json", b'"not an HTTP answer"')
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


def test_the_guide_has_a_line_on_every_problem():
    guide = Path(__file__).parents[2] / "docs" / "guides" / "idempotency.md"
    lines = re.findall(r"^\| `([a-z-]+)` \| (\d+)", guide.read_text(encoding="utf-8"), re.MULTILINE)
    assert {kind: int(status) for kind, status in lines} == {
        kind: status for kind, (status, _) in PROBLEMS.items()
    }


def test_a_fence_that_nobody_renews_is_in_doubt_for_the_next_request(database):
    """What a killed server leaves: a marker with nobody behind it."""

    async def story():
        async with open_shop(database, fresh()) as door:
            door.shop.goes_on.clear()
            dead = asyncio.create_task(door.post())
            await door.shop.going.wait()
            [row] = await fences_of(door)
            await asyncio.to_thread(let_time_pass, database, row.key, deadline=True)
            assert kind_of(await door.post()) == "in-doubt"
            door.shop.goes_on.set()
            # It was alive after all, and nobody else was given the fence: its word counts.
            assert (await dead).status_code == 201
            assert (await door.post()).headers["idempotency-replayed"] == "true"

    run(story())
