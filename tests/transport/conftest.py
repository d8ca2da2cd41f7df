"""Both ways to the engine, on one database: directly, and through a service before it."""

from __future__ import annotations

import itertools

import pytest

from helixqueue import HelixClient, HelixQueue
from tests.support.lab import Lab, new_database
from tests.support.service import Site, serving, settings_for

WAYS = ("direct", "http")
_numbers = itertools.count(1)


@pytest.fixture(scope="module")
def database(server, template, pooler):
    yield from new_database(server, template, pooler)


@pytest.fixture(scope="module")
def site(database):
    with serving(settings_for(database)) as url:
        yield Site(database, url)


@pytest.fixture(params=WAYS)
def helix(request, database, site):
    """A client of tenant a, of either kind."""
    if request.param == "direct":
        client = HelixQueue(database.dsn("pool"), tenant="a")
    else:
        client = HelixClient(site.url, token=site.token())
    with client:
        yield client


@pytest.fixture
def lab(database):
    """A queue of this test's own, and a look at the engine itself."""
    with Lab(database, q=f"transport{next(_numbers)}") as lab:
        lab.queue(backoff_seconds=0)
        yield lab
