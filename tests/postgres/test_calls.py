"""The calls: sync and async are the same calls, and errors are told apart."""

from __future__ import annotations

import asyncio
import dataclasses
import inspect
import uuid
from datetime import UTC, datetime, timedelta
from enum import Enum

import psycopg
import pytest

from helixqueue import errors
from helixqueue.engine import calls
from helixqueue.postgres.database import AsyncDatabase, parse_dsn
from helixqueue.postgres.database import Database as Store
from helixqueue.postgres.sqlstate import translate
from helixqueue.postgres.statements import statements
from helixqueue.records.lease import LeaseRef, Settlement, Token
from helixqueue.records.submission import Source, SubmissionRow
from helixqueue.states import State
from tests.support.lab import POOLED, new_database


@pytest.fixture(scope="module")
def database(server, template, pooler):
    yield from new_database(server, template, pooler)


# --- sync and async ----------------------------------------------------------------------------

BUILDERS = {
    name: first
    for name, first in inspect.getmembers(calls, inspect.isfunction)
    if first.__module__ == calls.__name__
    and not name.startswith("_")
    and first.__annotations__["return"].startswith("Call")
}


def story(queue):
    """Every call there is, in an order that makes each of them say something.

    A generator, so that the same story can be told to a sync and to an async database: it yields a
    call and is sent its answer.
    """
    mine = {"tenant": "a", "queue": queue}
    yield calls.set_queue(**mine, max_attempts=2, backoff_seconds=0, requires={"gpus": 1})
    yield calls.queue(**mine)
    yield calls.queue(tenant="a", queue="nowhere")
    rows = [SubmissionRow(f"s{n}", '{"n":1}', raw=f" s{n}", revision="r") for n in range(5)]
    made = yield calls.submit(**mine, profile="text-v1", rows=rows)
    rows = [rows[0], rows[1]._replace(payload='{"n":2}'), SubmissionRow(None, "{}")]
    yield calls.submit(**mine, profile="text-v1", rows=rows)
    sources = [Source("redis", queue, f"{n}-0") for n in (1, 1, 2)]
    rows = [SubmissionRow("s0", '{"n":1}', revision="r", source=source) for source in sources]
    yield calls.submit(**mine, profile="text-v1", rows=rows)
    yield calls.note_refused(**mine, refused=[(b"\xff", "not UTF-8")])
    claimed = yield calls.claim(
        worker="w", request=uuid.uuid4(), queues=[queue], count=4, free={"gpus": 8}
    )
    held = sorted(LeaseRef(lease.batch, lease.token) for lease in claimed.leases)
    yield calls.start(worker="w", leases=held)
    yield calls.renew(worker="w", leases=held)
    yield calls.settle(
        worker="w",
        settlements=[
            Settlement(*held[0], "completed", result='{"reads":7}'),
            Settlement(*held[1], "failed", failure="F", detail="Ω", permanent=True),
        ],
    )
    yield calls.release(worker="w", leases=held[2:3], detail="draining")
    yield calls.release(worker="w", leases=[LeaseRef(held[3].batch, Token(1, 2, 3))])
    yield calls.release_by_id(ids=[uuid.UUID(int=1)], reason="the node is gone", actor="ann")
    yield calls.claim(
        worker="w",
        request=uuid.uuid4(),
        queues=[queue],
        count=0,
        settle=[Settlement(*held[3], "completed", result="7")],
    )
    ids = sorted(answer.receipt.batch_id for answer in made)
    yield calls.cancel(ids=ids, reason="because")
    yield calls.retry(ids=[*ids, uuid.UUID(int=1)], reason="because", actor="ann")
    yield calls.retry(ids=ids, reason="because", actor="ann", dry_run=True)
    yield calls.erase(ids=ids, reason="because")
    yield calls.hello(worker=f"w-{queue}", free={"gpus": 1})
    yield calls.wait(worker=f"w-{queue}", queues=["nobody-submits"], seconds=0)
    yield calls.reap(actor="r")
    yield calls.promote(limit=10)
    later = datetime.now(UTC) + timedelta(days=1)
    yield calls.retire(**mine, state=State.COMPLETED, before=later)
    empty = {"tenant": "a", "queue": f"{queue}-empty"}
    yield calls.set_queue(**empty)
    yield calls.delete_queue(**empty, reason="because", actor="ann")
    yield calls.delete_queue(**mine, reason="because")


# What differs between two tellings of one story: chance, the clock and what comes from a sequence.
TELLER = {
    "batch", "batch_id", "key", "receipt", "token", "deadline", "hints", "queue", "name", "nonce"
}  # fmt: skip


def plain(answer):
    """An answer without what differs, in an order that does not depend on it."""
    if isinstance(answer, Enum | str | int | float | bytes | None):
        return answer
    if dataclasses.is_dataclass(answer):
        return {
            field.name: plain(getattr(answer, field.name))
            for field in dataclasses.fields(answer)
            if field.name not in TELLER
        }
    if hasattr(answer, "_asdict"):
        named = answer._asdict()
        return {name: plain(value) for name, value in named.items() if name not in TELLER}
    if isinstance(answer, dict):
        return {name: plain(value) for name, value in answer.items()}
    return sorted((plain(item) for item in answer), key=repr)


def told_to(database, queue):
    answers, names = [], []
    with Store.connect(database.dsn("pool"), pooled=POOLED) as db:
        telling = story(queue)
        call = next(telling)
        while True:
            answer = db.run(call)
            answers.append(plain(answer))
            names.append(call.sql)
            try:
                call = telling.send(answer)
            except StopIteration:
                return answers, names


async def told_to_async(database, queue):
    answers, names = [], []
    async with await AsyncDatabase.connect(database.dsn("pool"), pooled=POOLED) as db:
        telling = story(queue)
        call = next(telling)
        while True:
            answer = await db.run(call)
            answers.append(plain(answer))
            names.append(call.sql)
            try:
                call = telling.send(answer)
            except StopIteration:
                return answers, names


def test_sync_and_async_give_the_same_answers_to_every_call(database):
    sync, answer = told_to(database, "sync")
    also, _ = asyncio.run(told_to_async(database, "async"))
    assert sync == also
    # The story leaves no call out; `recover` ends every lease there is and rotating is for
    # operators, so they are told elsewhere.
    known = {
        name: first.sql for name, first in statements("helixqueue.engine", "calls.sql").items()
    }
    # The statement of `set_queue` names only the settings that change.
    known["set_queue"] = known["set_queue"].partition("/* settings */")[0]
    untold = {name for name, sql in known.items() if not any(t.startswith(sql) for t in answer)}
    assert untold == {"recover", "rotate_secret"}
    # `submit` has two statements: rows with sources go to the second one.
    assert BUILDERS.keys() | {"submit_from"} == known.keys()


def test_recover_gives_the_epoch_and_the_number_of_leases(database):
    with Store.connect(database.dsn("operator"), pooled=POOLED) as db:
        before, *_ = db.run(calls.recover(actor="ann", reason="restored"))
        after, ended, _ = db.run(calls.recover(actor="ann", reason="again"))
    assert (after > before, ended) == (True, 0)


def test_recover_is_for_operators(database):
    with (
        Store.connect(database.dsn("pool"), pooled=POOLED) as db,
        pytest.raises(errors.NotPermitted),
    ):
        db.run(calls.recover(actor="eve", reason="because"))


def test_call_is_part_of_the_callers_transaction(database):
    with Store.connect(database.dsn("pool"), pooled=POOLED) as db:
        with db.connection.transaction(force_rollback=True):
            db.run(calls.set_queue(tenant="a", queue="undone"))
        assert db.run(calls.queue(tenant="a", queue="undone")) is None


@pytest.mark.parametrize("name", ["start", "renew", "release", "settle", "cancel"])
def test_no_call_is_without_a_bound(name):
    many = [LeaseRef(1, Token(1, 1, 1))] * (calls.LEASES_MAX + 1)
    arguments = {
        "settle": {"worker": "w", "settlements": many},
        "cancel": {"ids": many, "reason": "because"},
    }.get(name, {"worker": "w", "leases": many})
    with pytest.raises(ValueError, match=f"{name}: expected at most 1000 rows per call, got 1001"):
        BUILDERS[name](**arguments)


def test_empty_calls_have_empty_answers(database):
    with Store.connect(database.dsn("pool"), pooled=POOLED) as db:
        for call in (
            calls.start(worker="w", leases=[]),
            calls.renew(worker="w", leases=[]),
            calls.release(worker="w", leases=[]),
            calls.settle(worker="w", settlements=[]),
            calls.cancel(ids=[], reason="because"),
            calls.retry(ids=[], reason="because"),
            calls.erase(ids=[], reason="because"),
        ):
            assert db.run(call) == []


# --- errors ------------------------------------------------------------------------------------

TABLE = {
    "QH001": errors.IllegalTransition,
    "QH002": errors.NotPermitted,
    "QH003": errors.NotPermitted,
    "42501": errors.NotPermitted,
    "40001": errors.Retryable,
    "40P01": errors.Retryable,
    "55P03": errors.Retryable,
    "22023": errors.Refused,
    "22021": errors.Refused,
    "22P02": errors.InvalidPayload,
    "23505": errors.Refused,
    "23514": errors.Refused,
    "25006": errors.Unavailable,
    "08006": errors.Unavailable,
    "53300": errors.Unavailable,
    "57014": errors.Unavailable,
    "57P01": errors.Unavailable,
    "3F000": errors.SchemaMismatch,
    "42883": errors.SchemaMismatch,
    "42P01": errors.SchemaMismatch,
    "XX000": errors.HelixError,
}
RAISE = "do $$ begin raise exception using errcode = '{}', message = 'no', hint = 'do so'; end $$"


def raised(database, state):
    with database.connect("pool") as connection, pytest.raises(psycopg.Error) as caught:
        connection.execute(RAISE.format(state).encode())
    return caught.value


@pytest.mark.parametrize("state", TABLE)
def test_every_sqlstate_has_its_error(database, state):
    error = translate(raised(database, state))
    assert type(error) is TABLE[state]
    assert "no; do so" in str(error)


@pytest.mark.parametrize(("state", "unknown"), [("08006", True), ("57P01", True), ("57014", False)])
def test_only_a_lost_answer_leaves_the_outcome_unknown(database, state, unknown):
    assert translate(raised(database, state)).outcome_unknown is unknown


def test_unknown_sqlstate_is_named(database):
    assert "(SQLSTATE XX000)" in str(translate(raised(database, "XX000")))


def test_connection_that_dies_under_a_call_leaves_the_outcome_unknown(database):
    dsn = database.dsn("pool", direct=True)
    with Store.connect(dsn) as db:
        pid = db.connection.info.backend_pid
        database.rows("select pg_terminate_backend(%s, 10000)", pid)
        with pytest.raises(errors.Unavailable, match="repeat the call") as away:
            db.run(calls.reap(actor="r"))
        assert away.value.outcome_unknown is True
        # And so does the next: the connection is known to be gone.
        with pytest.raises(errors.Unavailable):
            db.run(calls.reap(actor="r"))


def test_async_connection_that_dies_under_a_call_leaves_the_outcome_unknown(database):
    async def dies():
        async with await AsyncDatabase.connect(database.dsn("pool", direct=True)) as db:
            pid = db.connection.info.backend_pid
            database.rows("select pg_terminate_backend(%s, 10000)", pid)
            await db.run(calls.reap(actor="r"))

    with pytest.raises(errors.Unavailable) as away:
        asyncio.run(dies())
    assert away.value.outcome_unknown is True


@pytest.mark.parametrize("kind", ["sync", "async"])
def test_no_server_is_unavailable_and_nothing_was_sent(tmp_path, kind):
    dsn = f"postgresql://pool:hunter2@/nowhere?host={tmp_path}"
    connect = Store.connect if kind == "sync" else lambda d: asyncio.run(AsyncDatabase.connect(d))
    with pytest.raises(errors.Unavailable) as away:
        connect(dsn)
    assert away.value.outcome_unknown is False
    assert "hunter2" not in str(away.value)


def test_no_password_is_in_any_message(database):
    """Also where the server answers, and refuses."""
    dsn = database.dsn("nobody_here", direct=True).replace("nobody_here@", "nobody_here:hunter2@")
    with pytest.raises(errors.HelixError) as refused:
        Store.connect(dsn)
    text = str(refused.value) + repr(refused.value) + str(refused.value.__cause__)
    assert "hunter2" not in text
    assert str(refused.value).endswith("the DSN is right")  # a repeat would not help


@pytest.mark.parametrize("password", ["hun@ter2", "hun/ter2", "12/ter2", "h:un@ter2"])
def test_dsn_with_an_unescaped_password_is_refused(password):
    """With libpq a password ends at the first @ or /, and what is behind would be shown."""
    with pytest.raises(errors.Refused) as refused:
        parse_dsn(f"postgresql://app:{password}@db.lab/helix")
    assert "ter2" not in str(refused.value)
    assert parse_dsn("postgresql://app:hun%40ter2@db.lab:5433,other/helix?sslmode=require")


@pytest.mark.parametrize("host", ["%2Fvar%2Frun%2Fa@b", "@abstract", "a,b:1"])
def test_hosts_of_every_kind_are_taken(host):
    assert parse_dsn(f"postgresql:///helix?host={host}")


def test_empty_dsn_is_refused():
    with pytest.raises(errors.Refused, match="got an empty one"):
        parse_dsn(" ")


def test_value_the_driver_cannot_send_is_refused_and_not_retried(database):
    """Such an error carries no SQLSTATE, like a lost connection; repeating it would never end."""
    with Store.connect(database.dsn("pool"), pooled=POOLED) as db:
        for bad in ("a\0b", object()):
            with pytest.raises(errors.Refused):
                db.run(calls.reap(actor=bad))
        assert db.run(calls.reap(actor="r")) == 0


def test_database_without_the_schema_is_reported(server):
    with (
        Store.connect(server.bootstrap_dsn) as db,
        pytest.raises(errors.SchemaMismatch, match="helixq migrate"),
    ):
        db.run(calls.reap(actor="r"))
