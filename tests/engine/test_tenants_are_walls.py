"""G10: no tenant sees or touches another's rows, whatever it asks and whichever function it calls.

Everything that tenant b wrote carries one word. Whatever an intruder can read, in a row, an answer,
an error or a notice, must not contain it; whatever he calls, b's rows stay as they are. Tables and
functions come from the catalog: a new one without a case here fails.
"""

from __future__ import annotations

import uuid
from contextlib import contextmanager
from dataclasses import dataclass

import psycopg
import pytest
from psycopg import sql

from helixqueue.operate.check import check
from tests.database import copy_of
from tests.ledger.traffic import Held, Lab, fence_every_way, lab

WORD = "zebra"

# Who comes, and what he says first.
INTRUDERS = {
    "the role of another tenant": ("app_a", []),
    "who names the tenant": ("app_a", ["set helix.tenant = 'b'"]),
    "who forges the engine's note": ("app_a", ["set helix.scope = '*'"]),
    "a role that is bound to nothing": ("stranger", []),
    "a stranger who names the tenant": ("stranger", ["set helix.tenant = 'b'"]),
    "a service that named no tenant": ("service", []),
    "a service that named the empty tenant": ("service", ["set helix.tenant = ''"]),
    "a service that named another tenant": ("service", ["set helix.tenant = 'a'"]),
    "a service that named a list": ("service", ["set helix.tenant = 'a,b'"]),
    "a service that named a star": ("service", ["set helix.tenant = '*'"]),
}


@dataclass(frozen=True)
class Loot:
    """What an intruder would have had to steal: ids, live tokens, a request id."""

    ids: list[uuid.UUID]
    held: list[Held]
    request: uuid.UUID
    fences: dict[str, bytes]
    fence_numbers: dict[str, tuple[int, int]]  # epoch and number of their tokens


@pytest.fixture(scope="module")
def shared(server, template):
    with copy_of(template, server, "helix_walls") as database:
        yield database


@pytest.fixture(scope="module")
def walled(shared):
    """Tenants a and b at work in queues of the same name; b in every state and every table."""
    with lab(shared, "app_a") as a, lab(shared, "app_b") as b, lab(shared, "operator") as op:
        a.queue("a", "shared")
        a.submit("mine-1", "mine-2", queue="shared")
        b.queue("b", "shared", key_limit=1, backoff_seconds=0)
        b.queue("b", f"{WORD}-queue", requires=f'{{"labels":{{"{WORD}":"1"}}}}')
        b.queue("b", f"{WORD}-paused", paused=True)
        b.call("hello_v1", worker=f"{WORD}-worker", free='{"gpus":1}')

        def submit(*names, **options):
            options.setdefault("payload", f'{{"of":"{WORD}"}}')
            return b.submit(*(f"{WORD}-{n}" for n in names), tenant="b", **options)

        ids = submit(1, 2, 3, 4, 5, 6, 7, 8, queue="shared")
        ids += submit(9, queue=f"{WORD}-queue")
        ids += submit(10, queue=f"{WORD}-paused")
        ids += submit(11, queue="shared", run_at="infinity")
        ids += submit(12, 13, queue="shared", limit_key=f"{WORD}-key")
        submit(1, queue="shared")
        submit(2, queue="shared", payload=f'{{"other":"{WORD}"}}')
        b.call("note_refused_v1", tenant="b", queue="shared", actor=WORD, raw=[b"x"], why=[WORD])

        def work(count, **options):
            return b.claim(count, worker=f"{WORD}-worker", queue="shared", **options)

        retired, failed, cancelled, completed = work(4)
        b.complete([retired])
        assert b.rows("select helix.retire_v1('b', 'shared', 'COMPLETED', 'infinity')") == [(1,)]
        b.complete([completed])
        b.fail([failed], permanent=True)
        op.decide("cancel", [cancelled.public_id])
        assert b.complete([cancelled]) == ["refused"]
        # The last is overdue at once, so that a reaper has something to do.
        held = work(1) + work(1, start=False) + work(1, seconds=0.05)
        fences = fence_every_way(b, "b", WORD)
        op.call(
            "create_token_v1", tenant="b", name=f"{WORD}-token", hash=b"t" * 32, scopes=["read"],
            queues=None, expires_at="infinity", actor=WORD,
        )  # fmt: skip
    numbers = {
        state: (epoch, number)
        for state, epoch, number in shared.rows(
            "select state::text, epoch, number from helix.fence where tenant = 'b'"
        )
    }
    places = shared.rows("select distinct place from helix.standing where tenant = 'b'")
    assert {place for (place,) in places} == {"ready", "waiting", "active", "outcome"}
    request = shared.value("select request from helix.active where batch = %s", held[0].batch)
    return shared, Loot(ids, held, request, fences, numbers)


@pytest.fixture
def wall(walled):
    """For tests that only read."""
    return walled[0]


@pytest.fixture
def loot(walled):
    return walled[1]


@pytest.fixture
def copied(server, walled):
    """For tests that would write, if they could."""
    with copy_of(walled[0].name, server, "helix_walls_copy") as database:
        yield database


@contextmanager
def as_intruder(database, who):
    role, words = INTRUDERS[who]
    with database.connect(role, autocommit=False) as connection:
        for word in words:
            connection.execute(word.encode())
        connection.commit()
        yield connection


def columns(database, role):
    """What `role` may read: every relation of the engine with the columns it was granted."""
    return database.rows(
        "select c.relname, coalesce(array_agg(a.attname::text order by a.attnum) filter (where "
        "has_column_privilege(%s, c.oid, a.attnum, 'select')), '{}') "
        "from pg_class c join pg_attribute a on a.attrelid = c.oid and a.attnum > 0 "
        "and not a.attisdropped where c.relnamespace = 'helix'::regnamespace "
        "and c.relkind in ('r', 'p', 'v', 'm', 'f') group by c.relname order by 1",
        role,
    )


@pytest.mark.parametrize("who", INTRUDERS)
def test_no_row_of_another_tenant_can_be_read(wall, who):
    role, _ = INTRUDERS[who]
    readable = 0
    with as_intruder(wall, who) as connection:
        for table, granted in columns(wall, role):
            if not granted:
                with pytest.raises(psycopg.errors.InsufficientPrivilege), connection.transaction():
                    connection.execute(sql.SQL("table {}").format(sql.Identifier("helix", table)))
                continue
            readable += 1
            # As text: nothing is lost on the way, whatever the type.
            query = sql.SQL("select {}, row({})::text from {}").format(
                sql.SQL("tenant" if "tenant" in granted else "null"),
                sql.SQL(", ").join(map(sql.Identifier, granted)),
                sql.Identifier("helix", table),
            )
            for tenant, text in connection.execute(query):
                assert tenant != "b", table
                assert WORD not in text, table
    assert readable >= 10


@pytest.mark.parametrize("role", ["app_a", "app_b", "stranger", "service", "operator", "pool"])
def test_secrets_and_partitions_are_closed_to_all(wall, role):
    partitions = [name for name, _ in columns(wall, role) if name.startswith("event_")]
    assert partitions
    with wall.connect(role) as connection:
        for query in (
            "select nonce from helix.active",
            "select * from helix.active",
            "select active from helix.active",
            "select inner_pad from helix.secret",
            "select 1 from helix.secret",
            "select worker from helix.request",
            "select nonce from helix.fence",
            "select hash from helix.api_token",
            "select * from helix.fence",
            *(f"table helix.{name}" for name in partitions),
        ):
            with pytest.raises(psycopg.errors.InsufficientPrivilege):
                connection.execute(query.encode())


def test_a_tenant_reads_what_is_its_own(wall):
    """The walls have a door: without it, everything above would be empty."""
    for role, words, tenants in (
        ("app_a", [], {"a"}),
        ("app_b", [], {"b"}),
        ("service", ["set helix.tenant = 'b'"], {"b"}),
        ("pool", [], {"a", "b"}),
        ("operator", [], {"a", "b"}),
    ):
        with wall.connect(role) as connection:
            for word in words:
                connection.execute(word.encode())
            for table in ("batch", "standing", "event", "identity", "queue"):
                query = sql.SQL("select distinct tenant from {}")
                rows = connection.execute(query.format(sql.Identifier("helix", table)))
                assert {tenant for (tenant,) in rows} == tenants, (role, words, table)


def test_a_tenant_reads_the_classes_of_its_own_queues(wall):
    """Classes are shared rows, but their labels are words of whoever asked first."""
    for role, told in (("app_a", False), ("app_b", True), ("operator", True)):
        with wall.connect(role) as connection:
            rows = connection.execute("select requires from helix.requirement_class").fetchall()
        assert rows, role
        assert (WORD in repr(rows)) is told, role


def test_a_named_tenant_is_forgotten_with_its_transaction(wall):
    with wall.connect("service") as connection:
        with connection.transaction():
            connection.execute("set local helix.tenant = 'a'")
            rows = connection.execute("select distinct tenant from helix.batch").fetchall()
            assert rows == [("a",)]
        assert connection.execute("select count(*) from helix.batch").fetchone() == (0,)


def test_a_whole_table_copied_out_holds_ones_own_only(wall):
    with wall.connect("app_a") as connection, connection.cursor() as cursor:
        for query in ("copy helix.batch to stdout", "copy (table helix.batch) to stdout"):
            with cursor.copy(query.encode()) as copy:
                text = b"".join(copy)
            assert b"mine-1" in text
            assert WORD.encode() not in text


def test_a_talkative_function_is_told_nothing(wall):
    """A condition that costs nothing would run before the policy, if PostgreSQL trusted it."""
    heard = []
    with wall.connect("app_a") as connection:
        connection.add_notice_handler(lambda notice: heard.append(notice.message_primary))
        connection.execute(
            """create function pg_temp.tell(text) returns boolean language plpgsql cost 0.0001 as
               $$ begin raise notice '%', $1; return true; end $$"""
        )
        connection.execute("select 1 from helix.batch where pg_temp.tell(identity)")
        connection.execute("select 1 from helix.event where pg_temp.tell(actor)")
    assert "mine-1" in heard
    assert not any(WORD in text for text in heard)


def tokens(loot, prefix=""):
    return {
        f"{prefix}{name}": [getattr(one, name) for one in loot.held]
        for name in ("batch", "epoch", "nonce", "number")
    }


def fence_token(loot, state):
    epoch, number = loot.fence_numbers[state]
    return {"key": loot.fences[state], "epoch": epoch, "nonce": 7, "number": number}


# How each function is called with what was stolen from b.
CASES = {
    "set_queue_v1": lambda _: {"tenant": "b", "queue": "shared", "actor": "eve", "paused": True},
    "queue_requires_v1": lambda _: {"tenant": "b", "queue": f"{WORD}-queue"},
    "queue_counts_v1": lambda _: {"tenant": None, "queue": None},
    "pending_v1": lambda _: {"tenant": "b", "queue": None, "bound": 10},
    "bind_v1": lambda _: {"role": "app_a", "tenant": "b"},
    "unbind_v1": lambda _: {"role": "app_b", "tenant": "b"},
    "submit_v1": lambda _: {
        "tenant": "b", "queue": "shared", "actor": "eve", "profile": "text-v1",
        "identity": [f"{WORD}-1", f"{WORD}-2", "new"], "payload": ["{}", "{}", "{}"],
    },
    "note_refused_v1": lambda _: {
        "tenant": "b", "queue": "shared", "actor": "eve", "raw": [b"x"], "why": ["x"],
    },
    "hello_v1": lambda _: {"worker": f"{WORD}-worker", "free": '{"gpus":8}'},
    "wait_v1": lambda _: {"worker": f"{WORD}-worker", "queues": ["shared"], "seconds": 60},
    "claim_v1": lambda loot: {
        "worker": f"{WORD}-worker", "request": loot.request,
        "queues": ["shared", f"{WORD}-queue", f"{WORD}-paused"], "count": 100,
        "free": f'{{"gpus":8,"labels":{{"{WORD}":"1"}}}}', "start": True,
        **tokens(loot, "done_"), "done_outcome": ["completed"] * 3, "done_result": ["1"] * 3,
    },
    "start_v1": lambda loot: {"worker": f"{WORD}-worker", **tokens(loot)},
    "renew_v1": lambda loot: {"worker": f"{WORD}-worker", **tokens(loot)},
    "settle_v1": lambda loot: {
        "worker": f"{WORD}-worker", **tokens(loot), "outcome": ["completed", "failed", "failed"],
    },
    "release_v1": lambda loot: {"worker": f"{WORD}-worker", **tokens(loot)},
    "reap_v1": lambda _: {"actor": "eve"},
    "promote_v1": lambda _: {},
    "cancel_v1": lambda loot: {"ids": loot.ids, "actor": "eve", "detail": "x"},
    "retry_v1": lambda loot: {"ids": loot.ids, "actor": "eve", "detail": "x"},
    "erase_v1": lambda loot: {"ids": loot.ids, "actor": "eve", "detail": "x"},
    "retire_v1": lambda _: {
        "tenant": "b", "queue": "shared", "state": "COMPLETED", "before": "infinity",
    },
    "recover_v1": lambda _: {"actor": "eve", "detail": "x"},
    "rotate_secret_v1": lambda _: {},
    "claim_fence_v1": lambda _: {
        "tenant": "b", "name": f"{WORD}-name", "identity": f"{WORD}-sealed", "request": "{}",
        "actor": "eve", "nonce": 1, "start": True, "lease_seconds": 60, "quiet_seconds": 60,
    },
    "foresee_fence_v1": lambda _: {
        "tenant": "b", "name": f"{WORD}-name", "identity": f"{WORD}-sealed", "request": "{}",
    },
    "seal_fence_v1": lambda loot: {
        **fence_token(loot, "EFFECT_STARTED"), "actor": "eve", "effect": "e", "form": "json",
        "answer": b"1", "omitted": False, "answer_seconds": 1, "tombstone_seconds": 1,
    },
    "step_fence_v1": lambda loot: {
        **fence_token(loot, "EFFECT_STARTED"), "to": "IN_DOUBT", "actor": "eve", "detail": "x",
    },
    "renew_fences_v1": lambda loot: {
        name: [value] for name, value in fence_token(loot, "EFFECT_STARTED").items()
    },
    "probe_fence_v1": lambda loot: {
        "key": loot.fences["IN_DOUBT"], "version": 2, "found": "applied", "actor": "eve",
        "nonce": 1, "lease_seconds": 60, "quiet_seconds": 60, "form": "json", "answer": b"1",
    },
    "resolve_fence_v1": lambda loot: {
        "key": loot.fences["IN_DOUBT"], "version": 2, "applied": False, "actor": "eve",
        "reason": "x",
    },
    "resolve_by_token_v1": lambda loot: {
        "hash": b"x" * 32, "key": loot.fences["IN_DOUBT"], "version": 2, "applied": False,
        "reason": "x",
    },
    "tend_fences_v1": lambda _: {"actor": "eve"},
    "take_back_v1": lambda loot: {"ids": loot.ids, "actor": "eve", "detail": "x"},
    "create_token_v1": lambda _: {
        "tenant": "b", "name": "eve", "hash": b"e" * 32, "scopes": ["admin"], "queues": None,
        "expires_at": "infinity", "actor": "eve",
    },
    "rotate_token_v1": lambda _: {
        "tenant": "b", "name": f"{WORD}-token", "hash": b"e" * 32, "expires_at": "infinity",
        "overlap_seconds": 60, "actor": "eve",
    },
    "revoke_token_v1": lambda _: {
        "tenant": "b", "name": f"{WORD}-token", "actor": "eve", "reason": "x",
    },
    # Who has a token's hash has the token; an intruder has not.
    "authenticate_v1": lambda _: {"hash": b"x" * 32},
    "assume_v1": lambda _: {"hash": b"x" * 32},
    "offer_login_v1": lambda _: {
        "tenant": "b", "hash": b"e" * 32, "scopes": ["admin"], "seconds": 60, "token_seconds": 60,
        "actor": "eve",
    },
    "redeem_login_v1": lambda _: {"hash": b"x" * 32, "token_hash": b"e" * 32},
    "tend_v1": lambda _: {"actor": "eve"},
    "last_batch_v1": lambda _: {},
    # Helpers that clients may call; they read tables under the caller's own policies.
    "locate": lambda loot: {"ids": loot.ids},
    "queues_of": lambda _: {"tenant": "b", "queue": None},
    "state_of": lambda loot: {"batch": loot.held[0].batch},
    "session_tenants": lambda _: {},
}  # fmt: skip

# Helpers that compute from their arguments and read nothing.
PURE = {
    "derive_key", "event_hash", "framed", "framed_identity", "framed_parts", "key_within",
    "key_text", "public_id", "derive_fence_key", "fence_receipt", "ending",
}  # fmt: skip

# These change nothing of b's even when b calls them like this, or are the operators' alone.
IDLE = {
    "bind_v1", "unbind_v1", "recover_v1", "rotate_secret_v1", "promote_v1", "hello_v1", "wait_v1",
    "locate", "state_of", "session_tenants", "queue_requires_v1", "queue_counts_v1", "pending_v1",
    "queues_of",
    "resolve_fence_v1", "tend_fences_v1", "foresee_fence_v1", "authenticate_v1", "assume_v1",
    "resolve_by_token_v1", "redeem_login_v1", "tend_v1", "last_batch_v1",
}  # fmt: skip

# A login that serves all tenants does the duties for all; what they do, time alone decides.
FOR_ALL = {"tend_v1"}


def test_every_function_a_client_may_call_has_a_case(wall):
    names = wall.rows(
        "select p.proname from pg_proc p where p.pronamespace = 'helix'::regnamespace "
        "and (right(p.proname, 3) = '_v1' or has_function_privilege('app_a', p.oid, 'execute'))"
    )
    assert {name for (name,) in names} == set(CASES) | PURE


def rows_of_b(connection):
    """A digest of everything that is tenant b's, table by table; asked as a superuser."""
    tables = connection.execute(
        "select c.relname from pg_class c join pg_attribute a on a.attrelid = c.oid "
        "where c.relnamespace = 'helix'::regnamespace and c.relkind in ('r', 'p') "
        "and a.attname = 'tenant' and not c.relispartition order by 1"
    ).fetchall()
    one = "select {}, md5(string_agg(t::text, '|' order by t::text)) from {} t where tenant = 'b'"
    query = sql.SQL(" union all ").join(
        sql.SQL(one).format(sql.Literal(name), sql.Identifier("helix", name)) for (name,) in tables
    )
    return dict(connection.execute(query).fetchall())


def told_by(connection, name, arguments):
    """Everything that comes back from a call: its rows, or its refusal for want of a right."""
    try:
        with connection.transaction():
            return repr(Lab(connection).call(name, **arguments))
    except psycopg.errors.InsufficientPrivilege as refused:
        return repr([refused.diag.message_primary, refused.diag.message_detail])


@pytest.mark.parametrize("who", INTRUDERS)
def test_no_function_touches_or_tells_of_another_tenant(copied, loot, who):
    with copied.connect("helix_bootstrap") as watcher, as_intruder(copied, who) as connection:
        before = rows_of_b(watcher)
        for name, arguments in CASES.items():
            assert WORD not in told_by(connection, name, arguments(loot)), name
            if name in FOR_ALL and INTRUDERS[who][0] == "service":
                before = rows_of_b(watcher)
            assert rows_of_b(watcher) == before, name
    with copied.connect("helix_migrator") as connection:
        wrong = {result.name for result in check(connection) if not result.holds}
    # The lease that is overdue from the start is not the intruder's doing.
    assert wrong <= {"lease_stuck"}


# What a tenant's own programs may not do either.
GIVEN_BY_OPERATORS = {"create_token_v1", "rotate_token_v1", "revoke_token_v1", "offer_login_v1"}


@pytest.mark.parametrize("name", [name for name in CASES if name not in IDLE])
def test_the_same_call_by_whoever_may_does_change_something(copied, loot, name):
    """What is refused above is not refused for being malformed."""
    with copied.connect("helix_bootstrap") as connection:
        before = rows_of_b(connection)
        caller = "operator" if name in GIVEN_BY_OPERATORS else "app_b"
        connection.execute(f"set session authorization {caller}")
        Lab(connection).call(name, **CASES[name](loot))
        connection.execute("reset session authorization")
        assert rows_of_b(connection) != before


@pytest.mark.parametrize(
    ("role", "words", "tenants"),
    [
        ("app_a", [], {"a"}),
        ("app_b", [], {"b"}),
        ("pool", [], {"a", "b"}),
        ("operator", [], {"a", "b"}),
        ("service", [], set()),
        ("service", ["set helix.tenant = ''"], set()),
        ("service", ["set helix.tenant = 'b'"], {"b"}),
        ("stranger", [], set()),
        ("stranger", ["set helix.tenant = 'b'"], set()),
        ("app_a", ["set helix.tenant = 'b'"], set()),
        ("app_a", ["set helix.scope = '*'"], {"a"}),
    ],
)
def test_a_claim_crosses_tenants_only_as_bound(database, role, words, tenants):
    with lab(database) as pool:
        for tenant in ("a", "b"):
            pool.queue(tenant, "shared")
            pool.submit(*(f"s{n}" for n in range(5)), tenant=tenant, queue="shared")
    with database.connect(role) as connection:
        for word in words:
            connection.execute(word.encode())
        held = Lab(connection).call(
            "claim_v1", "tenant", worker="w", request=uuid.uuid4(), queues=["shared"], count=100
        )
    assert {tenant for (tenant,) in held} == tenants
    assert len(held) == 5 * len(tenants)


def test_a_role_bound_to_two_tenants_has_both_and_no_third(database):
    with lab(database, "operator") as operator, lab(database) as pool, lab(database, "app_a") as a:
        operator.call("bind_v1", role="app_a", tenant="b")
        for tenant in ("a", "b", "c"):
            pool.queue(tenant)
            pool.submit("s1", tenant=tenant)
        assert sorted(a.rows("select tenant from helix.batch")) == [("a",), ("b",)]
        with a.connection.transaction():
            a.rows("select set_config('helix.tenant', 'b', true)")
            assert a.rows("select tenant from helix.batch") == [("b",)]
        operator.call("unbind_v1", role="app_a", tenant="b")
        assert a.rows("select tenant from helix.batch") == [("a",)]
