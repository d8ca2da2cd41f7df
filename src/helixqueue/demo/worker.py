"""One competing worker of the demo: `python -m helixqueue.demo.worker DSN NAME`.

It says `ready`, claims, works for a moment, and then writes its effect (a row of `demo.reads`,
which nothing but the lease protects) and the completion in one transaction. A refused completion
undoes the effect.
"""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING, Any

import psycopg

from helixqueue.client.sync import HelixQueue
from helixqueue.demo.sheet import BASECALL, TENANT
from helixqueue.errors import LeaseLost
from helixqueue.postgres.statements import statements
from helixqueue.records.lease import Settlement

if TYPE_CHECKING:
    from helixqueue.records.lease import LeaseRow

WORK_SECONDS = 0.35
IDLE_SECONDS = 0.05


def main(dsn: str, name: str) -> None:
    with HelixQueue(dsn, TENANT) as helix, psycopg.connect(dsn, autocommit=True) as connection:
        sys.stdout.write("ready\n")
        sys.stdout.flush()
        while True:
            leases = helix.claim(name, [BASECALL], start=True)
            for lease in leases:
                time.sleep(WORK_SECONDS)  # the sequencer's work
                _finish(helix, connection, name, lease)
            if not leases:
                time.sleep(IDLE_SECONDS)


def _finish(
    helix: HelixQueue, connection: psycopg.Connection[Any], name: str, lease: LeaseRow
) -> None:
    done = Settlement(lease.batch, lease.token, "completed", result='{"reads":42}')
    effect = statements("helixqueue.demo", "demo.sql")["write_effect"].sql
    try:
        with connection.transaction():
            connection.execute(effect, (lease.identity, name, lease.attempt))
            [answer] = helix.settle(name, [done], within=connection)
            if answer.answer not in {"ok", "repeat"}:
                raise LeaseLost(f"{name} came too late with {lease.identity}", owner=answer.owner)
    except LeaseLost:
        # The refusal was rolled back with the effect: say it again, alone, so that it stays.
        helix.settle(name, [done])


if __name__ == "__main__":
    main(*sys.argv[1:])
