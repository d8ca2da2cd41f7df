"""The queue that the processes of these tests work on, and how they do it.

HELIX_APP_QUEUE names it, HELIX_APP_MODE says what the handler does, HELIX_APP_FILE is an effect
outside of the database: one line a call, on disk before the handler goes on.
"""

from __future__ import annotations

import os
import time

from helixqueue import Lease, Queue

NAME = os.environ.get("HELIX_APP_QUEUE", "app")
MODE = os.environ.get("HELIX_APP_MODE", "transaction")
queue = Queue(NAME, run_in="process" if MODE.startswith("process") else "thread")


def append(text):
    descriptor = os.open(os.environ["HELIX_APP_FILE"], os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.write(descriptor, f"{text}\n".encode())
    os.fsync(descriptor)
    os.close(descriptor)


def hold_the_interpreter(seconds):
    """One call into C that lets no other thread of this process run."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        sum(range(20_000_000))


@queue.handler
def run(lease: Lease):
    if "HELIX_APP_FILE" in os.environ:
        append(lease.identity)
    if MODE == "hold":
        hold_the_interpreter(float(os.environ["HELIX_APP_SECONDS"]))
    if MODE.endswith("sleep"):
        time.sleep(lease.payload.get("seconds", 0.05))
    if lease.payload.get("poison"):
        os.kill(os.getpid(), 9)
    with lease.transaction() as tx:
        tx.execute(
            "insert into public.effect (queue, identity, worker) values (%s, %s, %s)",
            (NAME, lease.identity, str(os.getpid())),
        )
        return tx.complete({"done": True})
