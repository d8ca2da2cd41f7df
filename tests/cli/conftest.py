from __future__ import annotations

import pytest

from tests.support.cli import Helixq
from tests.support.lab import Lab, new_database


@pytest.fixture(scope="module")
def database(server, template, pooler):
    yield from new_database(server, template, pooler)


@pytest.fixture
def helixq(database):
    return Helixq(database)


@pytest.fixture
def lab(database, helixq):
    """A client of the same queue for what the CLI cannot do: claim, complete, fail."""
    with Lab(database, q=helixq.q) as lab:
        lab.queue()
        yield lab
