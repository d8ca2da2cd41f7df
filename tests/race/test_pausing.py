"""A queue is paused and resumed while workers claim from it: no batch is left behind (G6)."""

from __future__ import annotations

import os
import time

from helixqueue.engine import calls
from tests.support.engine_traffic import (
    assert_consistent,
    claim,
    drain,
    open_queue,
    open_store,
    run_in_processes,
    submit,
)
from tests.support.lab import lease_refs

SECONDS = 20.0 if os.environ.get("HELIX_PROOF") else 3.0
BATCHES = 200


def pause_or_work(role: str, dsn: str) -> int:
    turns = 0
    finish = time.monotonic() + SECONDS
    with open_store(dsn) as db:
        while time.monotonic() < finish:
            if role == "pause":
                for paused in (True, False):
                    db.run(calls.set_queue(tenant="a", queue="q", paused=paused))
                # What stepped aside comes back at once, to meet the next pause.
                db.run(calls.promote())
                turns += 1
            else:
                leases = claim(db, 20, role)
                if leases:
                    db.run(calls.release(worker=role, leases=lease_refs(leases)))
                    turns += 1
    return turns


def test_no_batch_is_left_behind_when_a_queue_is_resumed(database):
    dsn = database.dsn("pool")
    with open_store(dsn) as db:
        open_queue(db, max_attempts=1000)
        submit(db, (f"s{number}" for number in range(BATCHES // 2)))
        submit(db, (f"l{number}" for number in range(BATCHES // 2)), limit_key="gpu-1")
    turns = run_in_processes(pause_or_work, [(role, dsn) for role in ("pause", "w1", "w2", "w3")])
    assert min(turns) > 5
    with open_store(dsn) as db:
        assert drain(db) == BATCHES
    assert_consistent(database)
