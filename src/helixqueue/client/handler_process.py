"""A process that runs handlers for its worker: `python -m helixqueue.client.handler_process FD`.

It exchanges lines of JSON with the worker (`process_pool`) over the socket FD. When the worker
ends, the socket closes, and this process kills its process group.
"""

from __future__ import annotations

import json
import os
import runpy
import signal
import socket
import sys
import threading
from collections.abc import Callable
from datetime import UTC, datetime
from importlib import import_module
from pathlib import Path
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any, TextIO

from helixqueue.client.backend import backend_of
from helixqueue.errors import LeaseLost
from helixqueue.queues import Queue
from helixqueue.records.lease import LeaseRow, read_token
from helixqueue.schemas import Schema
from helixqueue.states import State
from helixqueue.worker import outcomes
from helixqueue.worker.attempt import Attempt
from helixqueue.worker.lease import Lease
from helixqueue.worker.options import WorkerOptions

if TYPE_CHECKING:
    from helixqueue.transport.protocol import Transport

# The database keeps the deadline; a worker measures its own.
_NO_DEADLINE = datetime.min.replace(tzinfo=UTC)


class WorkerChannel:
    """The socket to the worker. A thread reads it, so that its end is noticed at once."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._received: SimpleQueue[dict[str, Any]] = SimpleQueue()
        threading.Thread(target=self._read, daemon=True).start()

    def send(self, message: dict[str, Any]) -> None:
        self._stream.write(json.dumps(message) + "\n")
        self._stream.flush()

    def receive(self) -> dict[str, Any]:
        return self._received.get()

    def _read(self) -> None:
        try:
            for line in self._stream:
                self._received.put(json.loads(line))
        except OSError:
            pass
        os.killpg(os.getpgrp(), signal.SIGKILL)


class HandlerProcessHandle:
    """What a lease needs of its worker, by messages to it."""

    async_transactions = None

    def __init__(
        self, channel: WorkerChannel, transport: Transport, submit: Callable[..., Any]
    ) -> None:
        self._channel = channel
        self.worker = transport.worker
        self.transactions = transport.transactions
        self.submit = submit

    def pause_renewal(self, attempt: Attempt, *, always: bool = False) -> None:
        # With the settlement: if this process dies, its worker looks for it in the ledger.
        self._channel.send({"pause_renewal": attempt.unconfirmed, "always": always})
        if not self._channel.receive()["is_held"]:
            attempt.stop("abandoned", "the lease ended meanwhile")

    def resume_renewal(self, attempt: Attempt) -> None:  # noqa: ARG002 - the only one
        self._channel.send({"resume_renewal": True})

    def stop_renewal(self, attempt: Attempt) -> None:
        self._channel.send({"stop_renewal": attempt.settled_as})

    def stage_outputs(self, attempt: Attempt) -> None:
        if attempt.output_directory is not None:
            self._channel.send({"stage_outputs": True})
            failed = self._channel.receive()["failed"]
            attempt.staged = []
            if failed is not None:
                raise outcomes.AttemptFailure(
                    outcomes.FailureClass.OUTPUTS, failed[0], permanent=failed[1]
                )


class _RemoteAttempt(Attempt):
    """An attempt that reports its progress to the worker."""

    def __init__(self, row: LeaseRow, claimed_at: float, channel: WorkerChannel) -> None:
        super().__init__(row, claimed_at)
        self._channel = channel

    def report_progress(self, fraction: float | None, note: str) -> None:
        self._channel.send({"progress": [fraction, note]})

    def make_output_directory(self) -> Path:
        """A directory that the worker knows, and removes also if this process is killed."""
        if self.output_directory is None:
            self._channel.send({"output_directory": str(super().make_output_directory())})
        return super().make_output_directory()


def main(descriptor: int) -> None:
    stream = socket.socket(fileno=descriptor).makefile("rw", encoding="utf-8")
    channel = WorkerChannel(stream)
    setup = channel.receive()
    sys.path[:] = setup["path"]
    queue = _queue(setup["handler"])
    with _client(setup["client"]) as helix:
        while True:
            job = channel.receive()
            transport = backend_of(helix).transport(WorkerOptions.for_worker(job["worker"]))
            handle = HandlerProcessHandle(channel, transport, helix.submit)
            channel.send(_run(queue, job, handle, channel))


def _client(spec: dict[str, Any]) -> Any:
    """A client of the kind that the worker has; the other kind may not be installed."""
    if spec["kind"] == "http":
        from helixqueue.client.http import HelixClient as Client  # noqa: PLC0415
    else:
        from helixqueue.client.sync import HelixQueue as Client  # type: ignore[assignment]  # noqa: PLC0415
    return Client(*spec["origin"], **spec["settings"])


def _run(
    queue: Queue[Any, Any], job: dict[str, Any], handle: Any, channel: WorkerChannel
) -> dict[str, Any]:
    attempt = _RemoteAttempt(_row(job["lease"], job["devices"]), job["claimed_at"], channel)
    schema = None if job["schema"] is None else Schema(job["schema"])
    lease: Lease[Any, Any] = Lease(attempt, queue, schema, handle)
    outcome: dict[str, Any]
    try:
        handler: Any = queue.handler_function
        value = handler(lease)
        text = outcomes.completed(attempt.row, queue, schema, value).result
        outcome = {"value": None if text is None else json.loads(text)}
    except LeaseLost as lost:
        outcome = {"lost": str(lost), "owner": lost.owner}
    except Exception as error:  # noqa: BLE001 - of any handler
        failed = outcomes.failed(attempt.row, error)
        failure = [failed.failure, failed.detail, failed.permanent, failed.after_seconds]
        outcome = {"failed": failure}
    return outcome | {
        "settled_as": attempt.settled_as,
        "unconfirmed": attempt.unconfirmed,
        "refused": attempt.refused,
    }


def _row(values: list[Any], devices: list[str] | None) -> LeaseRow:
    batch, token, key, tenant, queue, identity, revision, payload, attempt, lease_seconds = values
    return LeaseRow(
        batch, read_token(token), bytes.fromhex(key), tenant, queue, identity, revision, payload,
        attempt, State.RUNNING, _NO_DEADLINE, lease_seconds, shares_nonce=False,
        devices=None if devices is None else tuple(devices),
    )  # fmt: skip


def _queue(handler: dict[str, Any]) -> Queue[Any, Any]:
    """The declaration in the module of its handler."""
    if handler["file"] is not None:
        names = runpy.run_path(handler["file"], run_name="__helix_handler_process__")
    else:
        names = vars(import_module(handler["module"]))
    for value in names.values():
        if isinstance(value, Queue) and value.name == handler["queue"] and value.handler_function:
            return value
    raise LookupError(f"expected the queue {handler['queue']} in {handler['module']}, found none")


if __name__ == "__main__":
    main(int(sys.argv[1]))
