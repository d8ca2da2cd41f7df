"""A client that freezes inside a transaction of the product: who ends it, and what is not ended."""

from __future__ import annotations

import os
from contextlib import ExitStack
from pathlib import Path

import psycopg
import pytest

from helixqueue.embedded import Postgres
from helixqueue.errors import Retryable
from helixqueue.postgres.call import Call
from helixqueue.postgres.database import Database
from helixqueue.postgres.transaction_bounds import END_OVERDUE, limited_transaction
from tests.support import database as databases
from tests.support.frozen_client import BRIEF, POINTS, frozen_client
from tests.support.lab import wait_until
from tests.support.own_server import accept_tcp, loopback_address
from tests.support.pooler import Pooler

PATHS = ("socket", "tcp", "pgbouncer")


@pytest.fixture(scope="module")
def tcp_server(tmp_path_factory):
    """A server that listens on an address of its own, with two plain logins and three rows."""
    address = loopback_address()
    bin_dir = os.environ.get("HELIX_TEST_POSTGRES")
    with Postgres(
        tmp_path_factory.mktemp("tcp") / "postgres",
        settings={"listen_addresses": address, "fsync": "off"},
        bin_dir=Path(bin_dir) if bin_dir else None,
    ) as server:
        with psycopg.connect(server.bootstrap_dsn, autocommit=True) as connection:
            connection.execute("create role pool login")
            connection.execute("create role other login")
            connection.execute(
                "create table locked as select number from generate_series(0, 9) number"
            )
            connection.execute("grant all on locked to pool, other")
        tcp = f"postgresql://pool@{address}:5432/helix"
        accept_tcp(server, tcp)
        with Pooler(tmp_path_factory.mktemp("bouncer"), server) as pooler:
            database = databases.Database(server, "helix", pooler)
            yield {
                "socket": database.dsn("pool", direct=True),
                "tcp": tcp,
                "pgbouncer": database.dsn("pool"),
                "other": database.dsn("other", direct=True),
                "superuser": server.bootstrap_dsn,
            }


@pytest.fixture
def superuser(tcp_server):
    with psycopg.connect(tcp_server["superuser"], autocommit=True) as connection:
        yield connection


def waits_for_client(superuser, process, seconds):
    """Whether the server process exists and has waited so long for its client."""
    rows = superuser.execute(
        "select from pg_stat_activity where pid = %s and wait_event_type = 'Client'"
        " and state_change < clock_timestamp() - make_interval(secs => %s)",
        (process, seconds),
    ).fetchall()
    return bool(rows)


def exists(superuser, process):
    return bool(
        superuser.execute("select from pg_stat_activity where pid = %s", (process,)).fetchall()
    )


def update(row):
    return Call("update locked set number = number where number = %s returning 1", (row,), list)


@pytest.mark.parametrize("path", PATHS)
def test_frozen_client_is_ended_by_its_server_or_by_the_next_waiter(tcp_server, superuser, path):
    """What no server setting ends, a waiter of the same login does after its lock time-out."""
    by_server = {"idle"}
    if path == "tcp":
        by_server.add("page")
    if superuser.info.server_version >= 170_000:
        by_server.add("pipeline")
    with Database.connect(tcp_server[path], pooled=True) as waiter:
        # One after the other: a waiter ends all that are overdue.
        for row, point in enumerate(POINTS):
            with frozen_client(tcp_server[path], point, row) as process:
                if point not in by_server:
                    wait_until(lambda process=process: waits_for_client(superuser, process, 1.1))
                    with (
                        pytest.raises(Retryable, match="lock timeout"),
                        limited_transaction(waiter, BRIEF),
                    ):
                        waiter.run(update(row))
                wait_until(lambda process=process: not exists(superuser, process), point, 10)
                with limited_transaction(waiter, BRIEF):
                    assert waiter.run(update(row)) == [(1,)]


def test_waiter_spares_other_logins_and_transactions_of_callers_and_those_within_their_limit(
    tcp_server, superuser
):
    with (
        ExitStack() as stack,
        Database.connect(tcp_server["socket"]) as waiter,
        psycopg.connect(tcp_server["socket"]) as caller,  # not announced
        psycopg.connect(tcp_server["superuser"], dbname="postgres") as elsewhere,
    ):
        overdue = stack.enter_context(frozen_client(tcp_server["socket"], "page", 4))
        foreign = stack.enter_context(frozen_client(tcp_server["other"], "page", 5))
        caller.execute("update locked set number = number where number = 6")
        elsewhere.execute("select pg_try_advisory_xact_lock_shared(1214606456, 1)")
        for process in (overdue, foreign, caller.info.backend_pid, elsewhere.info.backend_pid):
            wait_until(lambda process=process: waits_for_client(superuser, process, 1.1))
        young = stack.enter_context(frozen_client(tcp_server["socket"], "idle", 7))
        assert waiter.run(END_OVERDUE) == [overdue]
        wait_until(lambda: not exists(superuser, overdue))
        for process in (foreign, young, caller.info.backend_pid, elsewhere.info.backend_pid):
            assert exists(superuser, process)


def test_limits_end_with_their_transaction(tcp_server):
    names = ("idle_in_transaction_session_timeout", "lock_timeout", "tcp_user_timeout")
    with Database.connect(tcp_server["tcp"], statement_seconds=7) as database:

        def shown():
            return [database.connection.execute(f"show {name}").fetchone()[0] for name in names]

        before = shown()
        with limited_transaction(database, BRIEF):
            assert shown() == ["1s", "200ms", "1000"]
        assert shown() == before
        # Also a call outside of such a transaction ends if its client reads nothing.
        assert before[2] == "7000"
