"""What holds for the client of a database holds for the client of a service: the same tests again.

Those of test_client.py and test_bad_input.py that are about a client and not about its database.
"""

from __future__ import annotations

import inspect

import pytest

from helixqueue import HelixClient
from tests.client import test_bad_input, test_client
from tests.support.service import Site, serving, settings_for

# What needs a database's client, or its event loop, or changes it from inside.
OTHER = {"ahelix", "monkeypatch", "tmp_path"}
LEFT_OUT = {
    "test_within_refuses_objects_that_are_no_connection",
    # Its coroutine opens the database again.
    "test_pages_of_a_list_neither_skip_nor_repeat_rows",
    # A service has a bound of its own before the database's.
    "test_limit_of_the_database_is_reported_in_words",
    # A service also notes the reason, which is counted there.
    "test_declared_queue_is_created_on_first_use_and_written_once",
}

for _module in (test_client, test_bad_input):
    for _name, _test in vars(_module).items():
        if _name.startswith("test_") and _name not in LEFT_OUT:
            _taken = set(inspect.signature(_test).parameters)
            if _taken & {"helix", "client"} and not _taken & OTHER:
                globals()[_name] = _test


@pytest.fixture(scope="module")
def site(database):
    with serving(settings_for(database)) as url:
        yield Site(database, url)


@pytest.fixture
def helix(site):
    with HelixClient(site.url, token=site.token()) as client:
        yield client


@pytest.fixture(scope="module")
def client(site):
    with HelixClient(site.url, token=site.token()) as client:
        test_bad_input.declare_all(client)
        yield client


def test_table_has_at_least_its_expected_number_of_cases():
    assert sum(name.startswith("test_") for name in globals()) >= 35
