"""One competing worker of the demo: `python -m helixqueue.demo.worker DSN NAME`.

The worker prints `ready`, claims a batch, works for a moment, and then writes its effect (a row of
`demo.reads`) and the completion in one transaction. Only the lease protects `demo.reads`: a refused
completion rolls the effect back.
"""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING, Any

import psycopg

from helixqueue.client.sync import HelixQueue
from helixqueue.demo.sample_sheet import BASECALL, TENANT
from helixqueue.errors import LeaseLost, Unavailable
from helixqueue.postgres.statements import statements
from helixqueue.records.lease import Settlement
from helixqueue.worker.worker import HELLO_SECONDS

if TYPE_CHECKING:
    from helixqueue.records.lease import LeaseRow

WORK_SECONDS = 0.35
IDLE_SECONDS = 0.05


def main(dsn: str, name: str) -> None:
    report = statements("helixqueue.demo", "demo.sql")["report"].sql
    with HelixQueue(dsn, TENANT) as helix, psycopg.connect(dsn, autocommit=True) as connection:
        sys.stdout.write("ready\n")
        sys.stdout.flush()
        reported_at = -HELLO_SECONDS
        while True:
            if time.monotonic() - reported_at >= HELLO_SECONDS:
                connection.execute(report, (name, TENANT))
                reported_at = time.monotonic()
            leases = helix.claim(name, [BASECALL], start=True)
            for lease in leases:
                time.sleep(WORK_SECONDS)  # stands for the sequencer's work
                _complete(helix, connection, name, lease)
            if not leases:
                time.sleep(IDLE_SECONDS)


def _complete(
    helix: HelixQueue, connection: psycopg.Connection[Any], name: str, lease: LeaseRow
) -> None:
    settlement = Settlement(lease.batch, lease.token, "completed", result='{"reads":42}')
    effect = statements("helixqueue.demo", "demo.sql")["write_effect"].sql
    try:
        with connection.transaction():
            connection.execute(effect, (lease.identity, name, lease.attempt))
            [answer] = helix.settle(name, [settlement], within=connection)
            if answer.answer not in {"ok", "repeat"}:
                raise LeaseLost(f"{name} lost the lease of {lease.identity}", owner=answer.owner)
    except LeaseLost:
        # The rollback also removed the refusal row; settling again on its own keeps one.
        helix.settle(name, [settlement])


if __name__ == "__main__":
    try:
        main(*sys.argv[1:])
    except (psycopg.OperationalError, Unavailable) as error:
        sys.exit(f"{sys.argv[2]} lost the database: {str(error).strip()}")
