"""An alpine drone dispatch, before and after: a mutable table, then a ledger with one feed.

Two nodes observe the same radio messages and write them within milliseconds of each other. Before,
each node looks for the row and inserts it; both find nothing, so confirmations are sent twice.
After, both append to a ledger, and one consumer of a feed notifies.

    python examples/dispatch/dispatch.py
"""

from __future__ import annotations

import sys
import tempfile
import threading
from typing import TYPE_CHECKING

import psycopg

from helixqueue import HelixQueue, Machine

if TYPE_CHECKING:
    from collections.abc import Callable

MACHINE = Machine(
    {
        "REQUESTED": ["CONFIRMED", "CANCELLED"],
        "CONFIRMED": ["LAUNCHED", "CANCELLED"],
        "LAUNCHED": ["LANDED"],
    }
)
MESSAGES = [("drone-7", 1, "REQUESTED"), ("drone-7", 2, "CONFIRMED"), ("drone-7", 3, "LAUNCHED")]
NODES = ("north", "south")


def before(dsn: str) -> int:
    """Write with check-then-act from two nodes; return how many confirmations were sent."""
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute(
            "create table dispatch_event (drone text, seq int, kind text, node text)"
        )
    looked = threading.Barrier(len(NODES))

    def write(node: str) -> None:
        with psycopg.connect(dsn, autocommit=True) as connection:
            for drone, seq, kind in MESSAGES:
                known = connection.execute(
                    "select 1 from dispatch_event where drone = %s and seq = %s", (drone, seq)
                ).fetchone()
                looked.wait()  # the 90 ms between two nodes, made certain
                if known is None:
                    connection.execute(
                        "insert into dispatch_event values (%s, %s, %s, %s)",
                        (drone, seq, kind, node),
                    )
                looked.wait()

    on_every_node(write)
    with psycopg.connect(dsn) as connection:
        return count(connection, "select count(*) from dispatch_event where kind = 'CONFIRMED'")


def after(dsn: str) -> tuple[int, int]:
    """Append from two nodes, notify from a feed; return notifications and events."""

    def write(node: str) -> None:
        with HelixQueue(dsn) as helix:
            dispatch = helix.ledger("dispatch", MACHINE)
            for drone, seq, kind in MESSAGES:
                dispatch.append(drone, seq, kind, node=node)

    on_every_node(write)
    with HelixQueue(dsn) as helix:
        with psycopg.connect(dsn, autocommit=True) as connection:
            connection.execute("create table notification (drone text, kind text)")
        feed = helix.feed("notify", ledger="dispatch")
        for event in feed.events(until_idle=True):
            with feed.transaction() as tx:  # the notification and the position: one commit
                if event.kind == "CONFIRMED":
                    tx.execute(
                        "insert into notification values (%s, %s)", (event.entity, event.kind)
                    )
        events = len(helix.ledger("dispatch", MACHINE).history("drone-7"))
    with psycopg.connect(dsn) as connection:
        return count(connection, "select count(*) from notification"), events


def on_every_node(write: Callable[[str], None]) -> None:
    threads = [threading.Thread(target=write, args=(node,)) for node in NODES]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def count(connection: psycopg.Connection[tuple[int]], query: str) -> int:
    row = connection.execute(query.encode()).fetchone()
    return row[0] if row else 0


def main(directory: str) -> None:
    with HelixQueue.embedded(directory) as helix:
        duplicates = before(helix.dsn)
        notified, events = after(helix.dsn)
    sys.stdout.write(f"before: {duplicates} confirmations sent for one drone\n")
    sys.stdout.write(f"after:  {notified} confirmation sent, {events} events in the ledger\n")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as directory:
        main(directory)
