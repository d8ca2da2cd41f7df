"""Fixtures of the crash tests."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.support.own_server import new_server

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.support.database import Database


@pytest.fixture
def own_database(tmp_path: Path) -> Iterator[Database]:
    with new_server(tmp_path) as database:
        yield database
