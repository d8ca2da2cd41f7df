"""The dispatch network: two nodes and a third whose cache timed out; and the example."""

from __future__ import annotations

import socket
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from helixqueue import HelixQueue
from tests.user_ledger.conftest import DISPATCH

ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.module_database


@pytest.fixture
def silent_redis():
    """A server that accepts connections and never answers."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield f"redis://127.0.0.1:{server.getsockname()[1]}"


def test_three_nodes_make_one_row_one_notification_and_one_launch(helix, database, silent_redis):
    dispatch = helix.ledger("alpine", DISPATCH)
    drones = [f"drone-{n}" for n in range(6)]
    for drone in drones:
        dispatch.append(drone, 1, "REQUESTED")
    decisions = []
    start = threading.Barrier(3)

    def node(name: str, hint: str | None) -> None:
        with HelixQueue(database.dsn("app_a"), tenant="a") as own:
            ledger = own.ledger("alpine", DISPATCH, hint=hint)
            start.wait()
            for drone in drones:
                for seq, kind in ((2, "CONFIRMED"), (3, "LAUNCHED")):
                    decisions.append(ledger.append(drone, seq, kind, node=name).decision)

    threads = [
        threading.Thread(target=node, args=arguments)
        for arguments in (("alp-1", None), ("alp-2", None), ("alp-3", silent_redis))
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert decisions.count("written") == 2 * len(drones)
    assert set(decisions) == {"written", "duplicate_suppressed_by_db"}

    feed = helix.feed("alpine-notify", ledger="alpine")
    notified = []
    for page in feed.pages(until_idle=True):
        with feed.transaction():
            notified += [(event.entity, event.kind) for event in page]
    for kind in ("CONFIRMED", "LAUNCHED"):
        assert sorted(entity for entity, reached in notified if reached == kind) == drones


def test_example_sends_two_confirmations_before_and_one_after():
    example = ROOT / "examples/dispatch/dispatch.py"
    ran = subprocess.run([sys.executable, example], capture_output=True, text=True, check=True)
    assert ran.stdout == (
        "before: 2 confirmations sent for one drone\n"
        "after:  1 confirmation sent, 3 events in the ledger\n"
    )
