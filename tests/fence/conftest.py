"""One database for all tests of fences; each has a name of its own, so that none meets others."""

from __future__ import annotations

import itertools

import pytest

from helixqueue import HelixQueue
from tests.support.fence_caller import FenceCaller
from tests.support.fence_time import expire
from tests.support.lab import POOLED, new_database

_numbers = itertools.count(1)


@pytest.fixture(scope="session")
def database(server, template, pooler):
    for database in new_database(server, template, pooler):
        expire.install(database)
        yield database


@pytest.fixture
def helix(database):
    with HelixQueue(database.dsn(), tenant="a", pooled=POOLED) as helix:
        yield helix


@pytest.fixture
def name():
    return f"fn{next(_numbers)}"


@pytest.fixture
def table(database):
    table = f"effect_{next(_numbers)}"
    with database.connect("helix_bootstrap") as connection:
        connection.execute(f"create table public.{table} (n int)".encode())
        connection.execute(f"grant all on public.{table} to public".encode())
    return table


@pytest.fixture
def caller(database):
    with FenceCaller(database) as caller:
        yield caller
