"""A process that runs handlers for its worker: `python -m helixqueue.client.handler_process FD`.

It speaks lines of JSON over the socket FD; see `children`. When the other end closes, the worker is
gone, and so is this process with all it started.
"""

from __future__ import annotations

import json
import os
import runpy
import signal
import socket
import sys
import threading
from datetime import UTC, datetime
from importlib import import_module
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any

from helixqueue.errors import LeaseLost
from helixqueue.queues import Queue, Schema
from helixqueue.states import State
from helixqueue.transport.protocol import LeaseRow, Token
from helixqueue.worker import outcomes
from helixqueue.worker.attempt import Attempt
from helixqueue.worker.lease import Lease
from helixqueue.worker.options import WorkerOptions

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import TextIO

    from helixqueue.transport.protocol import Transport

# The deadline is the database's; a worker counts for itself.
_NO_DEADLINE = datetime.min.replace(tzinfo=UTC)


class Line:
    """The socket: answers wait in a queue, because a thread reads them."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self.heard: SimpleQueue[dict[str, Any]] = SimpleQueue()
        threading.Thread(target=self._hear, daemon=True).start()

    def say(self, told: dict[str, Any]) -> None:
        self._stream.write(json.dumps(told) + "\n")
        self._stream.flush()

    def _hear(self) -> None:
        try:
            for line in self._stream:
                self.heard.put(json.loads(line))
        except OSError:
            pass
        os.killpg(os.getpgrp(), signal.SIGKILL)


class ChildGrip:
    """What a lease needs of its worker, asked of the parent."""

    async_local = None

    def __init__(self, line: Line, transport: Transport, submit: Callable[..., Any]) -> None:
        self._line = line
        self.worker = transport.worker
        self.local = transport.local
        self.submit = submit

    def quiet(self, attempt: Attempt, *, for_good: bool = False) -> None:
        # With the settlement on its way: if this process dies, its worker asks the ledger about it.
        self._line.say({"quiet": attempt.doubt, "for_good": for_good})
        if not self._line.heard.get()["quieted"]:
            attempt.ends("lost", "it ended meanwhile")

    def loud(self, attempt: Attempt) -> None:  # noqa: ARG002 - there is but one
        self._line.say({"loud": True})

    def settled(self, attempt: Attempt) -> None:
        self._line.say({"has_settled": attempt.settled})


class _Telling(Attempt):
    """An attempt whose progress is the parent's to show."""

    __slots__ = ("line",)
    line: Line

    def __setattr__(self, name: str, value: Any) -> None:
        super().__setattr__(name, value)
        if name == "note" and value is not None:
            self.line.say({"note": value})


def main(descriptor: int) -> None:
    stream = socket.socket(fileno=descriptor).makefile("rw", encoding="utf-8")
    line = Line(stream)
    told = line.heard.get()
    sys.path[:] = told["path"]
    queue = _queue(told["handler"])
    with _client(told["client"]) as helix:
        while True:
            asked = line.heard.get()
            grip = ChildGrip(line, helix.transport(WorkerOptions.of(asked["worker"])), helix.submit)
            line.say(_run(queue, asked, grip, line))


def _client(spec: dict[str, Any]) -> Any:
    """Of the kind that the worker's is; the other kind may not be installed."""
    if spec["kind"] == "http":
        from helixqueue.client.http import HelixClient as Client  # noqa: PLC0415
    else:
        from helixqueue.client.sync import HelixQueue as Client  # type: ignore[assignment]  # noqa: PLC0415
    return Client(*spec["origin"], **spec["settings"])


def _run(queue: Queue[Any, Any], asked: dict[str, Any], grip: Any, line: Line) -> dict[str, Any]:
    attempt = _Telling(_row(asked["lease"]), asked["since"])
    attempt.line = line
    schema = None if asked["schema"] is None else Schema(asked["schema"])
    lease: Lease[Any, Any] = Lease(attempt, queue, schema, grip)
    told: dict[str, Any]
    try:
        handler: Any = queue.handler_function
        value = handler(lease)
        text = outcomes.completed(attempt.row, queue, schema, value).result
        told = {"value": None if text is None else json.loads(text)}
    except LeaseLost as lost:
        told = {"lost": str(lost), "owner": lost.owner}
    except Exception as error:  # noqa: BLE001 - whatever a handler raises
        failed = outcomes.failed(attempt.row, error)
        told = {"failed": [failed.failure, failed.detail, failed.permanent, failed.after_seconds]}
    return told | {
        "settled": attempt.settled,
        "doubt": attempt.doubt,
        "refused": attempt.refused,
    }


def _row(told: list[Any]) -> LeaseRow:
    batch, token, key, tenant, queue, identity, revision, payload, attempt, lease_seconds = told
    return LeaseRow(
        batch, Token(*token), bytes.fromhex(key), tenant, queue, identity, revision, payload,
        attempt, State.RUNNING, _NO_DEADLINE, lease_seconds, shares_nonce=False,
    )  # fmt: skip


def _queue(handler: dict[str, Any]) -> Queue[Any, Any]:
    """The declaration, found where its handler is."""
    if handler["file"] is not None:
        names = runpy.run_path(handler["file"], run_name="__helix_child__")
    else:
        names = vars(import_module(handler["module"]))
    for one in names.values():
        if isinstance(one, Queue) and one.name == handler["queue"] and one.handler_function:
            return one
    raise LookupError(f"expected the queue {handler['queue']} in {handler['module']}, found none")


if __name__ == "__main__":
    main(int(sys.argv[1]))
