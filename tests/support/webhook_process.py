"""Receives one delivery with an effect in Python, in a process that may die.

    python -m tests.support.webhook_process DSN SOURCE TABLE [inside] < delivery.json

Prints the decision. With `inside` the process dies after the effect, before the commit.
"""

from __future__ import annotations

import json
import os
import signal
import sys

from helixqueue import HelixQueue


def main() -> None:
    dsn, source, table, *inside = sys.argv[1:]
    delivery = json.load(sys.stdin)
    with HelixQueue(dsn, tenant="a") as helix:

        @helix.webhook(source, "*")
        def note(event, tx):
            tx.execute(f"insert into public.{table} values (%s)", (event.id,))
            if inside:
                os.kill(os.getpid(), signal.SIGKILL)
            return f"row/{event.id}"

        headers = [(name.encode(), value.encode()) for name, value in delivery["headers"].items()]
        _, answer = helix.webhooks.receive(source, headers, delivery["body"].encode())
        sys.stdout.write(f"{answer.decision} {answer.effect}\n")


if __name__ == "__main__":
    main()
