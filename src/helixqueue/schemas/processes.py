"""The child processes that check JSON against schemas of unknown cost."""

from __future__ import annotations

import atexit
import json
import os
import signal
import socket
import subprocess
import sys
import threading
from contextlib import suppress
from typing import Any, Final

from helixqueue.errors import InvalidPayload, Refused, Unavailable
from helixqueue.schemas.check_process import CPU_SECONDS, MEMORY_BYTES
from helixqueue.schemas.schema import Failure

PROCESSES_MAX: Final = 2
# Real time, for a process that gets no processor: a busy machine must not refuse valid JSON.
WAIT_SECONDS: Final = 30.0
REMEDY: Final = "send a smaller document, or give the queue a simpler schema"


class CheckProcesses:
    """At most `PROCESSES_MAX` processes, started when they are needed. For threads."""

    def __init__(self) -> None:
        self._permits = threading.BoundedSemaphore(PROCESSES_MAX)
        self._idle: list[_CheckProcess] = []

    def check(self, schema: str, text: str | None) -> Failure | None:
        """The first failure of a JSON text; without a text, only compile the schema.

        Raises `Refused` if the document is no schema, `InvalidPayload` if the check takes more
        than its limits, and `Unavailable` if no process answers in time.
        """
        if not self._permits.acquire(timeout=WAIT_SECONDS):
            raise Unavailable(f"{PROCESSES_MAX} schema checks are in progress", retry_after=1)
        try:
            process = self._take()
            answer = process.ask(schema.encode(), None if text is None else text.encode())
            self._idle.append(process)
        finally:
            self._permits.release()
        if answer is not None and "refused" in answer:
            raise Refused(answer["refused"])
        return None if answer is None else Failure(**answer)

    def _take(self) -> _CheckProcess:
        while self._idle:
            process = self._idle.pop()
            if process.is_alive():
                return process
            process.end()
        return _CheckProcess()

    def close(self) -> None:
        while self._idle:
            self._idle.pop().end()


class _CheckProcess:
    def __init__(self) -> None:
        self._socket, child = socket.socketpair()
        self._socket.settimeout(WAIT_SECONDS)
        with child:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "helixqueue.schemas.check_process"],
                stdin=child.fileno(),
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                env=os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
            )

    def is_alive(self) -> bool:
        return self._process.poll() is None

    def ask(self, schema: bytes, text: bytes | None) -> dict[str, Any] | None:
        lengths = b"%d %d\n" % (len(schema), -1 if text is None else len(text))
        parts: list[bytes] = []
        try:
            self._socket.sendall(lengths + schema + (text or b""))
            while not parts or not parts[-1].endswith(b"\n"):
                part = self._socket.recv(65_536)
                if not part:
                    raise ConnectionResetError
                parts.append(part)
        except TimeoutError:
            self.end()
            raise Unavailable(
                f"a schema check had no processor for {WAIT_SECONDS:g} s; try again", retry_after=1
            ) from None
        except BaseException as error:
            ended_by = self.end()
            if isinstance(error, ConnectionError):
                raise _beyond_limits(ended_by) from None
            raise
        answer: dict[str, Any] | None = json.loads(b"".join(parts))
        return answer

    def end(self) -> int:
        """End the process; returns its exit code, negative for a signal."""
        self._socket.close()
        with suppress(subprocess.TimeoutExpired):
            return self._process.wait(timeout=1)  # it ends when its socket is closed
        self._process.kill()
        return self._process.wait()


def _beyond_limits(ended_by: int) -> InvalidPayload:
    took = f"{MEMORY_BYTES // 1024**2} MiB of memory"
    if ended_by == -signal.SIGPROF:
        took = f"{CPU_SECONDS:g} s of processor time"
    return InvalidPayload(
        f"the check against the queue's schema takes more than {took}; {REMEDY}",
        code="schema-limits",
    )


def _forget_processes() -> None:
    """After a fork: the processes belong to the parent."""
    PROCESSES.__init__()  # type: ignore[misc]


PROCESSES: Final = CheckProcesses()
os.register_at_fork(after_in_child=_forget_processes)
atexit.register(PROCESSES.close)
