"""The queue of processes that write output files; HELIX_APP_QUEUE names it.

Each file has the number of its attempt and a nonce: a mixture of two attempts shows.
"""

from __future__ import annotations

import json
import logging
import os
import secrets
import sys

from helixqueue import HelixClient, HelixQueue, Lease, Queue

queue = Queue(os.environ.get("HELIX_APP_QUEUE", "app"))
FILES = 4


def write(lease: Lease):
    nonce = secrets.token_hex(8)
    count = lease.payload.get("files", FILES)
    for number in range(count):
        text = f"{lease.attempt} {nonce} {number}"
        lease.output(f"part{number % 3}/file{number}.txt").write_text(text)
    return {"nonce": nonce, "attempt": lease.attempt}


queue.handler(write)
in_process = Queue("in-process", run_in="process")


@in_process.handler
def write_in_process(lease: Lease):
    lease.output("a/b.txt").write_text(f"{lease.payload['way']} {os.getpid()}")
    if lease.payload["way"] == "transaction":
        with lease.transaction() as tx:
            tx.complete({"process": os.getpid()})
    return {"process": os.getpid()}


if __name__ == "__main__":
    logging.basicConfig(stream=sys.stderr)
    url, token = os.environ.get("HELIX_URL"), os.environ.get("HELIX_TOKEN")
    with HelixClient(url, token) if url else HelixQueue(os.environ["HELIX_DSN"], "a") as helix:
        done = helix.work(queue, **json.loads(sys.argv[1]))
    print(json.dumps(vars(done)))  # noqa: T201
