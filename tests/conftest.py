"""Fixtures of all tests: one PostgreSQL server per session, one fresh database per test.

HELIX_TEST_POSTGRES names the bin directory of another PostgreSQL than the wheel's;
HELIX_TEST_POOLER=pgbouncer sends every run-time connection through pgbouncer (transaction mode).
"""

from __future__ import annotations

import gc
import itertools
import logging
import os
from pathlib import Path
from typing import TYPE_CHECKING

import psycopg
import pytest

from helixqueue.embedded import Postgres
from helixqueue.engine.migrate import migrate
from helixqueue.engine.tokens import SERVICE_ROLES
from helixqueue.ledger.replay import replay
from helixqueue.operate.check import check
from tests.support.database import Database, copy_of
from tests.support.lab import new_database, wait_until
from tests.support.ledger_traffic import run_traffic
from tests.support.pooler import Pooler

if TYPE_CHECKING:
    from collections.abc import Iterator

# Login roles of the tests and the tenants they are bound to.
BINDINGS = {"pool": "*", "app_a": "a", "app_b": "b", "service": "*"}
# Crash tests have their own servers, so this one does not wait for the disk.
NOT_DURABLE = {"fsync": "off", "full_page_writes": "off", "max_connections": "300"}
_numbers = itertools.count(1)


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Postgres]:
    bin_dir = os.environ.get("HELIX_TEST_POSTGRES")
    postgres = Postgres(
        tmp_path_factory.mktemp("server") / "postgres",
        bin_dir=Path(bin_dir) if bin_dir else None,
        settings=NOT_DURABLE,
    )
    postgres.start()
    yield postgres
    left = find_leftovers(postgres)
    postgres.stop()
    assert left == [], "a test left these databases or logins behind; later tests would fail"


def find_leftovers(server: Postgres) -> list[str]:
    """Databases and logins that tests created on the shared server and did not drop."""
    ours = ["postgres", "helix", "helix_template", *BINDINGS, "operator", "stranger"]
    with psycopg.connect(server.bootstrap_dsn) as connection:
        rows = connection.execute(
            "select datname from pg_database where not datistemplate and datname <> all (%(ours)s) "
            "union all "
            "select rolname from pg_roles where rolcanlogin and not starts_with(rolname, 'helix_') "
            "and rolname <> all (%(ours)s)",
            {"ours": ours},
        )
        return [name for (name,) in rows]


@pytest.fixture(scope="session")
def pooler(server: Postgres, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pooler | None]:
    if os.environ.get("HELIX_TEST_POOLER") != "pgbouncer":
        yield None
        return
    with Pooler(tmp_path_factory.mktemp("pooler"), server) as pooler:
        yield pooler


@pytest.fixture(scope="session")
def template(server: Postgres) -> str:
    """A migrated database with the test roles, copied for each test."""
    with psycopg.connect(server.bootstrap_dsn, autocommit=True) as connection:
        connection.execute("create database helix_template owner helix_migrator")
        for role in [*BINDINGS, "operator", "stranger"]:
            connection.execute(f"create role {role} login")
    database = Database(server, "helix_template")
    migrate(database.dsn("helix_migrator"))
    with psycopg.connect(database.dsn("helix_bootstrap")) as connection:
        # With the right to act for others: tests name actors.
        roles = ", ".join(SERVICE_ROLES)
        connection.execute(f"grant {roles}, helix_intake to pool, app_a, app_b, service, stranger")
        connection.execute("grant helix_operator to operator")
        for role, tenant in BINDINGS.items():
            connection.execute(
                "select helix.bind_v1(%s, %s, %s)", (role, tenant, role == "service")
            )
    return "helix_template"


@pytest.fixture
def database(request: pytest.FixtureRequest) -> Database:
    """A fresh database per test, or one per module marked `module_database`."""
    shared = request.node.get_closest_marker("module_database") is not None
    return request.getfixturevalue("module_database" if shared else "fresh_database")


@pytest.fixture
def fresh_database(server: Postgres, template: str, pooler: Pooler | None) -> Iterator[Database]:
    with copy_of(template, server, f"helix_test_{next(_numbers)}", pooler) as database:
        yield database


@pytest.fixture(scope="module")
def module_database(server: Postgres, template: str, pooler: Pooler | None) -> Iterator[Database]:
    """One database for a module, with the function that makes time pass."""
    yield from new_database(server, template, pooler)


@pytest.fixture(scope="session")
def busy_template(server: Postgres, template: str) -> Iterator[str]:
    """A database after real traffic, with clean check and replay."""
    with copy_of(template, server, "helix_busy") as database:
        run_traffic(database)
        with database.connect("helix_migrator") as connection:
            assert [result for result in check(connection) if not result.holds] == []
            assert replay(connection).clean
        yield database.name


@pytest.fixture
def busy(server: Postgres, busy_template: str, pooler: Pooler | None) -> Iterator[Database]:
    with copy_of(busy_template, server, f"helix_busy_{next(_numbers)}", pooler) as database:
        yield database


@pytest.fixture(autouse=True)
def logging_as_before() -> Iterator[None]:
    """Undo what commands and services that run in the test process change of logging."""
    loggers = [logging.getLogger(), *(logging.getLogger(name) for name in ("helixqueue", "httpx"))]
    before = [(logger, logger.level, logger.propagate, logger.handlers[:]) for logger in loggers]
    yield
    for logger, level, propagate, handlers in before:
        logger.setLevel(level)
        logger.propagate = propagate
        logger.handlers[:] = [
            handler
            for handler in logger.handlers
            # pytest removes its own.
            if handler in handlers or type(handler).__module__.startswith("_pytest")
        ]


@pytest.fixture
def durable(server: Postgres) -> Iterator[None]:
    """Make the shared server wait for the disk."""

    def alter(change: str) -> None:
        with psycopg.connect(server.bootstrap_dsn, autocommit=True) as connection:
            for setting in ("fsync", "full_page_writes"):
                connection.execute(f"alter system {change.format(setting)}")
            connection.execute("select pg_reload_conf()")

    def shown() -> str:
        with psycopg.connect(server.bootstrap_dsn) as connection:
            [value] = connection.execute("show full_page_writes").fetchone()
        return value

    alter("set {} = on")
    wait_until(lambda: shown() == "on")
    yield
    alter("reset {}")


def pytest_collection_finish() -> None:
    """Exclude imported modules from garbage collection: scanning them takes 0.1 s."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000)
