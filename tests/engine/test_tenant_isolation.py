"""G10: no tenant sees or touches another's rows, whatever it asks and whichever function it calls.

Everything that tenant b wrote carries one word. Whatever an intruder can read, in a row, an answer,
an error or a notice, must not contain it; whatever he calls, b's rows stay as they are. Tables and
functions come from the catalog: a new one without a case here fails.
"""

from __future__ import annotations

from contextlib import contextmanager, suppress

import psycopg
import pytest
from psycopg import sql

from helixqueue.operate.check import check
from tests.support.database import copy_of
from tests.support.lab import Lab as Client
from tests.support.lab import wait_until
from tests.support.ledger_traffic import SqlClient, sql_client
from tests.support.tenant_cases import CASES, READS, WORD, tenants_at_work

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


@pytest.fixture(scope="module")
def shared(server, template):
    with copy_of(template, server, "helix_walls") as database:
        yield database


@pytest.fixture(scope="module")
def walled(shared):
    return shared, tenants_at_work(shared)


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
def as_intruder(database, intruder):
    role, words = INTRUDERS[intruder]
    with database.connect(role, autocommit=False) as connection:
        for word in words:
            connection.execute(word.encode())
        connection.commit()
        yield connection


def relations(database):
    """Every table and view of the engine."""
    rows = database.rows(
        "select c.relname from pg_class c where c.relnamespace = 'helix'::regnamespace "
        "and c.relkind in ('r', 'p', 'v', 'm', 'f') order by 1"
    )
    assert len(rows) > 25
    return [name for (name,) in rows]


# --- tables ------------------------------------------------------------------------------------


@pytest.mark.parametrize("role", ["app_a", "app_b", "stranger", "service", "pool"])
def test_application_login_cannot_read_any_table(wall, role):
    """Not even a plan of the query: row counts in it would tell how much others have."""
    with wall.connect(role) as connection:
        for name in relations(wall):
            for query in (
                "table helix.{}",
                "select count(*) from helix.{}",
                "select from helix.{} limit 0",
                "explain (analyze) table helix.{}",
                "copy helix.{} to stdout",
                "copy (table helix.{}) to stdout",
            ):
                with pytest.raises(psycopg.errors.InsufficientPrivilege):
                    connection.execute(query.format(name).encode())
        for sequence in ("batch_id", "entry_id", "fence_number"):
            with pytest.raises(psycopg.errors.InsufficientPrivilege):
                connection.execute(f"select last_value from helix.{sequence}".encode())


def test_plan_of_a_read_reveals_nothing_of_its_rows(wall):
    with wall.connect("app_a") as connection:
        plan = connection.execute(
            "explain (analyze, buffers off, costs off, timing off, summary off)"
            " select * from helix.read_batches_v1('all')"
        ).fetchall()
    [(scan,), *rest] = plan
    assert scan.startswith("Function Scan on read_batches_v1")
    assert not [line for (line,) in rest if "Scan" in line]


SECRETS = [
    "select nonce from helix.work",
    "select * from helix.work",
    "select work from helix.work",
    "select inner_pad from helix.secret",
    "select 1 from helix.secret",
    "select id from helix.request",
    "select worker from helix.request",
    "select nonce from helix.fence",
    "select hash from helix.api_token",
    "select * from helix.fence",
    "table helix.waiter",
]


@pytest.mark.parametrize("role", ["app_a", "app_b", "stranger", "service", "operator", "pool"])
def test_secrets_are_closed_to_all(wall, role):
    with wall.connect(role) as connection:
        for query in SECRETS:
            with pytest.raises(psycopg.errors.InsufficientPrivilege):
                connection.execute(query.encode())


# A function that reads, as a careless author would write it: without a WHERE.
CARELESS = """
create function helix.test_read(p_query text) returns setof text
language plpgsql stable security definer set search_path = pg_catalog, pg_temp as $$
begin
  return query execute p_query;
end
$$;
alter function helix.test_read owner to helix_reader;
grant execute on function helix.test_read to public
"""
# Rows that belong to several tenants or to none, so no policy parts them: functions that read them
# go by the queues of the session (entries, by the view helix.event) or leave columns out.
SHARED = {"entry", "lane", "duty"}


@pytest.fixture
def careless(copied):
    with copied.connect("helix_bootstrap") as connection:
        connection.execute(CARELESS.encode())
    return copied


@pytest.mark.parametrize("intruder", INTRUDERS)
def test_read_that_forgets_its_where_returns_nothing_of_another_tenant(careless, intruder):
    granted = dict(
        careless.rows(
            "select c.relname, array_agg(a.attname::text order by a.attnum) filter (where "
            "has_column_privilege('helix_reader', c.oid, a.attnum, 'select')) "
            "from pg_class c join pg_attribute a on a.attrelid = c.oid and a.attnum > 0 "
            "and not a.attisdropped where c.relnamespace = 'helix'::regnamespace "
            "and c.relkind in ('r', 'p', 'v', 'm', 'f') group by c.relname order by 1"
        )
    )
    read = 0
    with as_intruder(careless, intruder) as connection:
        for table, columns in granted.items():
            if columns is None or table in SHARED:
                continue
            # As text: nothing is lost on the way, whatever the type.
            query = f"select row({', '.join(columns)})::text from helix.{table}"
            for (text,) in connection.execute("select helix.test_read(%s)", (query,)):
                assert WORD not in text, table
            read += 1
            if "tenant" in columns:
                of_b = f"select tenant::text from helix.{table} where tenant = 'b'"
                assert connection.execute("select helix.test_read(%s)", (of_b,)).fetchall() == []
            if {"batch", "queue"} <= set(columns):
                of_b = f"select batch::text from helix.{table} where batch = any (%L)"
                rows = connection.execute(
                    "select helix.test_read(format(%s, %s::bigint[]))", (of_b, of_tenant(careless))
                )
                assert rows.fetchall() == [], table
    assert read > 15


def of_tenant(database, tenant="b"):
    """The internal ids of its batches."""
    rows = database.rows(
        "select b.id from helix.batch b join helix.queue q on q.id = b.queue where q.tenant = %s",
        tenant,
    )
    assert rows
    return [batch for (batch,) in rows]


# --- reads -------------------------------------------------------------------------------------

# What these tell has none of b's words in it, even when b asks.
WORDLESS = {
    "read_ledger_head_v1",  # digests
    "read_batch_states_v1", "read_entries_v1", "read_check_v1", "read_changes_lost_v1",
    "read_fence_holder_v1", "read_fence_lag_v1", "read_duties_v1", "read_tenants_v1",
    "read_bindings_v1", "read_can_serve_v1", "read_every_tenant_v1",
    "read_metrics_v1", "read_findings_v1", "read_rollup_v1", "read_proof_v1",
    "read_worker_days_v1",
    "read_run_outputs_v1",  # the output of b is that of a batch without a run
}  # fmt: skip


@pytest.mark.parametrize("intruder", INTRUDERS)
def test_reads_reveal_nothing_of_another_tenant(wall, loot, intruder):
    secret = {str(item) for item in loot.ids} | {key.hex() for key in loot.keys}
    with as_intruder(wall, intruder) as connection:
        for name, cases in READS.items():
            for arguments in cases(loot):
                answer = read_by(connection, name, arguments)
                assert WORD not in answer, (name, arguments)
                assert not any(item in answer for item in secret), (name, arguments)


@pytest.mark.parametrize("name", sorted(READS.keys() - WORDLESS))
def test_same_read_by_the_tenant_returns_its_rows(wall, loot, name):
    """What is empty above is not empty for being malformed."""
    with wall.connect("app_b") as connection:
        connection.execute("set helix.tenant = 'b'")
        for arguments in READS[name](loot):
            assert WORD in read_by(connection, name, arguments), arguments


def read_by(connection, name, arguments):
    """Everything that comes back from a read; PostgreSQL infers the types of the arguments."""
    query = sql.SQL("select * from {}({})").format(
        sql.Identifier("helix", name),
        sql.SQL(", ").join(
            sql.SQL("{} => {}").format(sql.Identifier(f"p_{argument}"), sql.Placeholder(argument))
            for argument in arguments
        ),
    )
    try:
        with connection.transaction():
            return repr(connection.execute(query, arguments).fetchall())
    except psycopg.errors.InsufficientPrivilege as refused:
        return repr([refused.diag.message_primary, refused.diag.message_detail])


@pytest.mark.parametrize("name", ["read_batch_states_v1", "read_chains_v1", "read_changes_v1"])
def test_unfiltered_read_returns_only_own_batches(wall, loot, name):
    for role, tenant in (("app_a", "a"), ("app_b", "b")):
        with wall.connect(role) as connection:
            [arguments, *_] = READS[name](loot)
            rows = SqlClient(connection).call(name, "batch", **arguments)
        named = {
            batch
            for (batches,) in rows
            for batch in (batches if isinstance(batches, list) else [batches])
        }
        assert named - {None} == set(of_tenant(wall, tenant))


def test_tenant_reads_what_is_its_own(wall):
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
            batches = SqlClient(connection).call(
                "read_batches_v1", "tenant", scan="all", limit=1000
            )
            assert {tenant for (tenant,) in batches} == tenants, (role, words)
            queues = SqlClient(connection).call(
                "read_queues_v1", "(settings).tenant", tenant=None, queue=None
            )
            assert {tenant for (tenant,) in queues} == tenants, (role, words)


def test_operator_reads_the_tables_of_all_tenants(wall):
    with wall.connect("operator") as connection:
        for table in ("event", "queue", "decision", "refusal", "fence_event"):
            query = sql.SQL("select distinct tenant from {}").format(sql.Identifier("helix", table))
            assert "b" in {tenant for (tenant,) in connection.execute(query)}, table
        rows = connection.execute("select requires from helix.requirement_class").fetchall()
    assert WORD in repr(rows)


def test_tenant_reads_the_requirements_of_its_own_queues(wall):
    """Classes are shared rows, but their labels are words of whoever asked first."""
    for role, answer in (("app_a", False), ("app_b", True), ("operator", True)):
        with wall.connect(role) as connection:
            rows = SqlClient(connection).call("read_queues_v1", "settings", tenant=None, queue=None)
        assert rows, role
        assert (WORD in repr(rows)) is answer, role


def test_tenant_setting_ends_with_its_transaction(wall):
    with wall.connect("service") as connection:
        own = SqlClient(connection)
        with connection.transaction():
            connection.execute("set local helix.tenant = 'a'")
            assert own.call("read_batches_v1", "distinct tenant", scan="all") == [("a",)]
        assert own.call("read_batches_v1", "count(tenant)", scan="all") == [(0,)]


def test_function_with_side_output_sees_no_foreign_row(wall):
    """A condition that costs nothing would run before the policy, if PostgreSQL trusted it."""
    heard = []
    with wall.connect("app_a") as connection:
        connection.add_notice_handler(lambda notice: heard.append(notice.message_primary))
        connection.execute(
            """create function pg_temp.tell(text) returns boolean language plpgsql cost 0.0001 as
               $$ begin raise notice '%', $1; return true; end $$"""
        )
        connection.execute(
            "select 1 from helix.read_batches_v1('all') b where pg_temp.tell(b.identity)"
        )
        connection.execute(
            "select 1 from helix.read_changes_v1(0, 0, 0, null, 1::bigint << 61, 1000) c"
            " where pg_temp.tell(c.actor)"
        )
    assert "mine-1" in heard
    assert not any(text and WORD in text for text in heard)


# --- calls -------------------------------------------------------------------------------------


# Helpers that compute from their arguments and read nothing.
PURE = {
    "derive_key", "framed", "framed_identity", "framed_parts", "key_within", "key_text",
    "public_id",
}  # fmt: skip

# These change nothing of b's even when b calls them like this, or are the operators' alone.
IDLE = {
    "bind_v1", "unbind_v1", "recover_v1", "rotate_secret_v1", "promote_v1", "hello_v1", "wait_v1",
    "queue_requires_v1", "resolve_fence_v1", "sweep_fences_v1", "preview_fence_v1",
    "authenticate_v1", "assume_v1", "tenant_key_v1",
    "resolve_by_token_v1", "redeem_login_v1", "end_session_v1", "run_duty_v1", "ledger_hint_key_v1",
    "change_mark_v1", "seal_position_v1", "seal_pages_v1", "seal_witness_v1",
    "seals_v1", "add_seal_v1",
    "set_duty_v1", "knows_group_v1", "stream_groups_v1",
    "output_files_v1", "read_known_outputs_v1", "set_output_root_v1",
    "assume_webhook_v1", "webhook_v1", "end_delivery_v1",
    "withdraw_device_v1",
}  # fmt: skip

# A login that serves all tenants does the duties for all; what they do, time alone decides.
FOR_ALL = {"run_duty_v1"}


def test_every_function_a_client_may_call_has_a_case(wall):
    names = wall.rows(
        "select p.proname from pg_proc p where p.pronamespace = 'helix'::regnamespace "
        "and (right(p.proname, 3) = '_v1' or has_function_privilege('app_a', p.oid, 'execute'))"
    )
    assert {name for (name,) in names} == set(CASES) | set(READS) | PURE
    assert not set(CASES) & set(READS)


# How the rows of tenant b are found in a table that has this column.
MINE = {
    "tenant": "t.tenant = 'b'",
    "queue": "t.queue in (select id from helix.queue where tenant = 'b')",
    "entry": "t.queue && array(select id from helix.queue where tenant = 'b')",
}


def rows_of_b(connection):
    """A digest of everything that is tenant b's, table by table; asked as a superuser."""
    tables = connection.execute(
        "select c.relname::text, min(case when a.attname = 'tenant' then 'tenant' "
        "when a.atttypid = 'int4'::regtype then 'queue' else 'entry' end collate \"C\") "
        "from pg_class c join pg_attribute a on a.attrelid = c.oid "
        "where c.relnamespace = 'helix'::regnamespace and c.relkind in ('r', 'p') "
        "and (a.attname = 'tenant' or a.attname = 'queue' "
        "and a.atttypid in ('int4'::regtype, 'int4[]'::regtype)) group by 1 order by 1"
    ).fetchall()
    assert {"work", "batch", "entry", "result", "ended", "key_limit", "queue", "refusal"} < {
        name for name, _ in tables
    }
    first = "select {}, md5(string_agg(t::text, '|' order by t::text)) from {} t where {}"
    query = sql.SQL(" union all ").join(
        sql.SQL(first).format(sql.Literal(name), sql.Identifier("helix", name), sql.SQL(MINE[kind]))
        for name, kind in tables
    )
    return dict(connection.execute(query).fetchall())


def told_by(connection, name, arguments):
    """Everything that comes back from a call: its rows, or its refusal for want of a right."""
    try:
        with connection.transaction():
            return repr(SqlClient(connection).call(name, **arguments))
    except psycopg.errors.InsufficientPrivilege as refused:
        return repr([refused.diag.message_primary, refused.diag.message_detail])


@pytest.mark.parametrize("intruder", INTRUDERS)
def test_functions_neither_change_nor_reveal_another_tenant(copied, loot, intruder):
    with copied.connect("helix_bootstrap") as watcher, as_intruder(copied, intruder) as connection:
        # What time alone decides, any claim does for all tenants: not the intruder's doing.
        watcher.execute("select helix.run_duty_v1('duty') from generate_series(1, 20)")
        before = rows_of_b(watcher)
        for name, arguments in CASES.items():
            assert WORD not in told_by(connection, name, arguments(loot)), name
            if name in FOR_ALL and INTRUDERS[intruder][0] == "service":
                before = rows_of_b(watcher)
            assert rows_of_b(watcher) == before, name
    with copied.connect("helix_migrator") as connection:
        wrong = {result.name for result in check(connection) if not result.holds}
    # The lease that is overdue from the start is not the intruder's doing.
    assert wrong <= {"lease_stuck", "lease_not_reaped"}


@pytest.mark.parametrize("call", ["claim_v1", "reap_v1", "promote_v1"])
def test_duty_for_another_tenant_records_no_actor_name_of_the_caller(copied, call):
    """Claims take back overdue leases of all tenants; the ledger of each is its own."""
    lost = "select count(*) from helix.event where tenant = 'b' and reason = 'lost'"
    assert copied.value(lost) == 0
    with sql_client(copied, "app_a") as a:
        if call == "claim_v1":
            wait_until(
                lambda: a.claim(1, worker="eve", queue="shared") == [] or copied.value(lost) == 1
            )
        else:
            a.call(call, **({"actor": "eve"} if call == "reap_v1" else {}))
    with copied.connect("helix_bootstrap") as connection:
        for table in ("event", "refusal", "decision"):
            [(words,)] = connection.execute(
                f"select coalesce(string_agg(t::text, ' '), '') from helix.{table} t"
                " where tenant = 'b'"
            ).fetchall()
            assert "eve" not in words, table
    if call != "promote_v1":
        assert copied.value(lost) == 1


# What a tenant's own programs may not do either.
GIVEN_BY_OPERATORS = {"create_token_v1", "rotate_token_v1", "revoke_token_v1", "offer_login_v1"}


@pytest.mark.parametrize("name", [name for name in CASES if name not in IDLE])
def test_same_call_by_a_permitted_role_changes_something(copied, loot, name):
    """What is refused above is not refused for being malformed."""
    with copied.connect("helix_bootstrap") as connection:
        before = rows_of_b(connection)
        caller = "operator" if name in GIVEN_BY_OPERATORS else "app_b"
        connection.execute(f"set session authorization {caller}")
        SqlClient(connection).call(name, **CASES[name](loot))
        connection.execute("reset session authorization")
        assert rows_of_b(connection) != before


def test_no_call_writes_a_long_name_of_an_actor_or_a_worker(copied, loot):
    """Each row that a call writes carries the name: one of a megabyte would be written for each."""
    long = "okapi" * 2000
    named = [
        (name, arguments(loot) | {part: long})
        for name, arguments in CASES.items()
        for part in ("actor", "worker")
        if part in arguments(loot)
    ]
    assert len(named) > 30
    with copied.connect("operator") as connection:
        for name, arguments in named:
            with suppress(psycopg.Error), connection.transaction():
                SqlClient(connection).call(name, **arguments)
    with copied.connect("helix_bootstrap") as connection:
        tables = connection.execute(
            "select relname::text from pg_class"
            " where relnamespace = 'helix'::regnamespace and relkind in ('r', 'p')"
        ).fetchall()
        for (table,) in tables:
            query = sql.SQL("select count(*) from {} t where strpos(t::text, {}) > 0")
            found = connection.execute(query.format(sql.Identifier("helix", table), long))
            assert found.fetchone() == (0,), table


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
def test_claim_crosses_tenants_only_as_bound(database, role, words, tenants):
    with sql_client(database) as pool:
        for tenant in ("a", "b"):
            pool.queue(tenant, "shared")
            pool.submit(*(f"s{n}" for n in range(5)), tenant=tenant, queue="shared")
    with Client(database, role, q="shared") as client:
        for word in words:
            client.store.connection.execute(word.encode())
        leases = client.claim(100)
    assert {lease.tenant for lease in leases} == tenants
    assert len(leases) == 5 * len(tenants)


def test_role_bound_to_two_tenants_has_both_and_no_third(database):
    with (
        sql_client(database, "operator") as operator,
        sql_client(database) as pool,
        sql_client(database, "app_a") as a,
    ):
        operator.call("bind_v1", role="app_a", tenant="b")
        for tenant in ("a", "b", "c"):
            pool.queue(tenant)
            pool.submit("s1", tenant=tenant)
        read = {"function": "read_batches_v1", "columns": "tenant", "scan": "all"}
        assert sorted(a.call(**read)) == [("a",), ("b",)]
        with a.connection.transaction():
            a.rows("select set_config('helix.tenant', 'b', true)")
            assert a.call(**read) == [("b",)]
        operator.call("unbind_v1", role="app_a", tenant="b")
        assert a.call(**read) == [("a",)]
