"""A database a module, and clients of it that are closed at the end."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

import pytest

from helixqueue import AsyncHelixQueue, HelixQueue
from tests.support.lab import new_database

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.support.database import Database

_numbers = itertools.count(1)


@pytest.fixture(scope="module")
def database(server, template, pooler) -> Iterator[Database]:
    yield from new_database(server, template, pooler)


@pytest.fixture
def helix(database) -> Iterator[HelixQueue]:
    with HelixQueue(database.dsn("pool"), tenant="a") as client:
        yield client


@pytest.fixture
def ahelix(database) -> AsyncHelixQueue:
    """Not opened: each test has an event loop of its own, and closes it there."""
    return AsyncHelixQueue(database.dsn("pool"), tenant="a")


@pytest.fixture
def name() -> str:
    """A queue that no other test uses."""
    return f"client{next(_numbers)}"
