"""`effect: session`: fence, effect and seal of a request are one transaction of the application."""

from __future__ import annotations

import asyncio
import inspect
import time
from functools import partial
from typing import Annotated

import psycopg
import pytest
import sqlalchemy
from fastapi import Depends, FastAPI
from fastapi.responses import JSONResponse, StreamingResponse

from helixqueue.errors import Refused
from helixqueue.fence.http import helix_session
from helixqueue.fence.policy import Policy, Route, Ttl
from tests.support.fence_reads import fence_of, transactions
from tests.support.fence_sessions import ASYNC_KINDS, KINDS, open_sessions
from tests.support.fence_shop import kind_of, open_shop, run

kinds = pytest.mark.parametrize("kind", KINDS)


def called(action, kind):
    """`action` as a function that the endpoint of this kind can call or await."""

    def then(session):
        return action(session)

    async def then_async(session):
        found = action(session)
        return await found if inspect.isawaitable(found) else found

    return then_async if kind in ASYNC_KINDS else then


@kinds
def test_effect_and_seal_of_a_request_are_one_commit_and_repeats_run_nothing(
    database, kind, name, table
):
    async def story():
        async with open_sessions(database, kind, name, table) as (refunds, post):
            first, again = await post(), await post()
            assert (first.status_code, first.json()) == (201, {"runs": 1})
            assert again.content == first.content
            assert again.headers["idempotency-replayed"] == "true"
            assert (refunds.runs, refunds.count()) == (1, 1)
            assert transactions(database, f"http /{name}") == 1
            assert refunds.background == [1]  # after the commit

    run(story())


@kinds
def test_endpoint_that_commits_twice_and_then_dies_leaves_nothing_and_runs_again(
    database, kind, name, table
):
    def commit(session):
        if kind.endswith("psycopg"):
            return None  # psycopg refuses it: see below
        return session.commit()

    async def story():
        async with open_sessions(database, kind, name, table) as (refunds, post):

            async def die_async(session):
                for _ in range(2):
                    done = commit(session)
                    if done is not None:
                        await done
                    await refunds.write_async(session)
                raise ConnectionError("the endpoint died")

            def die(session):
                for _ in range(2):
                    commit(session)
                    refunds.write(session)
                raise ConnectionError("the endpoint died")

            refunds.then = die_async if kind in ASYNC_KINDS else die
            for _ in range(2):
                assert (await post()).status_code == 500
            assert (refunds.runs, refunds.count(), refunds.background) == (6, 0, [])
            refunds.then = None
            assert [(await post()).status_code for _ in range(2)] == [201, 201]
            assert (refunds.runs, refunds.count()) == (7, 1)

    run(story())


@pytest.mark.parametrize("kind", ["psycopg", "async psycopg"])
def test_commit_of_a_psycopg_connection_by_the_endpoint_is_refused(database, kind, name, table):
    async def story():
        async with open_sessions(database, kind, name, table) as (refunds, post):
            refunds.then = called(lambda connection: connection.commit(), kind)
            assert (await post()).status_code == 500
            assert refunds.count() == 0

    run(story())


@pytest.mark.parametrize("kind", ["session", "psycopg"])
def test_endpoint_that_sends_commit_as_text_and_dies_is_in_doubt_and_never_runs_twice(
    database, kind, name, table
):
    async def story():
        async with open_sessions(database, kind, name, table) as (refunds, post):

            def die(session):
                text = "commit" if kind == "psycopg" else sqlalchemy.text("commit")
                session.execute(text)
                raise ConnectionError("the endpoint died")

            refunds.then = die
            assert (await post()).status_code == 500
            refunds.then = None
            assert (await post()).status_code == 409
            assert fence_of(database, f"http /{name}").state == "EFFECT_STARTED"
            assert (refunds.runs, refunds.count()) == (1, 1)

    run(story())


@kinds
@pytest.mark.parametrize("status", [500, 503, 429])
def test_answer_that_is_not_sealed_is_rolled_back_and_runs_again(
    database, kind, name, table, status
):
    async def story():
        async with open_sessions(database, kind, name, table) as (refunds, post):
            refunds.status = status
            assert (await post()).status_code == status
            assert refunds.count() == 0
            refunds.status = 404
            assert [(await post()).status_code for _ in range(2)] == [404, 404]
            assert (refunds.runs, refunds.count()) == (2, 1)

    run(story())


@kinds
def test_session_streams_a_response_of_any_length_before_its_commit(database, kind, name, table):
    """The stream writes after a second, and when it is beyond the bound of stored answers."""

    async def story():
        async with open_sessions(database, kind, name, table, max_answer_bytes=1000) as (
            refunds,
            post,
        ):

            def lines(session):
                yield b"first\n"
                time.sleep(1.1)
                yield b"x" * 3_000_000
                refunds.write(session)
                yield b"last\n"

            async def lines_async(session):
                yield b"first\n"
                await asyncio.sleep(1.1)
                yield b"x" * 3_000_000
                await refunds.write_async(session)
                yield b"last\n"

            stream = lines_async if kind in ASYNC_KINDS else lines
            refunds.then = called(lambda session: StreamingResponse(stream(session)), kind)
            first, again = await post(), await post()
            assert len(first.content) == 3_000_011
            assert first.headers["idempotency-stored"] == "partial"
            assert again.json()["body"] == "omitted"
            assert (refunds.runs, refunds.count()) == (2, 2)

    run(story())


def test_stream_that_fails_in_the_middle_is_rolled_back(database, name, table):
    async def story():
        async with open_sessions(database, "async session", name, table, max_answer_bytes=1000) as (
            refunds,
            post,
        ):

            async def lines():
                yield b"x" * 3_000_000
                raise ConnectionError("the stream broke")

            refunds.then = called(lambda _: StreamingResponse(lines()), "async session")
            assert (await post()).status_code == 500
            refunds.then = None
            assert (await post()).status_code == 201
            assert (refunds.runs, refunds.count()) == (2, 1)

    run(story())


@kinds
def test_concurrent_requests_with_one_key_have_one_effect_and_hold_no_connection(
    database, kind, name, table
):
    async def story():
        async with open_sessions(database, kind, name, table, wait_ms=20_000) as (refunds, post):
            gate = asyncio.Event()
            loop = asyncio.get_running_loop()
            started = asyncio.Event()

            def hold(_):
                loop.call_soon_threadsafe(started.set)
                asyncio.run_coroutine_threadsafe(gate.wait(), loop).result(20)

            async def hold_async(_):
                started.set()
                await gate.wait()

            refunds.then = hold_async if kind in ASYNC_KINDS else hold
            first = asyncio.create_task(post())
            await started.wait()
            others = [asyncio.create_task(post()) for _ in range(8)]
            await asyncio.sleep(0)
            gate.set()
            answers = [await task for task in (first, *others)]
            assert {(answer.status_code, answer.text) for answer in answers} == {
                (201, '{"runs":1}')
            }
            assert (refunds.runs, refunds.count()) == (1, 1)

    run(story())


@kinds
def test_request_without_a_key_has_a_session_and_no_fence(database, kind, name, table):
    async def story():
        async with open_sessions(database, kind, name, table, required=False) as (refunds, post):
            assert [(await post(None)).status_code for _ in range(2)] == [201, 201]
            refunds.status = 500
            assert (await post(None)).status_code == 500
            assert (refunds.runs, refunds.count()) == (3, 2)

    run(story())


def test_write_that_the_commit_refuses_is_the_endpoints_error_and_runs_again(database, name, table):
    """A constraint that is checked at the commit: after the response, before its first byte."""
    with database.connect("helix_bootstrap") as connection:
        connection.execute(
            f"alter table public.{table} add unique (n) deferrable initially deferred".encode()
        )

    async def story():
        async with open_sessions(database, "async session", name, table) as (refunds, post):
            refunds.then = called(refunds.write_async, "async session")
            assert (await post()).status_code == 500
            assert (refunds.count(), refunds.background) == (0, [])
            refunds.then = None
            assert (await post()).status_code == 201
            assert refunds.count() == 1

    run(story())


@kinds
def test_connection_cut_before_the_commit_is_retried_and_the_effect_happens_once(
    database, kind, name, table
):
    async def story():
        async with open_sessions(database, kind, name, table) as (refunds, post):

            def cut(_):
                if refunds.runs == 1:
                    database.value(
                        "select count(pg_terminate_backend(pid)) from pg_stat_activity"
                        " where state = 'idle in transaction' and datname = current_database()"
                        f" and position('{table} ' in query) > 0"
                    )

            refunds.then = called(cut, kind)
            answer = await post()
            assert (answer.status_code, refunds.runs, refunds.count()) == (201, 2, 1)

    run(story())


def test_frozen_endpoint_is_ended_by_the_server_and_its_key_is_free(database, name, table):
    """The setting of the policy, in seconds; the next request does not wait for the frozen one."""

    async def story():
        ttl = Ttl(transaction_seconds=1)
        async with open_sessions(database, "async psycopg", name, table, ttl=ttl) as (
            refunds,
            post,
        ):

            async def freeze(_):
                refunds.then = None
                started.set()
                await ended.wait()

            refunds.then, started, ended = freeze, asyncio.Event(), asyncio.Event()
            frozen = asyncio.create_task(post())
            await started.wait()
            while (answer := await post()).status_code == 409:
                assert kind_of(answer) == "in-progress"
                await asyncio.sleep(0.1)
            assert (answer.status_code, refunds.count()) == (201, 1)
            ended.set()
            # Its own transaction is gone: it repeats the other's answer, or says to come again.
            assert (await frozen).status_code in {201, 503}
            assert refunds.count() == 1

    run(story())


def two_endpoints():
    app = FastAPI()

    @app.post("/with")
    async def with_session(session: Annotated[object, Depends(helix_session)]):
        return JSONResponse({})

    @app.post("/without")
    async def without_session():
        return JSONResponse({})

    return app


@pytest.mark.parametrize(
    ("routes", "got"),
    [
        ([Route("/with")], "effect: request"),
        ([Route("/without")], "no route"),
        ([Route("/with", effect="session"), Route("/without", effect="session")], "takes no"),
    ],
)
def test_policy_that_differs_from_the_endpoints_about_sessions_is_refused_at_the_start(
    database, routes, got
):
    async def story():
        with pytest.raises(Refused, match=got):
            async with open_shop(
                database,
                Policy(routes=tuple(routes)),
                app=two_endpoints(),
                sessions=partial(psycopg.connect, database.dsn()),
            ):
                pass

    run(story())


def test_route_with_a_session_is_refused_without_a_source_of_sessions(database):
    async def story():
        with pytest.raises(Refused, match="expected a sessionmaker for the route /with"):
            policy = Policy(routes=(Route("/with", effect="session"),))
            async with open_shop(database, policy, app=two_endpoints()):
                pass

    run(story())


def test_key_of_another_tenant_or_an_unreachable_database_calls_no_endpoint(database, name, table):
    async def story():
        def unreachable():
            raise psycopg.OperationalError("connection refused")

        policy = Policy(
            routes=(Route("/with", effect="session", min_key_chars=1),),
            ttl=Ttl(transaction_seconds=5),
        )
        async with open_shop(database, policy, app=two_endpoints(), sessions=unreachable) as fenced:
            answer = await fenced.client.post("/with", headers={"Idempotency-Key": "k"})
            assert (answer.status_code, kind_of(answer)) == (503, "storage-unavailable")

    run(story())
