"""Databases without the schema, and servers without its roles."""

import itertools
import os
from pathlib import Path

import psycopg
import pytest

from helixqueue.embedded import Postgres
from tests.support.database import Database

_numbers = itertools.count(1)


class Scratch:
    """Makes databases and logins on a server and drops them at the end."""

    def __init__(self, server):
        self.server = server
        self._names = []
        self._logins = []

    def database(self, owner="helix_migrator", options=""):
        name = f"scratch_{next(_numbers)}"
        self.admin(f"create database {name} owner {owner} {options}")
        self._names.append(name)
        return Database(self.server, name)

    def login(self, name, *options):
        self.admin(f"create role {name} login {' '.join(options)}")
        self._logins.append(name)
        return name

    def admin(self, statement):
        with psycopg.connect(self.server.bootstrap_dsn, autocommit=True) as connection:
            connection.execute(statement)

    def drop(self):
        for name in self._names:
            self.admin(f"drop database {name} with (force)")
        for login in self._logins:
            self.admin(f"drop role {login}")


@pytest.fixture
def scratch(server):
    scratch = Scratch(server)
    yield scratch
    scratch.drop()


@pytest.fixture
def empty(scratch):
    """A database of helix_migrator's with nothing in it."""
    return scratch.database()


@pytest.fixture(scope="module")
def bare(tmp_path_factory):
    """A server of its own, where HelixQueue's roles do not exist."""
    bin_dir = os.environ.get("HELIX_TEST_POSTGRES")
    postgres = Postgres(
        tmp_path_factory.mktemp("bare") / "postgres",
        bin_dir=Path(bin_dir) if bin_dir else None,
    )
    with postgres:
        yield Scratch(postgres)
