"""A client, and the machine of a dispatch."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from helixqueue import HelixQueue, Machine

if TYPE_CHECKING:
    from collections.abc import Iterator

    from helixqueue.ledger.user_ledger import Ledger
    from tests.support.database import Database

DISPATCH = Machine(
    {
        "REQUESTED": ["CONFIRMED", "CANCELLED"],
        "CONFIRMED": ["LAUNCHED", "CANCELLED"],
        "LAUNCHED": ["LANDED"],
    }
)


@pytest.fixture
def helix(database: Database) -> Iterator[HelixQueue]:
    with HelixQueue(database.dsn("app_a"), tenant="a") as helix:
        yield helix


@pytest.fixture
def dispatch(helix: HelixQueue, request: pytest.FixtureRequest) -> Ledger:
    """A strict ledger of this test alone."""
    return helix.ledger(f"dispatch-{abs(hash(request.node.name)) % 10**9}", DISPATCH)
