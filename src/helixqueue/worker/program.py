"""Any program as a handler: `helixq work basecall --exec "dorado basecaller ..."`.

The program gets its payload in a JSON file and its ids in the environment, but never the token.
Head and tail of its output are written to disk. Exit code 0 completes the batch, 65 (EX_DATAERR)
fails it permanently, 75 (EX_TEMPFAIL) and every other code fail the attempt.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import tempfile
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from helixqueue.errors import InvalidPayload
from helixqueue.identity import PART_SEPARATOR, key_text
from helixqueue.identity.strictjson import loads
from helixqueue.worker.devices import device_environment
from helixqueue.worker.outcomes import AttemptFailure, FailureClass

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import BinaryIO

    from helixqueue.records.lease import LeaseRow
    from helixqueue.schemas import Schema
    from helixqueue.worker.attempt import Attempt
    from helixqueue.worker.handle import WorkerHandle

EX_DATAERR = 65
READ_BYTES = 65_536
KEPT_BYTES = 16 * 1024 * 1024  # of the head, and of each of the two files of the tail
ENVIRONMENT_BYTES = 65_536  # of the members of a payload; Linux allows 128 KiB per variable
NAME_BYTES = 100  # of a sample, in the name of its directory
LINE_CHARS = 200  # of the last line of standard error
SHOWN_BYTES = 15_000  # of head and tail of each stream, in the detail of a failure
TERMINATE_SECONDS = 5.0  # between SIGTERM and SIGKILL


@dataclass(frozen=True)
class Program:
    """A command, and the directory for the logs of its attempts."""

    command: Sequence[str]
    logs: Path | None = None  # None: deleted with the attempt

    async def run(self, attempt: Attempt, schema: Schema | None, handle: WorkerHandle) -> Any:  # noqa: ARG002
        with tempfile.TemporaryDirectory(prefix="helix-") as scratch:
            home = Path(scratch)
            payload = write_payload(attempt.row, home)
            result = home / "result.json"
            environment = _members(attempt.row.payload) | _inherited()
            environment |= batch_variables(attempt.row, payload, result)
            environment |= {
                "HELIX_OUT": str(attempt.make_output_directory()),
                "HELIX_SCRATCH": str(home),
            }
            logs = log_directory(self.logs, attempt, attempt.make_log_directory())
            attempt.log_directory = logs
            execution = Execution(self.command, environment, logs)
            code, streams = await execution.run(attempt, handle)
            if code != 0:
                raise program_failure(code, streams)
            return read_result(result)


@dataclass(frozen=True)
class Execution:
    """One process, in its own process group, and where its output is kept."""

    command: Sequence[str]
    environment: Mapping[str, str]
    logs: Path
    stdin: Path | None = None
    working_directory: str | None = None
    descriptors: Sequence[int] = ()  # that the process inherits

    async def run(
        self, attempt: Attempt, handle: WorkerHandle
    ) -> tuple[int, Sequence[CapturedStream]]:
        """Run it to its end; returns its exit code and its output."""
        starting = asyncio.ensure_future(self._start())
        try:
            process = await asyncio.shield(starting)
        except asyncio.CancelledError:
            # Else its children would survive: asyncio ends only the process itself.
            with suppress(AttemptFailure):
                await _terminate_group(await starting)
            raise
        handle.set_process_group(attempt, process.pid)
        streams = [CapturedStream(self.logs, name) for name in ("stdout", "stderr")]
        try:
            pipes = zip(streams, (process.stdout, process.stderr), strict=True)
            await asyncio.gather(*(stream.capture(pipe) for stream, pipe in pipes))
            code = await process.wait()
        except asyncio.CancelledError:
            await _terminate_group(process)
            raise
        finally:
            handle.set_process_group(attempt, None)
        # Processes that it left behind would run beside the next attempt.
        _signal_group(process.pid, signal.SIGKILL)
        return code, streams

    async def _start(self) -> asyncio.subprocess.Process:
        try:
            with open(self.stdin or os.devnull, "rb") as stdin:  # noqa: ASYNC230, PTH123
                return await asyncio.create_subprocess_exec(
                    *self.command,
                    stdin=stdin,
                    stdout=asyncio.subprocess.PIPE,
                    stderr=asyncio.subprocess.PIPE,
                    env=self.environment,
                    cwd=self.working_directory,
                    pass_fds=self.descriptors,
                    start_new_session=True,
                )
        except OSError as error:
            raise AttemptFailure(
                FailureClass.SYSTEM, f"{self.command[0]!a} could not be started: {error}"
            ) from error


def write_payload(row: LeaseRow, home: Path) -> Path:
    payload = home / "payload.json"
    payload.write_text(row.payload or "null", encoding="utf-8")
    return payload


def log_directory(logs: Path | None, attempt: Attempt, home: Path) -> Path:
    """Where the output of an attempt is kept; in `home` it is deleted with it."""
    if logs is None:
        return home
    directory = logs / _directory_name(attempt.row)
    directory.mkdir(parents=True, exist_ok=True)
    return directory


def _directory_name(row: LeaseRow) -> str:
    """The sample as people know it, without what a path or a shell would read differently."""
    name = re.sub(r"[^\w.-]+", "_", row.identity or "").strip("._-")
    # A name has at most 255 bytes. The id tells samples apart whose names differ elsewhere.
    name = name.encode()[:NAME_BYTES].decode(errors="ignore")
    return f"{name or 'batch'}-{str(row.batch_id)[:8]}.{row.attempt}"


def _inherited() -> dict[str, str]:
    """The environment of this process, without its HELIX_ settings."""
    return {name: value for name, value in os.environ.items() if not name.startswith("HELIX_")}


def batch_variables(row: LeaseRow, payload: Path, result: Path) -> dict[str, str]:
    return {
        "HELIX_PAYLOAD": str(payload),
        "HELIX_RESULT": str(result),
        "HELIX_BATCH": str(row.batch_id),
        "HELIX_QUEUE": row.queue,
        "HELIX_TENANT": row.tenant,
        "HELIX_IDENTITY": (row.identity or "").replace(PART_SEPARATOR, "/"),
        "HELIX_REVISION": row.revision,
        "HELIX_ATTEMPT": str(row.attempt),
        "HELIX_IDEMPOTENCY_KEY": key_text(row.key),
        **({} if row.devices is None else device_environment(row.devices)),
    }


def _members(payload: str | None) -> dict[str, str]:
    """The members of the payload for shell scripts: `HELIX_PAYLOAD_POD5` has the member `pod5`.

    Texts as they are, else JSON. Only the file has members whose names give the same variable, and
    what is too long.
    """
    document = json.loads(payload or "null")
    members = document if isinstance(document, dict) else {}
    names = {member: _variable(member) for member in members}
    times = Counter(names.values())
    found: dict[str, str] = {}
    left = ENVIRONMENT_BYTES
    for member, value in members.items():
        text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
        size = len(text.encode())
        if times[names[member]] == 1 and size <= left and "\0" not in text:
            found[names[member]] = text
            left -= size
    return found


def _variable(member: str) -> str:
    return f"HELIX_PAYLOAD_{re.sub('[^A-Z0-9_]', '_', member.upper())}"


class CapturedStream:
    """One output of a program on disk: its first bytes, and its last bytes in two files."""

    def __init__(self, directory: Path, name: str) -> None:
        self._head = directory / name
        self._tail = directory / f"{name}.tail"
        self._before = directory / f"{name}.tail.1"

    async def capture(self, pipe: asyncio.StreamReader | None) -> None:
        if pipe is None:
            return
        with self._head.open("wb", buffering=0) as head:
            left = KEPT_BYTES
            while left and (data := await pipe.read(min(READ_BYTES, left))):
                head.write(data)
                left -= len(data)
        file: BinaryIO | None = None
        written = 0
        try:
            while data := await pipe.read(READ_BYTES):
                if file is None or written >= KEPT_BYTES:
                    if file is not None:
                        file.close()
                        self._tail.replace(self._before)
                    file, written = self._tail.open("wb", buffering=0), 0
                file.write(data)
                written += len(data)
        finally:
            if file is not None:
                file.close()

    def excerpt(self, shown: int = SHOWN_BYTES) -> str:
        """Head and tail; bytes that are not UTF-8 are escaped."""
        data = self._last(2 * shown)
        if self._size() > len(data):
            data = self._first(shown) + b"\n[...]\n" + data[-shown:]
        return data.decode("utf-8", "backslashreplace").replace("\0", "\\0")

    def last_line(self) -> str:
        """The last line that is not empty; mostly the reason of a failure."""
        lines = self._last(SHOWN_BYTES).decode("utf-8", "backslashreplace").split("\n")
        return next((line.strip()[:LINE_CHARS] for line in reversed(lines) if line.strip()), "")

    @property
    def _files(self) -> list[Path]:
        return [file for file in (self._head, self._before, self._tail) if file.exists()]

    def _size(self) -> int:
        return sum(file.stat().st_size for file in self._files)

    def _first(self, count: int) -> bytes:
        with self._head.open("rb") as head:
            return head.read(count)

    def _last(self, count: int) -> bytes:
        found = b""
        for path in reversed(self._files):
            with path.open("rb") as file:
                file.seek(max(0, path.stat().st_size - (count - len(found))))
                found = file.read() + found
        return found


def program_failure(code: int, streams: Sequence[CapturedStream]) -> AttemptFailure:
    error = exit_failure(code, "the program")
    excerpts = [stream.excerpt() for stream in reversed(streams)]
    reason = ": ".join(text for text in (str(error), streams[-1].last_line()) if text)
    detail = "\n".join([reason, *(text for text in excerpts if text)])
    return AttemptFailure(error.failure, detail, permanent=error.permanent)


def exit_failure(code: int, what: str) -> AttemptFailure:
    """The failure of an exit code: by itself, or by a signal (also as shells report it)."""
    number = -code if code < 0 else code - 128 if 128 < code < 128 + 65 else 0
    if not number:
        text = f"{what} ended with exit code {code}"
        return AttemptFailure(FailureClass.EXECUTOR, text, permanent=code == EX_DATAERR)
    with suppress(ValueError):
        text = f"{what} was ended by {signal.Signals(number).name}"
        if number == signal.SIGKILL:
            # The kernel does not report why. On a worker machine it is mostly the OOM killer.
            return AttemptFailure(
                FailureClass.OUT_OF_MEMORY, f"{text}, as the kernel does when memory runs out"
            )
        if number in {signal.SIGXCPU, signal.SIGALRM}:
            return AttemptFailure(FailureClass.TIMEOUT, text)
        faults = {signal.SIGSEGV, signal.SIGABRT, signal.SIGBUS, signal.SIGFPE, signal.SIGILL}
        return AttemptFailure(
            FailureClass.EXECUTOR if number in faults else FailureClass.SYSTEM, text
        )
    return AttemptFailure(FailureClass.EXECUTOR, f"{what} ended with exit code {code}")


def read_result(file: Path) -> Any:
    """The result file, if the program wrote one."""
    try:
        return loads(file.read_bytes())
    except FileNotFoundError:
        return None
    except (InvalidPayload, json.JSONDecodeError) as error:
        raise AttemptFailure(
            FailureClass.RESULT, f"the result file is not valid JSON: {error}"
        ) from None


async def _terminate_group(process: asyncio.subprocess.Process) -> None:
    """SIGTERM, then SIGKILL; returns when the process has ended."""
    _signal_group(process.pid, signal.SIGTERM)
    with suppress(TimeoutError):
        async with asyncio.timeout(TERMINATE_SECONDS):
            await process.wait()
    _signal_group(process.pid, signal.SIGKILL)
    await process.wait()


def _signal_group(group: int, number: int) -> None:
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(group, number)
