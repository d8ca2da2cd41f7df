"""`effect: marked`: the endpoint says where its effect outside of the database starts."""

from __future__ import annotations

import asyncio

import pytest
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse
from starlette.routing import Route as StarletteRoute

from helixqueue.errors import Refused
from helixqueue.fence.http import helix_effect
from helixqueue.fence.receipt import downstream_key
from tests.support.fence_reads import transactions
from tests.support.fence_shop import fences_of, fresh, kind_of, open_shop, run
from tests.support.fence_time import expire


class Bank:
    """An endpoint with checks before its effect, and failures at each place."""

    def __init__(self):
        self.keys = []
        self.before = None
        self.inside = None
        self.marks = True

    async def refund(self, request):
        if self.before is not None:
            await self.before()
        if self.marks:
            async with helix_effect(request) as key:
                self.keys.append(key)
                if self.inside is not None:
                    raise self.inside
        return JSONResponse({"refunds": len(self.keys)}, 201)

    def app(self):
        path = "/orders/{order}/refunds"
        return Starlette(routes=[StarletteRoute(path, self.refund, methods=["POST"])])


def open_bank(database, bank, **route):
    policy = fresh(route={"effect": "marked"} | route)
    return open_shop(database, policy, app=bank.app())


@pytest.mark.parametrize(
    "error", [ConnectionError("no bank"), HTTPException(503), asyncio.CancelledError()]
)
def test_exception_before_the_mark_releases_the_key_and_the_next_request_runs(database, error):
    async def story():
        bank = Bank()
        async with open_bank(database, bank) as fenced:

            async def fail():
                raise error

            bank.before = fail
            try:
                assert (await fenced.post()).status_code in {500, 503}
            except asyncio.CancelledError:
                assert isinstance(error, asyncio.CancelledError)
            [row] = await fences_of(fenced)
            assert (row.state, bank.keys) == ("RELEASED", [])
            bank.before = None
            assert [(await fenced.post()).status_code for _ in range(2)] == [201, 201]
            [row] = await fences_of(fenced)
            assert bank.keys == [downstream_key(row.key)]

    run(story())


def test_exception_after_the_mark_is_in_doubt(database):
    async def story():
        bank = Bank()
        bank.inside = TimeoutError("the bank did not answer")
        async with open_bank(database, bank) as fenced:
            assert (await fenced.post()).status_code == 500
            assert kind_of(await fenced.post()) == "in-doubt"
            assert len(bank.keys) == 1

    run(story())


def test_marked_request_costs_three_commits_and_an_unmarked_one_two(database):
    async def story():
        bank = Bank()
        async with open_bank(database, bank) as fenced:
            await fenced.post()
            name = fenced.middleware.policy.routes[0].name
            assert transactions(database, name) == 3
            bank.marks = False  # an answer that needed no effect
            await fenced.post(key="another")
            assert transactions(database, name) == 3 + 2
            assert (await fenced.post(key="another")).headers["idempotency-replayed"] == "true"

    run(story())


def test_holder_that_lost_its_lease_before_the_mark_starts_no_effect(database):
    async def story():
        late, bank = Bank(), Bank()
        async with open_bank(database, late) as fenced:

            async def lose():
                [row] = await fences_of(fenced)
                expire(database, row.key, deadline=True)
                late.before = None
                assert (await fenced.post()).status_code == 201  # another process takes over

            late.before = lose
            answer = await fenced.post()
            assert kind_of(answer) == "in-progress"
            assert len(late.keys) == 1
            assert bank.keys == []

    run(story())


def test_failure_of_a_later_attempt_before_its_mark_does_not_end_an_earlier_doubt(database):
    """The first attempt may have acted: that its repeat failed early says nothing about it."""

    async def story():
        bank = Bank()
        bank.inside = TimeoutError("the bank did not answer")
        async with open_bank(database, bank, replayable=True) as fenced:
            assert (await fenced.post()).status_code == 500

            async def fail():
                raise ConnectionError("no bank")

            bank.before = fail
            assert (await fenced.post()).status_code == 500
            [row] = await fences_of(fenced)
            assert (row.state, len(bank.keys)) == ("IN_DOUBT", 1)

    run(story())


def test_mark_on_a_route_that_the_policy_does_not_declare_is_refused(database, caplog):
    async def story():
        bank = Bank()
        async with open_bank(database, bank, effect="request") as fenced:
            assert (await fenced.post()).status_code == 500
            assert bank.keys == []
            [row] = await fences_of(fenced)
            assert "expected `effect: marked`" in row.detail

    run(story())


def test_mark_without_a_key_does_nothing_and_without_the_middleware_is_refused(database):
    async def story():
        bank = Bank()
        async with open_bank(database, bank, required=False) as fenced:
            assert (await fenced.post(key=None)).status_code == 201
            assert bank.keys == [None]
        with pytest.raises(Refused, match="IdempotencyMiddleware"):
            async with helix_effect({"type": "http"}):
                pass

    run(story())
