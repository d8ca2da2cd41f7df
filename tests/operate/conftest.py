"""A database after real traffic, made once and copied for each test."""

from __future__ import annotations

import itertools

import psycopg
import pytest

from tests.database import Database
from tests.ledger.traffic import busy_lab

_numbers = itertools.count(1)


@pytest.fixture(scope="session")
def busy_template(server, template):
    with psycopg.connect(server.bootstrap_dsn, autocommit=True) as connection:
        connection.execute(
            f"create database helix_busy template {template} owner helix_migrator".encode()
        )
    busy_lab(Database(server, "helix_busy"))
    return "helix_busy"


@pytest.fixture
def busy(server, busy_template):
    name = f"helix_busy_{next(_numbers)}"
    with psycopg.connect(server.bootstrap_dsn, autocommit=True) as connection:
        connection.execute(
            f"create database {name} template {busy_template} owner helix_migrator".encode()
        )
    yield Database(server, name)
    with psycopg.connect(server.bootstrap_dsn, autocommit=True) as connection:
        connection.execute(f"drop database {name} with (force)".encode())
