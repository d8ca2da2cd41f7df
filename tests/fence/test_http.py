"""The middleware: a keyed request takes effect once, whatever clients, servers and bodies do."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from dataclasses import replace
from functools import partial

import pytest

from helixqueue import AsyncHelixQueue
from helixqueue.fence.http import IdempotencyMiddleware
from helixqueue.fence.policy import OnConflict, Policy
from tests.support.fence_shop import KEY, KINDS, fences_of, fresh, kind_of, open_shop, run
from tests.support.fence_time import expire


@pytest.mark.parametrize("kind", KINDS)
def test_repeat_gets_the_same_response_and_no_second_effect(database, kind):
    async def story():
        async with open_shop(database, fresh(), kind) as fenced:
            first = await fenced.post()
            again = await fenced.post()
            assert first.status_code == again.status_code == 201
            assert first.content == again.content
            assert len(fenced.shop.effects) == 1
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
def test_hundred_concurrent_requests_have_one_effect(database, kind):
    async def story():
        async with open_shop(database, fresh(route={"wait_ms": 60_000}), kind) as fenced:
            answers = await asyncio.gather(*(fenced.post() for _ in range(100)))
            assert {answer.status_code for answer in answers} == {201}
            assert len({answer.content for answer in answers}) == 1
            assert len(fenced.shop.effects) == 1
            timed = fenced.helix.fences.counters.snapshot().seconds
            assert {what for _, _, what in timed} == {"sealed", "waited"}

    run(story())


@pytest.mark.parametrize("kind", KINDS)
def test_other_body_with_the_same_key_is_refused_with_a_diff(database, kind):
    async def story():
        async with open_shop(database, fresh(), kind) as fenced:
            await fenced.post({"cents": 500, "card": "4242"})
            refused = await fenced.post({"cents": 600, "card": "4242"})
            assert (refused.status_code, kind_of(refused)) == (409, "key-reused")
            assert refused.headers["content-type"] == "application/problem+json"
            assert refused.json()["diff"] == [{"op": "replace", "path": "/body/cents"}]
            assert len(fenced.shop.effects) == 1

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
def test_conflict_discloses_only_what_the_policy_allows(database, rules, status, diff):
    async def story():
        async with open_shop(database, fresh(on_conflict=rules)) as fenced:
            await fenced.post({"cents": 5, "card": "4242"})
            refused = await fenced.post({"cents": 6, "card": "4111"})
            assert refused.status_code == status
            assert refused.json().get("diff") == diff
            if rules.include_diff == "none":
                assert "4242" not in refused.text
                assert "/card" not in refused.text

    run(story())


@pytest.mark.parametrize("method", ["GET", "HEAD", "OPTIONS", "PUT", "DELETE"])
def test_other_methods_are_not_fenced(database, method):
    async def story():
        async with open_shop(database, fresh(unlisted="pass")) as fenced:
            for _ in range(2):
                headers = {"Idempotency-Key": KEY}
                await fenced.client.request(method, "/orders/o1/refunds", headers=headers)
            assert len(fenced.shop.effects) == 2
            assert await fences_of(fenced) == []

    run(story())


@pytest.mark.parametrize("method", ["PUT", "DELETE"])
def test_fencing_another_method_keeps_existing_keys(database, method):
    async def story():
        before = fresh()
        [route] = before.routes
        async with open_shop(database, before) as fenced:
            await fenced.post()
        after = Policy(routes=(replace(route, methods=route.methods | {method}),))
        async with open_shop(database, after) as fenced:
            assert (await fenced.post()).headers["idempotency-replayed"] == "true"
            ask = partial(fenced.client.request, method, "/orders/o1/refunds")
            for _ in range(2):
                assert (await ask(headers={"Idempotency-Key": "another"})).status_code == 201
            assert kind_of(await ask(headers={"Idempotency-Key": KEY})) == "key-reused"
            assert len(fenced.shop.effects) == 1

    run(story())


def test_concurrent_request_gets_in_progress_and_later_the_response(database):
    async def story():
        async with open_shop(database, fresh()) as fenced:
            fenced.shop.goes_on.clear()
            first = asyncio.create_task(fenced.post())
            await fenced.shop.going.wait()
            busy = await fenced.post()
            assert (busy.status_code, kind_of(busy)) == (409, "in-progress")
            assert 1 <= int(busy.headers["retry-after"]) <= 30
            other = await fenced.post({"cents": 1})
            assert kind_of(other) == "key-reused"
            fenced.shop.goes_on.set()
            assert (await first).status_code == 201
            assert (await fenced.post()).headers["idempotency-replayed"] == "true"

    run(story())


def test_keys_of_two_tenants_and_two_principals_are_separate(database):
    async def story():
        def tenant(scope):
            return dict(scope["headers"]).get(b"x-verified-tenant", b"").decode() or None

        async def principal(scope):
            return dict(scope["headers"]).get(b"x-verified-user", b"").decode() or None

        policy = fresh()
        async with open_shop(database, policy, tenant=tenant, principal=principal) as fenced:

            async def ask(tenant, user, body):
                headers = {"x-verified-tenant": tenant, "x-verified-user": user}
                return await fenced.post(body, headers=headers)

            for role, user in (("a", "ann"), ("a", "bob"), ("b", "ann")):
                for _ in range(2):
                    assert (await ask(role, user, {"of": role + user})).status_code == 201
            assert len(fenced.shop.effects) == 3
            for role, user in (("", "ann"), ("a", ""), ("No Tenant", "ann")):
                refused = await ask(role, user, {})
                assert (refused.status_code, kind_of(refused)) == (500, "scope-unavailable")
            assert len(fenced.shop.effects) == 3

    run(story())


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("how", ["exception", "500", "503"])
def test_failure_after_the_marker_is_in_doubt_and_never_executed_again(database, kind, how):
    async def story():
        async with open_shop(database, fresh(), kind) as fenced:
            if how == "exception":
                fenced.shop.fails = RuntimeError("the bank hung up")
            else:
                fenced.shop.status = int(how)
            failed = await fenced.post()
            assert failed.status_code == (500 if how == "exception" else int(how))
            for _ in range(2):
                doubted = await fenced.post()
                assert (doubted.status_code, kind_of(doubted)) == (409, "in-doubt")
                assert doubted.json()["fence"].startswith("v1:")
            assert kind_of(await fenced.post({"other": 1})) == "key-reused"
            assert len(fenced.shop.effects) == 1

    run(story())


def test_replayable_route_is_executed_again(database):
    async def story():
        async with open_shop(database, fresh(route={"replayable": True})) as fenced:
            fenced.shop.fails = RuntimeError("the bank hung up")
            await fenced.post()
            fenced.shop.fails = None
            assert (await fenced.post()).status_code == 201
            assert len(fenced.shop.effects) == 2

    run(story())


def test_oversized_request_is_refused_and_never_bypasses_the_fence(database):
    async def story():
        async with open_shop(database, fresh(route={"max_body_bytes": 1000})) as fenced:
            for _ in range(2):
                answer = await fenced.post({"blob": "x" * 1000})
                assert (answer.status_code, kind_of(answer)) == (413, "body-too-large")
            assert fenced.shop.effects == []

    run(story())


@pytest.mark.parametrize("kind", KINDS)
def test_disconnect_and_cancellation_do_not_stop_a_started_request(database, kind):
    async def story():
        async with open_shop(database, fresh(), kind) as fenced:
            fenced.shop.goes_on.clear()
            first = asyncio.create_task(fenced.post())
            await fenced.shop.going.wait()
            first.cancel()
            await asyncio.sleep(0.01)
            assert not first.done()
            fenced.shop.goes_on.set()
            with suppress(asyncio.CancelledError):
                await first
            again = await fenced.post()
            assert again.headers["idempotency-replayed"] == "true"
            assert len(fenced.shop.effects) == 1

    run(story())


def test_disconnect_during_the_body_does_nothing(database):
    async def story():
        async with open_shop(database, fresh()) as fenced:
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

            await fenced.middleware(scope, receive, send)
            assert fenced.shop.effects == []
            assert await fences_of(fenced) == []

    run(story())


def test_keyed_request_without_a_database_is_refused_and_not_executed(database):
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


def test_tenant_that_the_role_is_not_bound_to_is_refused(database):
    async def story():
        async with open_shop(database, fresh(), tenant=lambda _: "b", role="app_a") as fenced:
            refused = await fenced.post()
            assert (refused.status_code, kind_of(refused)) == (500, "scope-unavailable")
            assert fenced.shop.effects == []

    run(story())


def test_fence_without_heartbeat_is_in_doubt_for_the_next_request(database):
    """What a killed server leaves: a marker with nobody behind it."""

    async def story():
        async with open_shop(database, fresh()) as fenced:
            fenced.shop.goes_on.clear()
            dead = asyncio.create_task(fenced.post())
            await fenced.shop.going.wait()
            [row] = await fences_of(fenced)
            await asyncio.to_thread(expire, database, row.key, deadline=True)
            assert kind_of(await fenced.post()) == "in-doubt"
            fenced.shop.goes_on.set()
            # It was alive after all, and nobody else was given the fence: its word counts.
            assert (await dead).status_code == 201
            assert (await fenced.post()).headers["idempotency-replayed"] == "true"

    run(story())
