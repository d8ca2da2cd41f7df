"""One competing worker of the demo: `python -m helixqueue.demo.worker DSN NAME`.

It claims, works for a moment, and then writes its effect (a row of `demo.reads`, which nothing but
the lease protects) and the completion in one transaction. A refused completion undoes the effect.
"""

from __future__ import annotations

import sys
import time
import uuid
from typing import TYPE_CHECKING

from helixqueue.demo.sheet import QUEUE
from helixqueue.errors import LeaseLost
from helixqueue.store import calls
from helixqueue.store.database import Database
from helixqueue.store.rows import Settlement

if TYPE_CHECKING:
    from helixqueue.store.rows import LeaseRow

WORK_SECONDS = 0.12
IDLE_SECONDS = 0.05


def main(dsn: str, name: str) -> None:
    with Database.connect(dsn) as database:
        while True:
            claimed = database.run(
                calls.claim(worker=name, request=uuid.uuid4(), queues=[QUEUE], count=1, start=True)
            )
            for lease in claimed.leases:
                time.sleep(WORK_SECONDS)  # the sequencer's work
                _finish(database, name, lease)
            if not claimed.leases:
                time.sleep(IDLE_SECONDS)


def _finish(database: Database, name: str, lease: LeaseRow) -> None:
    settlement = Settlement(lease.batch, lease.token, "completed", result='{"reads":42}')
    call = calls.settle(worker=name, settlements=[settlement])
    try:
        with database.connection.transaction():
            database.connection.execute(
                "insert into demo.reads (sample, worker, attempt) values (%s, %s, %s)",
                (lease.identity, name, lease.attempt),
            )
            [answer] = database.run(call)
            if answer.answer not in {"ok", "repeat"}:
                raise LeaseLost(f"{name} came too late with {lease.identity}", owner=answer.owner)
    except LeaseLost:
        # The refusal was rolled back with the effect: say it again, alone, so that it stays.
        database.run(call)


if __name__ == "__main__":
    main(*sys.argv[1:])
