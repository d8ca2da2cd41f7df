"""Any program as a handler: `helixq work basecall --exec "dorado basecaller ..."`.

The program finds its payload as a JSON file and its ids in the environment, never the token: that
is the worker's, and dies with the lease. What it prints goes to disk as it comes, head and tail of
it. Its exit code says how it went: 0 completed, 65 (EX_DATAERR) failed for good, 75 (EX_TEMPFAIL)
and all others failed and to be tried again.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import tempfile
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from helixqueue.errors import InvalidPayload
from helixqueue.identity import PART_SEPARATOR, key_text
from helixqueue.identity.strictjson import loads
from helixqueue.worker.outcomes import Failed, Failure

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import BinaryIO

    from helixqueue.queues import Schema
    from helixqueue.worker.attempt import Attempt
    from helixqueue.worker.lease import WorkerHandle

EX_DATAERR = 65
PIECE = 65_536
KEPT_BYTES = 262_144  # of the head, and of each half of the tail
SHOWN_BYTES = 3_000  # of each end of each stream, in the report of a failure
END_SECONDS = 5.0  # between the polite signal and the other one


@dataclass(frozen=True)
class Program:
    """A command and where its attempts leave their logs."""

    command: Sequence[str]
    logs: Path | None = None  # kept there; else gone with the attempt

    async def run(self, attempt: Attempt, schema: Schema | None, grip: WorkerHandle) -> Any:  # noqa: ARG002
        row = attempt.row
        with tempfile.TemporaryDirectory(prefix="helix-") as scratch:
            home = Path(scratch)
            kept = home
            if self.logs is not None:
                kept = self.logs / f"{row.batch_id}.{row.attempt}"
                kept.mkdir(parents=True, exist_ok=True)
            payload = home / "payload.json"
            payload.write_text(row.payload or "null", encoding="utf-8")
            result = home / "result.json"
            process = await self._start(_environment(attempt, payload, result), home)
            grip.group(attempt, process.pid)
            streams = [Stream(kept, name) for name in ("stdout", "stderr")]
            try:
                pipes = zip(streams, (process.stdout, process.stderr), strict=True)
                await asyncio.gather(*(one.follow(pipe) for one, pipe in pipes))
                code = await process.wait()
            except asyncio.CancelledError:
                await _end_group(process)
                raise
            finally:
                grip.group(attempt, None)
            # Whatever it left running behind would work on beside the next attempt.
            _signal_group(process.pid, signal.SIGKILL)
            if code != 0:
                raise _failed(code, streams)
            return _result(result)

    async def _start(self, environment: dict[str, str], home: Path) -> asyncio.subprocess.Process:
        try:
            return await asyncio.create_subprocess_exec(
                *self.command,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.PIPE,
                env=environment | {"HELIX_SCRATCH": str(home)},
                start_new_session=True,
            )
        except OSError as error:
            raise Failed(
                Failure.SYSTEM, f"{self.command[0]!a} could not be started: {error}"
            ) from error


def _environment(attempt: Attempt, payload: Path, result: Path) -> dict[str, str]:
    """That of this process, without what leads to the database, and with what the program needs."""
    row = attempt.row
    kept = {name: value for name, value in os.environ.items() if not name.startswith("HELIX_")}
    key = key_text(row.key)
    return kept | {
        "HELIX_PAYLOAD": str(payload),
        "HELIX_RESULT": str(result),
        "HELIX_BATCH": str(row.batch_id),
        "HELIX_QUEUE": row.queue,
        "HELIX_TENANT": row.tenant,
        "HELIX_IDENTITY": (row.identity or "").replace(PART_SEPARATOR, "/"),
        "HELIX_REVISION": row.revision,
        "HELIX_ATTEMPT": str(row.attempt),
        "HELIX_IDEMPOTENCY_KEY": key,
    }


class Stream:
    """One of a program's outputs on disk: the first bytes, and the last ones in two halves."""

    def __init__(self, directory: Path, name: str) -> None:
        self._head = directory / name
        self._tail = directory / f"{name}.tail"
        self._before = directory / f"{name}.tail.1"

    async def follow(self, pipe: asyncio.StreamReader | None) -> None:
        if pipe is None:
            return
        with self._head.open("wb", buffering=0) as head:
            left = KEPT_BYTES
            while left and (piece := await pipe.read(min(PIECE, left))):
                head.write(piece)
                left -= len(piece)
        file: BinaryIO | None = None
        written = 0
        try:
            while piece := await pipe.read(PIECE):
                if file is None or written >= KEPT_BYTES:
                    if file is not None:
                        file.close()
                        self._tail.replace(self._before)
                    file, written = self._tail.open("wb", buffering=0), 0
                file.write(piece)
                written += len(piece)
        finally:
            if file is not None:
                file.close()

    def shown(self) -> str:
        """Both ends; what is no text is shown by number."""
        data = b"".join(
            one.read_bytes() for one in (self._head, self._before, self._tail) if one.exists()
        )
        if len(data) > 2 * SHOWN_BYTES:
            data = data[:SHOWN_BYTES] + b"\n[...]\n" + data[-SHOWN_BYTES:]
        return data.decode("utf-8", "backslashreplace").replace("\0", "\\0")


def _failed(code: int, streams: Sequence[Stream]) -> Failed:
    error = ended_by(code, "the program")
    shown = [one.shown() for one in reversed(streams)]
    detail = "\n".join([str(error), *(text for text in shown if text)])
    return Failed(error.failure, detail, permanent=error.permanent)


def ended_by(code: int, what: str) -> Failed:
    """The class of an end: by itself, or by a signal (also as shells report it)."""
    number = -code if code < 0 else code - 128 if 128 < code < 128 + 65 else 0
    if not number:
        text = f"{what} ended with exit code {code}"
        return Failed(Failure.EXECUTOR, text, permanent=code == EX_DATAERR)
    with suppress(ValueError):
        text = f"{what} was ended by {signal.Signals(number).name}"
        if number == signal.SIGKILL:
            # Nobody says why. On a machine of workers it is the kernel that kills for memory.
            return Failed(Failure.OUT_OF_MEMORY, f"{text}, as the kernel does for want of memory")
        if number in {signal.SIGXCPU, signal.SIGALRM}:
            return Failed(Failure.TIMEOUT, text)
        own = {signal.SIGSEGV, signal.SIGABRT, signal.SIGBUS, signal.SIGFPE, signal.SIGILL}
        return Failed(Failure.EXECUTOR if number in own else Failure.SYSTEM, text)
    return Failed(Failure.EXECUTOR, f"{what} ended with exit code {code}")


def _result(file: Path) -> Any:
    """What it wrote, or nothing."""
    try:
        return loads(file.read_bytes())
    except FileNotFoundError:
        return None
    except (InvalidPayload, json.JSONDecodeError) as error:
        raise Failed(Failure.RESULT, f"the result file is no JSON: {error}") from None


async def _end_group(process: asyncio.subprocess.Process) -> None:
    """Ask it to end, then make it; returns when nothing of it runs any more."""
    _signal_group(process.pid, signal.SIGTERM)
    with suppress(TimeoutError):
        async with asyncio.timeout(END_SECONDS):
            await process.wait()
    _signal_group(process.pid, signal.SIGKILL)
    await process.wait()


def _signal_group(group: int, number: int) -> None:
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(group, number)
