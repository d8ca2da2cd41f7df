"""Tests of one xdist group run in one process; an incompatible pytest ignores groups silently."""

from __future__ import annotations

import pytest


@pytest.mark.xdist_group("tidy")
def test_a_group_of_tests_reaches_the_scheduler(request: pytest.FixtureRequest) -> None:
    if not request.config.getoption("loadgroup", default=False):
        pytest.skip("needs pytest -n 2 --dist loadgroup")
    assert request.node.nodeid.endswith("@tidy"), (
        "pytest-xdist and pytest are incompatible: run make"
    )
