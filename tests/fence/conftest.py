"""One database for a module, with a way to let time pass for one fence."""

from __future__ import annotations

import pytest

from tests.fence.passing import let_time_pass
from tests.lab import one_database


@pytest.fixture(scope="module")
def database(server, template, pooler):
    for database in one_database(server, template, pooler):
        let_time_pass.install(database)
        yield database
