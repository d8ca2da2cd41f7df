"""One worker of `helixq up --demo`: the effect and the completion in one transaction."""

from __future__ import annotations

import logging
import os
import sys
import time
from typing import TYPE_CHECKING, Any

from helixqueue.client.sync import HelixQueue
from helixqueue.demo.sample_sheet import BASECALL, TENANT
from helixqueue.errors import Unavailable
from helixqueue.postgres.statements import statements

if TYPE_CHECKING:
    from helixqueue.worker.lease import Lease

WORK_SECONDS = 0.3


@BASECALL.handler
def basecall(lease: Lease[Any, Any]) -> object:
    time.sleep(WORK_SECONDS)
    effect = statements("helixqueue.demo", "demo.sql")["write_effect"].sql
    with lease.transaction() as tx:
        tx.execute(effect, (lease.identity, lease.worker, lease.attempt))
        return tx.complete({"reads": 42})


if __name__ == "__main__":
    logging.getLogger("helixqueue").setLevel(logging.CRITICAL)  # `live` reports what happens
    try:
        with HelixQueue(os.environ["HELIX_DSN"], TENANT) as helix:
            helix.work(BASECALL, slots=2, name=sys.argv[1], grace_seconds=2)
    except Unavailable as error:
        sys.exit(f"{sys.argv[1]} lost the database: {error}")
