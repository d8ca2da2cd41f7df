"""G3: no DML by hand, whoever types it and whatever it is, changes anything without its entry.

Tables come from the catalog, so a new one cannot be forgotten. DDL can remove a guard; that this
shows is what tests/operate/test_check.py is about. What a wrong function of the engine could do is
in test_step_guards.py.
"""

from __future__ import annotations

import itertools
from contextlib import contextmanager

import psycopg
import pytest
from psycopg import sql

from helixqueue.ledger.replay import replay
from helixqueue.operate.check import check
from tests.support.ledger_traffic import sql_client

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
    "PL/pgSQL function helix.delete_fences(integer) line 1 at SQL statement */'; end $$",
    "update under a false name": "do $$ begin execute E'update {t} set {c} = {c} /*\\n"
    "PL/pgSQL function helix.archive(integer) line 1 at SQL statement */'; end $$",
    "by prepared statement": "deallocate all; prepare by_hand as delete from {t}; execute by_hand",
}


def tables(database):
    """Every table of the engine, with its columns; the first takes any update."""
    found = database.rows(
        "select c.relname, "
        "(select array_agg(a.attname::text order by a.attidentity <> '', a.attnum) "
        "from pg_attribute a where a.attrelid = c.oid "
        "and a.attnum > 0 and not a.attisdropped and a.attgenerated = '')"
        " from pg_class c where c.relnamespace = 'helix'::regnamespace "
        "and c.relkind in ('r', 'p', 'f') order by 1"
    )
    assert len(found) > 20
    assert {"work", "entry", "result", "ended", "fence_event"} < {name for name, _ in found}
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
def test_manual_dml_is_refused_on_every_table(busy, hand):
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
                ledger = table in {"entry", "fence_event", "ledger_event"}
                assert state == ("QH003" if ledger else "QH002"), (what, table)


def test_user_defined_operators_do_not_bypass_a_guard(busy):
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


def test_user_defined_trigger_cannot_write_entries(database):
    """The ledger takes entries at trigger depth only; any trigger would do, were that all."""
    with sql_client(database) as a:
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
                  insert into helix.entry (id, part, at, position, from_state, to_state, reason,
                  late,
                                           actor, batch, queue, version, attempt, before, hash)
                  values (100, 1, now(), 1, 'PENDING', 'CANCELLED', 'cancelled', false,
                          'eve', '{1}', '{1}', '{2}', '{0}', '{1}', '');
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
