"""The queue that the processes of these tests work on; HELIX_APP_QUEUE names it.

What the handler does stands in the payload: `file` is an effect outside of the database (one line a
call, on disk before the handler goes on), `seconds` it sleeps, `hold` it lets no other thread run,
`poison` kills its process, and `die_after` kills it after its commit. With `meddle` it tries to end
the other batches of its worker. Else it writes its row and completes, in one commit; with `way`
"return" it only returns.
"""

from __future__ import annotations

import json
import logging
import os
import sys
import time
from pathlib import Path

from helixqueue import HelixClient, HelixQueue, Lease, Queue, Settlement
from helixqueue.records.lease import LeaseRef

queue = Queue(
    os.environ.get("HELIX_APP_QUEUE", "app"), run_in=os.environ.get("HELIX_APP_RUN_IN", "thread")
)


def append(file, text):
    descriptor = os.open(file, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    os.write(descriptor, f"{text}\n".encode())
    os.fsync(descriptor)
    os.close(descriptor)


def hold_the_interpreter(seconds):
    """Calls into C that let no other thread of this process run in between."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        sum(range(30_000_000))


def wait_for_all(directory, name, count):
    """Return when `count` handlers have come here."""
    Path(directory, f"{name}-{os.getpid()}").touch()
    while len(list(Path(directory).glob(f"{name}-*"))) < count:
        time.sleep(0.01)


def renewed(helix, worker, leases):
    """Results of a renewal; a row that another call holds at the moment is asked for again."""
    results = helix.renew(worker, leases)
    while busy := {result.batch for result in results if result.answer == "busy"}:
        time.sleep(0.01)
        results = [result for result in results if result.batch not in busy]
        results += helix.renew(worker, [lease for lease in leases if lease.batch in busy])
    return results


def meddle(lease: Lease, reach, directory):
    """Write to every batch near its own with its own token; returns the results."""
    wait_for_all(directory, "running", reach)
    own = lease.held
    others = [n for n in range(own.batch - reach, own.batch + reach + 1) if n != own.batch]
    with HelixQueue(os.environ["HELIX_DSN"], "a") as helix:
        held = [LeaseRef(batch, own.token) for batch in others]
        ends = [Settlement(batch, own.token, "completed", result="{}") for batch in others]
        answers = [
            *renewed(helix, lease.worker, held),
            *helix.release(lease.worker, held),
            *helix.settle(lease.worker, ends),
        ]
    wait_for_all(directory, "done", reach)
    return {
        "batch": own.batch,
        "nonce": str(own.token.nonce),
        "number": own.token.number,
        "answers": [answer.answer for answer in answers],
    }


def do(lease: Lease):
    answer = lease.payload
    if "meddle" in answer:
        return meddle(lease, answer["meddle"], answer["directory"])
    if "file" in answer:
        append(answer["file"], f"{lease.identity} {lease.attempt} {os.getpid()}")
    if answer.get("hold") and lease.attempt == 1:
        hold_the_interpreter(answer["hold"])
    if lease.attempt == 1:
        time.sleep(answer.get("seconds", 0))
    if answer.get("poison"):
        os.kill(os.getpid(), 9)
    if answer.get("way") == "return":
        return {"done": True}
    with lease.transaction() as tx:
        tx.execute(
            "insert into public.effect (queue, identity, worker) values (%s, %s, %s)",
            (lease.queue, lease.identity, str(os.getpid())),
        )
        tx.complete({"done": True})
    if answer.get("die_after"):
        os.kill(os.getpid(), 9)
    return {"done": True}


queue.handler(do)


if __name__ == "__main__":
    logging.basicConfig(stream=sys.stderr)
    url, token = os.environ.get("HELIX_URL"), os.environ.get("HELIX_TOKEN")
    with HelixClient(url, token) if url else HelixQueue(os.environ["HELIX_DSN"], "a") as helix:
        done = helix.work(queue, **json.loads(sys.argv[1]))
    print(json.dumps(vars(done)))
