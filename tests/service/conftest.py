"""Fixtures: a service on a database of the module, and clients of it."""

from __future__ import annotations

import pytest

from tests.support.lab import Lab, new_database
from tests.support.service import Site, serving, settings_for


@pytest.fixture(scope="module")
def database(server, template, pooler):
    yield from new_database(server, template, pooler)


@pytest.fixture(scope="module")
def site(database):
    with serving(settings_for(database)) as url:
        yield Site(database, url)


@pytest.fixture
def http(site):
    with site.client() as client:
        yield client


@pytest.fixture
def lab(database):
    """A new queue of tenant a, and a client of the engine."""
    with Lab(database) as lab:
        lab.queue()
        yield lab
