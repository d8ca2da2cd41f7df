"""A real PostgreSQL for every test: one server a session, one fresh database a test.

HELIX_TEST_POSTGRES names another PostgreSQL's bin directory than the wheel's;
HELIX_TEST_POOLER=pgbouncer sends every run-time connection through pgbouncer (transaction mode).
"""

from __future__ import annotations

import itertools
import os
from pathlib import Path
from typing import TYPE_CHECKING

import psycopg
import pytest

from helixqueue.embedded import Postgres
from helixqueue.store.migrate import migrate
from tests.database import Database
from tests.pooler import Pooler

if TYPE_CHECKING:
    from collections.abc import Iterator

# Login roles of the tests and the tenants they are bound to.
BINDINGS = {"pool": "*", "app_a": "a", "app_b": "b", "service": "*"}
_numbers = itertools.count(1)


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Postgres]:
    bin_dir = os.environ.get("HELIX_TEST_POSTGRES")
    postgres = Postgres(
        tmp_path_factory.mktemp("server") / "postgres",
        bin_dir=Path(bin_dir) if bin_dir else None,
        settings={"max_connections": "300"},
    )
    postgres.start()
    yield postgres
    postgres.stop()


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
        connection.execute("grant helix_client to pool, app_a, app_b, service, stranger")
        connection.execute("grant helix_operator to operator")
        for role, tenant in BINDINGS.items():
            connection.execute(
                "select helix.bind_v1(%s, %s, %s)", (role, tenant, role == "service")
            )
    return "helix_template"


@pytest.fixture
def database(server: Postgres, template: str, pooler: Pooler | None) -> Iterator[Database]:
    name = f"helix_test_{next(_numbers)}"
    with psycopg.connect(server.bootstrap_dsn, autocommit=True) as connection:
        connection.execute(f"create database {name} template {template} owner helix_migrator")
    yield Database(server, name, pooler)
    with psycopg.connect(server.bootstrap_dsn, autocommit=True) as connection:
        connection.execute(f"drop database {name} with (force)")
