"""Fixtures for pytest: `pytest_plugins = ["helixqueue.testing.plugin"]` in your conftest.py.

`helix_dsn` is an embedded PostgreSQL with our schema, one for the whole run; `helix` is a client
for one test, of a tenant of its own, so that no test sees another's work.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import pytest

from helixqueue.client.database_source import EmbeddedSource
from helixqueue.client.sync import HelixQueue

_numbers = itertools.count(1)


@pytest.fixture(scope="session")
def helix_dsn(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    home = EmbeddedSource(tmp_path_factory.mktemp("helix"))
    yield home.open()
    home.close()


@pytest.fixture
def helix(helix_dsn: str) -> Iterator[HelixQueue]:
    with HelixQueue(helix_dsn, tenant=f"test{next(_numbers)}") as client:
        yield client
