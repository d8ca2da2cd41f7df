"""Handlers in processes, as their worker sees them: `Queue(..., run_in="process")`.

A child serves one batch after the other and talks over a socket of its own in lines of JSON, so
that what handlers print or read is nobody's business. It leads a process group: losing a lease
kills it and whatever it started, and a handler that kills its process costs its own attempt and
nobody else's.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import sys
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from helixqueue.errors import LeaseLost, Refused
from helixqueue.transport.protocol import Settlement, Token
from helixqueue.worker.outcomes import Failed, Failure, Reported
from helixqueue.worker.program import ended_by

if TYPE_CHECKING:
    from helixqueue.client.run_worker import AnyClient
    from helixqueue.queues import Queue, Schema
    from helixqueue.worker.attempt import Attempt
    from helixqueue.worker.handlers import Run
    from helixqueue.worker.lease import WorkerHandle

LINE_LIMIT = 64 * 1024 * 1024


def in_a_process(queue: Queue[Any, Any], client: AnyClient) -> Run:
    if queue.handler_is_async:
        raise Refused(
            f"queue {queue.name}: expected a `def` handler to run in a process, got `async def`"
        )
    return HandlerProcesses(queue, client).run


class HandlerProcesses:
    """The children of one queue; each runs one batch at a time."""

    def __init__(self, queue: Queue[Any, Any], client: AnyClient) -> None:
        self._handler = _found(queue)
        self._client = client
        self._idle: list[HandlerProcess] = []

    async def run(self, attempt: Attempt, schema: Schema | None, grip: WorkerHandle) -> Any:
        child = self._idle.pop() if self._idle else await self._start()
        grip.group(attempt, child.process.pid)
        try:
            value = await child.run(attempt, schema, grip)
        except BaseException:
            # A child that failed in its own words is as good as new.
            if not child.rests:
                await child.end()
                raise
            self._idle.append(child)
            raise
        finally:
            grip.group(attempt, None)
        self._idle.append(child)
        return value

    async def _start(self) -> HandlerProcess:
        made = await asyncio.to_thread(self._client.spec)
        ours, theirs = socket.socketpair()
        try:
            process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "helixqueue.client.handler_process", str(theirs.fileno())),
                stdin=asyncio.subprocess.DEVNULL,
                pass_fds=(theirs.fileno(),),
                start_new_session=True,
            )
        except OSError as error:
            ours.close()
            raise Failed(Failure.SYSTEM, f"its process could not be started: {error}") from error
        finally:
            theirs.close()
        reader, writer = await asyncio.open_connection(sock=ours, limit=LINE_LIMIT)
        child = HandlerProcess(process, reader, writer)
        child.say(
            {
                "client": made,
                "handler": self._handler,
                "path": sys.path,
            }
        )
        return child


class HandlerProcess:
    def __init__(
        self,
        process: asyncio.subprocess.Process,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
    ) -> None:
        self.process = process
        self.rests = True
        self._reader = reader
        self._writer = writer

    def say(self, told: dict[str, Any]) -> None:
        self._writer.write(json.dumps(told).encode() + b"\n")

    async def run(self, attempt: Attempt, schema: Schema | None, grip: WorkerHandle) -> Any:
        self.rests = False
        row = attempt.row
        self.say(
            {
                "worker": grip.worker,
                # The token of this lease alone: the child runs a handler, which must not be able to
                # write to the other leases of the claim.
                "lease": [row.batch, row.own_token, row.key.hex(), *row[3:9], row.lease_seconds],
                "since": attempt.since,
                "schema": None if schema is None else dict(schema.document),
            }
        )
        while line := await self._reader.readline():
            told = json.loads(line)
            if "note" in told:
                attempt.note = tuple(told["note"])
            elif "quiet" in told:
                attempt.doubt = _settlement(told["quiet"])
                await grip.quiet_async(attempt, for_good=told["for_good"])
                self.say({"quieted": attempt.end is None})
            elif "loud" in told:
                attempt.doubt = None
                grip.loud(attempt)
            elif "has_settled" in told:
                attempt.settled, attempt.doubt = told["has_settled"], None
                grip.settled(attempt)
            else:
                self.rests = True
                return _ended(attempt, told)
        raise ended_by(await self.process.wait(), "its process")

    async def end(self) -> None:
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self._writer.close()
        await asyncio.shield(self.process.wait())


def _ended(attempt: Attempt, told: dict[str, Any]) -> Any:
    attempt.settled = told["settled"]
    attempt.doubt = _settlement(told["doubt"])
    attempt.refused = _settlement(told["refused"])
    if "lost" in told:
        raise LeaseLost(told["lost"], owner=told["owner"])
    if "failed" in told:
        failure, detail, permanent, after = told["failed"]
        raise Reported(failure, detail, permanent=permanent, after=after)
    return told["value"]


def _settlement(told: list[Any] | None) -> Settlement | None:
    if told is None:
        return None
    batch, token, *rest = told
    return Settlement(batch, Token(*token), *rest)


def _found(queue: Queue[Any, Any]) -> dict[str, str | None]:
    """How another process finds the handler: its module, or the file that was run."""
    function = queue.handler_function
    if function is None:
        raise Refused(f"queue {queue.name} has no handler")
    if "<locals>" in function.__qualname__:
        raise Refused(
            f"handler of {queue.name}: expected a function at the top of a module, which another "
            f"process can find, got {function.__qualname__}"
        )
    module, file = function.__module__, None
    if module == "__main__":
        main = sys.modules["__main__"]
        spec = getattr(main, "__spec__", None)
        module, file = (spec.name, None) if spec else ("", getattr(main, "__file__", None))
        if not module and file is None:
            raise Refused(f"handler of {queue.name}: expected it in a file, to run in a process")
    return {"module": module, "file": file, "name": function.__qualname__, "queue": queue.name}
