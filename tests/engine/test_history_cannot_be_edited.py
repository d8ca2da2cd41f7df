"""G3: no DML by hand, whoever types it and whatever it is, changes anything without its event.

Tables come from the catalog, so a new one cannot be forgotten. DDL can remove a guard; that this
shows is what tests/operate/test_check.py is about.
"""

from __future__ import annotations

import itertools
from contextlib import contextmanager

import psycopg
import pytest
from psycopg import sql

from helixqueue.ledger.replay import replay
from helixqueue.operate.check import check
from helixqueue.states import ARROWS, State
from tests.ledger.traffic import lab

# Who types: the login role, and what is said before the statement.
HANDS = {
    "the owner of the database": ("helix_migrator", []),
    "the owner of the tables": ("helix_migrator", ["set role helix_owner"]),
    "the owner in the engine's clothes": ("helix_migrator", ["set role helix_engine"]),
    "a superuser": ("helix_bootstrap", []),
    "a superuser who replicates": (
        "helix_bootstrap",
        ["set session_replication_role = replica"],
    ),
    "a superuser in the engine's clothes": ("helix_bootstrap", ["set role helix_engine"]),
    "a superuser who says he is the engine": (
        "helix_bootstrap",
        ["set session authorization helix_engine"],
    ),
    "an operator": ("operator", []),
    "a client": ("app_a", []),
}

# The guards' own refusals, and PostgreSQL's where the role may not even try.
REFUSED = {"QH002", "QH003", "42501"}

STATEMENTS = {
    "insert": "insert into {t} default values",
    "insert what is there": "insert into {t} ({all}) overriding system value select {all} from {t}",
    "insert nothing": "insert into {t} ({all}) overriding system value "
    "select {all} from {t} where false",
    "upsert": "insert into {t} ({all}) overriding system value "
    "select {all} from {t} on conflict do nothing",
    "update": "update {t} set {c} = {c}",
    "update nothing": "update {t} set {c} = {c} where false",
    "update from": "update {t} set {c} = {t}.{c} from (select 1) other",
    "delete": "delete from {t}",
    "delete nothing": "delete from {t} where false",
    "truncate": "truncate {t}",
    "truncate cascade": "truncate {t} cascade",
    "copy": "copy {t} from stdin",
    "merge insert": "merge into {t} using (select 1) s on false "
    "when not matched then insert default values",
    "merge update": "merge into {t} using (select 1) s on true "
    "when matched then update set {c} = {c}",
    "merge delete": "merge into {t} using (select 1) s on true when matched then delete",
    "within a query": "with gone as (delete from {t} returning *) select count(*) from gone",
    "within a block": "do $$ begin delete from {t}; end $$",
    "within dynamic SQL": "do $$ begin execute 'delete from {t}'; end $$",
    # The guard once looked for the engine's name in the text of the call stack.
    "under a false name": "do $$ begin execute E'delete from {t} /*\\n"
    "PL/pgSQL function helix.retire_v1(text) line 1 at SQL statement */'; end $$",
    "by prepared statement": "deallocate all; prepare by_hand as delete from {t}; execute by_hand",
}


def tables(database):
    """Every table and partition of the engine, with its columns; the first takes any update."""
    found = database.rows(
        "select c.relname, "
        "(select array_agg(a.attname::text order by a.attidentity <> '', a.attnum) "
        "from pg_attribute a where a.attrelid = c.oid "
        "and a.attnum > 0 and not a.attisdropped and a.attgenerated = '')"
        " from pg_class c where c.relnamespace = 'helix'::regnamespace "
        "and c.relkind in ('r', 'p', 'f') order by 1"
    )
    assert len(found) > 20
    assert any(name.startswith("event_") for name, _ in found)
    return found


@contextmanager
def typing(database, hand):
    role, words = HANDS[hand]
    with database.connect(role) as connection:
        for word in words:
            connection.execute(word.encode())
        yield connection


def typed(what, table, columns):
    named = STATEMENTS[what].replace("{t}", f"helix.{table}").replace("{c}", columns[0])
    return named.replace("{all}", ", ".join(columns))


def attempt(connection, statement):
    """The SQLSTATE of a statement that is rolled back in any case; None when it was let through."""
    try:
        with connection.transaction(force_rollback=True):
            if statement.startswith("copy"):
                with connection.cursor().copy(statement.encode()) as copy:
                    copy.write(b"")
            else:
                connection.execute(statement.encode())
    except psycopg.Error as error:
        return error.sqlstate
    return None


CONTENT = "select md5(coalesce(string_agg(t::text, '|' order by t::text), '')) from {} t"


def history(database):
    """A digest of every table: what was written, byte by byte."""
    with database.connect("helix_bootstrap") as connection:
        return {
            name: connection.execute(
                sql.SQL(CONTENT).format(sql.Identifier("helix", name))
            ).fetchone()
            for name, _ in tables(database)
        }


def assert_whole(database):
    with database.connect("helix_migrator") as connection:
        assert [result for result in check(connection) if not result.holds] == []
        assert replay(connection).violations == []


@pytest.mark.parametrize("hand", HANDS)
def test_no_statement_typed_by_hand_is_let_through(busy, hand):
    before = history(busy)
    wrong = []
    with typing(busy, hand) as connection:
        for (table, columns), what in itertools.product(tables(busy), STATEMENTS):
            state = attempt(connection, typed(what, table, columns))
            # PostgreSQL itself knows no COPY into a table with policies, except for superusers.
            refused = REFUSED | {"0A000"} if what == "copy" else REFUSED
            if state not in refused:
                wrong.append((table, what, state))
    assert wrong == []
    assert history(busy) == before
    assert_whole(busy)


@pytest.mark.parametrize("hand", [hand for hand in HANDS if hand.startswith("a superuser")])
def test_every_table_has_its_own_guard(database, hand):
    """A superuser passes every privilege and policy, so here it is the guard that refuses."""
    with typing(database, hand) as connection:
        for table, columns in tables(database):
            for what in ("insert", "update nothing", "delete nothing", "truncate"):
                state = attempt(connection, typed(what, table, columns))
                if "engine" in hand and state == "42501":
                    continue  # the engine's role may not write arrows and secrets, nor truncate
                ledger = table in {"event", "fence_event"} or table.startswith("event_")
                assert state == ("QH003" if ledger else "QH002"), (what, table)


def test_operators_of_ones_own_do_not_fool_a_guard(busy):
    """A guard that looked up `=` along the caller's search path would believe anything."""
    before = history(busy)
    with busy.connect("helix_bootstrap") as connection:
        connection.execute("create schema forger authorization helix_migrator")
    with busy.connect("helix_migrator") as connection:
        for left, right in (("name", "name"), ("name", "text"), ("text", "text"), ("int", "int")):
            for sign in ("=", "<>", ">", ">="):
                names = {"=": "eq", "<>": "ne", ">": "gt", ">=": "ge"}
                function = f"forger.{names[sign]}_{left}_{right}"
                connection.execute(
                    f"create function {function}({left}, {right}) returns boolean "
                    "language sql immutable as 'select true';"
                    f"create operator forger.{sign} (function = {function}, "
                    f"leftarg = {left}, rightarg = {right})".encode()
                )
        for name, arguments, answer in (
            ("strpos", "text, text", "1"),
            ("pg_trigger_depth", "", "9"),
            ("current_setting", "text", "1"),
            ("current_setting", "text, boolean", "1"),
        ):
            kind = "text" if name == "current_setting" else "int"
            connection.execute(
                f"create function forger.{name}({arguments}) returns {kind} "
                f"language sql immutable as $$ select {answer}::{kind} $$".encode()
            )
        connection.execute("set search_path = forger, pg_catalog")
        for role in ("helix_migrator", "helix_owner"):
            connection.execute(f"set role {role}".encode())
            for table, columns in tables(busy):
                for what in ("insert", "update", "delete", "truncate"):
                    state = attempt(connection, typed(what, table, columns))
                    assert state in REFUSED, (what, table, role)
    assert history(busy) == before


def test_a_trigger_of_ones_own_does_not_write_events(database):
    """The ledger takes events at trigger depth only; any trigger would do, were that all."""
    with lab(database) as a:
        a.queue()
        a.submit("s1")
    for role, words in HANDS.values():
        if role not in {"helix_migrator", "helix_bootstrap"}:
            continue
        with database.connect(role, autocommit=False) as connection:
            for word in words:
                connection.execute(word.encode())
            connection.execute(
                """
                create temp table mine (n int);
                create function pg_temp.forge() returns trigger language plpgsql as $$
                begin
                  insert into helix.event (batch, version, tenant, from_state, to_state, at,
                                           attempt, actor, reason, late, hash)
                  values (1, 2, 'a', 'PENDING', 'CANCELLED', now(),
                          0, 'eve', 'cancelled', false, '');
                  return null;
                end $$;
                create trigger forge after insert on mine for each statement
                execute function pg_temp.forge();
                alter table mine enable always trigger forge;
                """
            )
            with pytest.raises(psycopg.Error) as refused:
                connection.execute("insert into mine values (1)")
            assert refused.value.sqlstate in REFUSED, words
            connection.rollback()
    assert_whole(database)


# What an engine function could do if it were wrong: move a batch along an arrow that is not there.
MOVE = """
create function helix.test_move(
  p_batch bigint, p_from helix.state, p_to helix.state, p_steps integer
) returns void
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
declare
  v_was record;
  v_now helix.event;
begin
  perform helix.enter();
  select * into v_now from helix.event e where e.batch = p_batch order by e.version desc limit 1;
  select coalesce(r.lane, a.lane, o.lane) as lane into v_was
  from (select 1) one
  left join helix.ready r on r.batch = p_batch
  left join helix.active a on a.batch = p_batch
  left join helix.outcome o on o.batch = p_batch;
  delete from helix.ready where batch = p_batch;
  delete from helix.active where batch = p_batch;
  delete from helix.outcome where batch = p_batch;
  if p_to = 'PENDING' then
    insert into helix.ready (batch, tenant, version, attempt, actor, reason, lane, turn)
    values (p_batch, 'a', v_now.version + p_steps, 1, 'eve', 'lost', v_was.lane, 1);
  elsif p_to in ('ASSIGNED', 'RUNNING') then
    insert into helix.active (batch, tenant, state, version, attempt, epoch, number, actor, reason,
                              nonce, worker, deadline, lane, queue, lease_seconds, request, turn)
    values (p_batch, 'a', p_to, v_now.version + p_steps, 1, 1, 1, 'eve', 'claimed', 1, 'eve',
            'infinity', v_was.lane, 'q', 60, gen_random_uuid(), 1);
  else
    insert into helix.outcome (batch, tenant, state, ending, version, attempt, actor, reason, lane,
                               queue)
    values (p_batch, 'a', p_to, helix.ending(p_to), v_now.version + p_steps, 1, 'eve', 'completed',
            v_was.lane, 'q');
  end if;
end
$$;
alter function helix.test_move owner to helix_engine;
"""


@pytest.fixture
def one_of_each(database):
    """A batch in every state."""
    with lab(database) as a, lab(database, "operator") as operator:
        a.queue()
        a.submit("s1", "s2", "s3", "s4", "s5", "s6")
        failed, completed, cancelled, _ = held = a.claim(4)
        a.fail([failed], permanent=True)
        a.complete([completed])
        operator.decide("cancel", [cancelled.public_id])
        [assigned] = a.claim(1, start=False)
        found = dict(a.rows("select state::text, min(batch) from helix.standing group by 1"))
    assert set(found) == set(State)
    assert found[State.RUNNING] == held[3].batch
    assert found[State.ASSIGNED] == assigned.batch
    with database.connect("helix_bootstrap") as connection:
        connection.execute(MOVE.encode())
    return found


ILLEGAL = [pair for pair in itertools.product(State, State) if pair not in ARROWS]


@pytest.mark.parametrize("steps", [0, 1, 2])
def test_no_function_takes_an_arrow_that_does_not_exist(database, one_of_each, steps):
    """With the version of the last event, the next, and one too far: all are refused."""
    with database.connect("helix_bootstrap") as connection:
        for before, after in ILLEGAL:
            if before == after and steps == 0:
                continue  # nothing changes: what a renewal or a promotion does
            if (before, after, steps) == (State.PENDING, State.RUNNING, 2):
                continue  # a claim that starts at once: two arrows, two events
            with pytest.raises(psycopg.Error) as refused:
                connection.execute(
                    "select helix.test_move(%s, %s, %s, %s)",
                    (one_of_each[before], before, after, steps),
                )
            assert refused.value.sqlstate == "QH001", (before, after)
        connection.execute("drop function helix.test_move")
    assert_whole(database)


def test_no_function_skips_or_repeats_a_version(database, one_of_each):
    with database.connect("helix_bootstrap") as connection:
        for before, after in ARROWS:
            for steps in (-1, 0, 2, 3):
                if before is None or (after is State.ASSIGNED and steps == 2):
                    continue
                with pytest.raises(psycopg.Error) as refused:
                    connection.execute(
                        "select helix.test_move(%s, %s, %s, %s)",
                        (one_of_each[before], before, after, steps),
                    )
                # No such arrow; or, back to the first version, the ledger has it already.
                assert refused.value.sqlstate in {"QH001", "23505"}, (before, after, steps)
        connection.execute("drop function helix.test_move")
    assert_whole(database)


def test_a_legal_arrow_by_a_new_function_leaves_its_event(database, one_of_each):
    """The event comes from the trigger, not from the care of whoever writes the function."""
    batch = one_of_each[State.RUNNING]
    with database.connect("helix_bootstrap") as connection:
        connection.execute("select helix.test_move(%s, 'RUNNING', 'COMPLETED', 1)", (batch,))
        connection.execute("drop function helix.test_move")
    last = database.rows(
        "select from_state::text, to_state::text, actor from helix.event where batch = %s "
        "order by version desc limit 1",
        batch,
    )
    assert last == [("RUNNING", "COMPLETED", "eve")]


def test_a_whole_transaction_goes_or_stays_with_its_event(database):
    """An event without its state change would be as false as a change without its event."""
    with lab(database) as a:
        a.queue()
        a.submit("s1")
        [held] = a.claim()
        with a.connection.transaction(force_rollback=True):
            assert a.complete([held]) == ["ok"]
        assert a.rows("select state::text from helix.standing") == [("RUNNING",)]
        assert a.rows("select max(version) from helix.event") == [(3,)]
    assert_whole(database)
