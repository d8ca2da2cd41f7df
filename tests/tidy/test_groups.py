"""Tests that must share a process do: a runner that forgets groups says nothing about it."""

from __future__ import annotations

import pytest


@pytest.mark.xdist_group("tidy")
def test_a_group_of_tests_reaches_the_scheduler(request: pytest.FixtureRequest) -> None:
    if not request.config.getoption("loadgroup", default=False):
        pytest.skip("tests are not given out by groups here: pytest -n 2 --dist loadgroup does")
    assert request.node.nodeid.endswith("@tidy"), "pytest-xdist and pytest do not fit: run make"
