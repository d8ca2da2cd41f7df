"""Client logins call functions: no privilege on tables, and reads return the rows of the caller."""

from __future__ import annotations

from collections import Counter

import psycopg
import pytest
from psycopg import sql

from tests.support.lab import Lab, new_database

CLIENTS = ["pool", "app_a", "service", "stranger"]
RELATIONS = """
    select c.relname, c.relkind::text from pg_class c
    where c.relnamespace = 'helix'::regnamespace and c.relkind in ('r', 'p', 'v', 'm', 'f', 'S')
    order by 1"""
RIGHTS = "select,insert,update,delete,truncate,references,trigger"


@pytest.fixture(scope="module")
def database(server, template, pooler):
    yield from new_database(server, template, pooler)


@pytest.fixture(scope="module")
def both(database):
    """Tenants a and b with a batch in every state, of one worker and in claims of both at once."""
    with Lab(database, q="shared") as lab:
        for tenant in ("a", "b"):
            lab.queue(tenant=tenant, max_attempts=1)
            lab.submit_many(6, prefix=f"{tenant}-", tenant=tenant)
        first, second, *rest = lab.claim(12)
        lab.fail(first, second, detail="torn")
        lab.complete(*rest[:6])
        lab.complete(first)  # refused, and kept
        lab.submit("a-00000", payload={"other": 1})  # a conflict, and kept
        lab.submit("b-00000", tenant="b", payload={"other": 1})
    return database


@pytest.mark.parametrize("role", CLIENTS)
def test_client_has_no_privilege_on_any_table(database, role):
    relations = database.rows(RELATIONS)
    assert {"batch", "work", "entry", "event", "overview", "secret"} <= {n for n, _ in relations}
    found = []
    for name, kind in relations:
        if kind == "S":
            query = "select has_sequence_privilege(%s, %s::regclass, 'usage,select,update')"
        else:
            query = (
                f"select has_table_privilege(%(role)s, %(name)s::regclass, '{RIGHTS}') or "
                "has_any_column_privilege(%(role)s, %(name)s::regclass, "
                "'select,insert,update,references')"
            )
        args = (role, f"helix.{name}") if kind == "S" else {"role": role, "name": f"helix.{name}"}
        with database.connect("helix_bootstrap") as connection:
            [(may,)] = connection.execute(query.encode(), args)
        if may:
            found.append(name)
    assert found == []


@pytest.mark.parametrize("options", ["", "(analyze)", "(analyze, buffers, costs off)"])
def test_client_cannot_explain_a_statement_on_a_table(both, options):
    """The row counts of a plan would tell how many rows of other tenants were filtered out."""
    names = [name for name, kind in both.rows(RELATIONS) if kind != "S"]
    with both.connect("app_a") as connection:
        for name in names:
            query = sql.SQL("explain {} select 1 from {}").format(
                sql.SQL(options), sql.Identifier("helix", name)
            )
            with pytest.raises(psycopg.errors.InsufficientPrivilege):
                connection.execute(query)


def test_plan_of_a_read_shows_nothing_of_its_tables(both):
    with both.connect("app_a") as connection:
        lines = connection.execute(
            "explain (analyze, verbose) select * from helix.read_batches_v1('all')"
        ).fetchall()
    plan = "\n".join(line for (line,) in lines)
    assert "Function Scan on helix.read_batches_v1" in plan
    assert "Removed by Filter" not in plan
    assert "Seq Scan" not in plan
    assert "Index" not in plan


# A read whose author forgot every condition.
CARELESS = """
create function helix.read_everything() returns table (source text, tenant text)
language sql stable security definer set search_path = pg_catalog, pg_temp as $$
  select 'queue', q.tenant from helix.queue q
  union all select 'batch', q.tenant from helix.batch b join helix.queue q on q.id = b.queue
  union all select 'work', q.tenant from helix.work w join helix.queue q on q.id = w.queue
  union all select 'ended', q.tenant from helix.ended e join helix.queue q on q.id = e.queue
  union all select 'result', q.tenant from helix.result r join helix.queue q on q.id = r.queue
  union all select 'overview', v.tenant from helix.overview v
  union all select 'event', v.tenant from helix.event v
  union all select 'refusal', r.tenant from helix.refusal r
  union all select 'decision', d.tenant from helix.decision d
  union all select 'answer_count', c.tenant from helix.answer_count c
  -- Without the join that names the tenant: by the number of rows alone.
  union all select 'bare batch', null from helix.batch
  union all select 'bare work', null from helix.work
  union all select 'bare ended', null from helix.ended
  union all select 'bare result', null from helix.result
$$;
alter function helix.read_everything owner to helix_reader;
grant execute on function helix.read_everything to helix_read;
"""


def test_read_without_a_condition_returns_the_rows_of_the_caller(both):
    """Row-level security restricts helix_reader, whatever a function forgets."""
    with both.connect("helix_bootstrap") as connection:
        connection.execute(CARELESS)
    try:
        everything = both.rows("select source, tenant from helix.read_everything()", role="pool")
        named = {"queue", "batch", "work", "ended", "result", "overview", "event", "decision"}
        assert {(item, tenant) for item in named for tenant in ("a", "b")} <= set(everything)
        for role, words, tenants in (
            ("app_a", "select", {"a"}),
            ("app_b", "select", {"b"}),
            ("service", "set helix.tenant = 'b'", {"b"}),
            ("service", "set helix.tenant = '*'", set()),
            ("stranger", "set helix.tenant = 'a'", set()),
        ):
            with both.connect(role) as connection:
                connection.execute(words.encode())
                found = connection.execute("select * from helix.read_everything()").fetchall()
            assert {tenant for _, tenant in found if tenant} == tenants
            named = [row for row in everything if row[1] in tenants]
            assert sorted(row for row in found if row[1]) == sorted(named)
            counts = Counter(source for source, _ in found)
            for table in ("batch", "work", "ended", "result"):
                assert counts[f"bare {table}"] == counts[table] == named.count((table, *tenants))
    finally:
        with both.connect("helix_bootstrap") as connection:
            connection.execute("drop function helix.read_everything()")


def test_duties_do_not_reveal_the_load_of_other_tenants(both):
    """Duties are for all tenants: rows, workers and times of them are not for the login of one."""
    answer = "select actor, did, total, seconds from helix.read_duties_v1()"
    assert set(both.rows(answer, role="app_a")) == {(None, 0, 0, 0.0)}
    assert {actor for actor, *_ in both.rows(answer, role="pool")} > {None}
    assert {actor for actor, *_ in both.rows(answer, role="service")} > {None}
