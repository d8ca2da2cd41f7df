"""Handlers in processes, as their worker sees them: `Queue(..., run_in="process")`.

A handler process runs one batch after another and exchanges lines of JSON with the worker over a
socket; its standard streams belong to the handler. It leads a process group, which is killed when
the lease is lost. A handler that kills its process fails only its own attempt.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import sys
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from helixqueue.client.backend import backend_of
from helixqueue.errors import HelixError, LeaseLost, Refused
from helixqueue.records.lease import Settlement, read_token
from helixqueue.worker.devices import device_environment
from helixqueue.worker.outcomes import AttemptFailure, FailureClass, ReportedFailure
from helixqueue.worker.program import exit_failure

if TYPE_CHECKING:
    from collections.abc import Sequence

    from helixqueue.client.run_worker import AnyClient
    from helixqueue.queues import Queue
    from helixqueue.schemas import Schema
    from helixqueue.worker.attempt import Attempt
    from helixqueue.worker.handle import WorkerHandle

LINE_LIMIT = 64 * 1024 * 1024


class HandlerProcessPool:
    """The handler processes of one queue; each runs one batch at a time."""

    def __init__(self, queue: Queue[Any, Any], client: AnyClient) -> None:
        if queue.handler_is_async:
            raise Refused(
                f"queue {queue.name}: expected a `def` handler to run in a process, got `async def`"
            )
        self._handler = _handler_location(queue)
        self._client = client
        self._idle: list[HandlerProcess] = []

    async def run(self, attempt: Attempt, schema: Schema | None, handle: WorkerHandle) -> Any:
        # A process may keep memory of its devices, so it runs one attempt with devices and ends.
        devices = attempt.row.devices
        process = self._idle.pop() if self._idle and not devices else await self._start(devices)
        handle.set_process_group(attempt, process.pid)
        try:
            value = await process.run(attempt, schema, handle)
        except BaseException:
            # A process that reported the failure itself can be reused.
            await self._end(process, reuse=process.is_idle and not devices)
            raise
        finally:
            handle.set_process_group(attempt, None)
        await self._end(process, reuse=not devices)
        return value

    async def _end(self, process: HandlerProcess, *, reuse: bool) -> None:
        if reuse:
            self._idle.append(process)
        else:
            await process.kill()

    async def close(self) -> None:
        """End the idle processes; a busy one was killed when its handler was stopped."""
        idle, self._idle = self._idle, []
        await asyncio.gather(*(process.kill() for process in idle))

    async def _start(self, devices: Sequence[str] | None) -> HandlerProcess:
        client_spec = await asyncio.to_thread(backend_of(self._client).spec)
        ours, theirs = socket.socketpair()
        try:
            process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "helixqueue.client.handler_process", str(theirs.fileno())),
                stdin=asyncio.subprocess.DEVNULL,
                pass_fds=(theirs.fileno(),),
                start_new_session=True,
                env=None if devices is None else os.environ | device_environment(devices),
            )
        except OSError as error:
            ours.close()
            raise AttemptFailure(
                FailureClass.SYSTEM, f"its process could not be started: {error}"
            ) from error
        finally:
            theirs.close()
        reader, writer = await asyncio.open_connection(sock=ours, limit=LINE_LIMIT)
        started = HandlerProcess(process, reader, writer)
        started.send({"client": client_spec, "handler": self._handler, "path": sys.path})
        return started


class HandlerProcess:
    def __init__(
        self,
        process: asyncio.subprocess.Process,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
    ) -> None:
        self.pid = process.pid
        self.is_idle = True
        self._process = process
        self._reader = reader
        self._writer = writer

    def send(self, message: dict[str, Any]) -> None:
        self._writer.write(json.dumps(message).encode() + b"\n")

    async def run(self, attempt: Attempt, schema: Schema | None, handle: WorkerHandle) -> Any:
        self.is_idle = False
        row = attempt.row
        self.send(
            {
                "worker": handle.worker,
                # The token of this lease only: the handler must not be able to write to other
                # leases of the claim.
                "lease": [row.batch, row.own_token, row.key.hex(), *row[3:9], row.lease_seconds],
                "devices": row.devices,
                "claimed_at": attempt.claimed_at,
                "schema": None if schema is None else dict(schema.document),
            }
        )
        while line := await self._reader.readline():
            message = json.loads(line)
            if "progress" in message:
                attempt.progress = tuple(message["progress"])
            elif "pause_renewal" in message:
                attempt.unconfirmed = _settlement(message["pause_renewal"])
                await handle.pause_renewal_async(attempt, always=message["always"])
                self.send({"is_held": attempt.stop_kind is None})
            elif "resume_renewal" in message:
                attempt.unconfirmed = None
                handle.resume_renewal(attempt)
            elif "stop_renewal" in message:
                attempt.settled_as, attempt.unconfirmed = message["stop_renewal"], None
                handle.stop_renewal(attempt)
            elif "output_directory" in message:
                attempt.output_directory = Path(message["output_directory"])
            elif "stage_outputs" in message:
                self.send({"failed": await _stage(attempt, handle)})
            else:
                self.is_idle = True
                return _read_outcome(attempt, message)
        raise exit_failure(await self._process.wait(), "its process")

    async def kill(self) -> None:
        with suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)
        self._writer.close()
        await asyncio.shield(self._process.wait())


async def _stage(attempt: Attempt, handle: WorkerHandle) -> tuple[str, bool] | None:
    """Stage the files of the attempt; returns why it failed and whether that is permanent."""
    try:
        await handle.stage_outputs_async(attempt)
    except AttemptFailure as failure:
        return str(failure), failure.permanent
    except HelixError as error:
        return str(error), False
    return None


def _read_outcome(attempt: Attempt, outcome: dict[str, Any]) -> Any:
    attempt.settled_as = outcome["settled_as"]
    attempt.unconfirmed = _settlement(outcome["unconfirmed"])
    attempt.refused = _settlement(outcome["refused"])
    if "lost" in outcome:
        raise LeaseLost(outcome["lost"], owner=outcome["owner"])
    if "failed" in outcome:
        failure, detail, permanent, after = outcome["failed"]
        raise ReportedFailure(failure, detail, permanent=permanent, after=after)
    return outcome["value"]


def _settlement(values: list[Any] | None) -> Settlement | None:
    if values is None:
        return None
    batch, token, *rest = values
    return Settlement(batch, read_token(token), *rest)


def _handler_location(queue: Queue[Any, Any]) -> dict[str, str | None]:
    """Where another process finds the handler: its module, or the file that was run."""
    function = queue.handler_function
    if function is None:
        raise Refused(f"queue {queue.name} has no handler")
    if "<locals>" in function.__qualname__:
        raise Refused(
            f"handler of {queue.name}: expected a function at module level, which another process "
            f"can import, got {function.__qualname__}"
        )
    module, file = function.__module__, None
    if module == "__main__":
        main = sys.modules["__main__"]
        spec = getattr(main, "__spec__", None)
        module, file = (spec.name, None) if spec else ("", getattr(main, "__file__", None))
        if not module and file is None:
            raise Refused(
                f"handler of {queue.name}: expected it in a file, got an interactive session"
            )
    return {"module": module, "file": file, "name": function.__qualname__, "queue": queue.name}
