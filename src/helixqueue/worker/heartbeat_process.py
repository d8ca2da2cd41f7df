"""Renews the leases of a worker: `python -m helixqueue.worker.heartbeat_process`.

The worker starts it and sends lines of JSON: leases that it holds, leases that it dropped, and the
process groups that run them. The process reports renewals and refusals. It has no threads and runs
no handler, so only the machine can delay it. Its input ends when the worker ends.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from helixqueue.errors import HelixError
from helixqueue.failpoints import failpoint
from helixqueue.records.lease import LeaseRef, read_token
from helixqueue.transport.factory import build_transport
from helixqueue.worker.renewal_schedule import RenewalSchedule

if TYPE_CHECKING:
    from collections.abc import Sequence

    from helixqueue.records.lease import WriteResult

LINE_LIMIT = 16 * 1024 * 1024
GROUP_CHECK_SECONDS = 0.1
# Leases are read in intervals: a busy worker sends a thousand lines a second, and each would wake
# this process.
READ_INTERVAL_SECONDS = 0.02
END_SECONDS = 2.0  # for the report that the worker died


class HeartbeatProcess:
    def __init__(self, parent: int) -> None:
        self.schedule = RenewalSchedule()
        self._groups: dict[int, int] = {}
        self._parent = parent
        self._pauses: set[asyncio.Future[None]] = set()

    # Results of renewals.

    def renewed(self, leases: Sequence[tuple[int, int | str]], sent_at: float) -> None:
        _report("renewed", leases, sent_at)

    def refused(self, batch: int, number: int | str, owner: str | None, state: str | None) -> None:
        self._kill_group(batch)
        _report("refused", batch, number, owner, state)

    # Messages of the worker.

    def handle(self, kind: str, value: Any) -> None:
        if kind == "add":
            for token, lease_seconds, claimed_at, batches in value:
                shared = read_token(token)
                for batch in batches:
                    self.schedule.add(LeaseRef(batch, shared), lease_seconds, claimed_at)
        elif kind == "drop":
            self.schedule.drop(value)
        elif kind == "pause":
            pause = asyncio.ensure_future(self._pause(value))
            self._pauses.add(pause)
            pause.add_done_callback(self._pauses.discard)
        elif kind == "group":
            batch, group = value
            if group is None:
                self._groups.pop(batch, None)
            else:
                self._groups[batch] = group

    async def _pause(self, batch: int) -> None:
        await self.schedule.pause(batch)
        _report("paused", batch)

    def is_worker_stopped(self) -> bool:
        """Whether SIGSTOP or a debugger stopped the worker: then its leases must expire."""
        return _process_state(self._parent) in {"T", "t"}

    async def kill_expired_groups(self) -> None:
        """Kill the programs of leases that were not renewed, also while the worker cannot."""
        while True:
            await asyncio.sleep(GROUP_CHECK_SECONDS if self._groups else 1.0)
            now = time.monotonic()
            for batch in list(self._groups):
                entry = self.schedule.entries.get(batch)
                if entry is not None and entry.abandon_at < now:
                    self._kill_group(batch)

    def kill_groups(self) -> None:
        for batch in list(self._groups):
            self._kill_group(batch)

    def _kill_group(self, batch: int) -> None:
        group = self._groups.pop(batch, None)
        if group is not None:
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(group, signal.SIGKILL)


def _process_state(pid: int) -> str:
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
        # The state follows the program name, which may contain parentheses and spaces.
        return stat.rpartition(")")[2].split()[0]
    except OSError:
        if Path("/proc/self").exists():
            return ""
    # Systems without /proc.
    ps = subprocess.run(  # noqa: S603
        ["/bin/ps", "-o", "state=", "-p", str(pid)], capture_output=True, text=True, check=False
    )
    return ps.stdout.strip()[:1]


def _report(*values: object) -> None:
    with suppress(BrokenPipeError):
        sys.stdout.write(json.dumps(values) + "\n")
        sys.stdout.flush()


async def read_messages(
    process: HeartbeatProcess, source: asyncio.ReadTransport, reader: asyncio.StreamReader
) -> bool:
    """Handle messages until the input ends; returns whether the worker closed it."""
    kind, rest = "", b""
    while data := await reader.read(LINE_LIMIT):
        *lines, rest = (rest + data).split(b"\n")
        is_urgent = True
        for line in lines:
            kind, value = json.loads(line)
            process.handle(kind, value)
            is_urgent = is_urgent and kind not in {"add", "drop"}
        if not is_urgent:
            source.pause_reading()
            await asyncio.sleep(READ_INTERVAL_SECONDS)
            source.resume_reading()
    return kind == "close"


async def main() -> None:
    loop = asyncio.get_running_loop()
    reader = asyncio.StreamReader(limit=LINE_LIMIT)
    source, _ = await loop.connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(reader), sys.stdin
    )
    _, spec = json.loads(await reader.readline())
    process = HeartbeatProcess(spec.pop("parent"))
    transport = build_transport(spec)

    async def renew(leases: Sequence[LeaseRef]) -> list[WriteResult]:
        failpoint("renew.before")
        call = transport.calls.renew(worker=transport.worker, leases=leases)
        results: list[WriteResult] = await transport.run(call)
        failpoint("renew.after")
        return results

    renewing = loop.create_task(process.schedule.run(renew, process, process.is_worker_stopped))
    reading = loop.create_task(read_messages(process, source, reader))
    killing = loop.create_task(process.kill_expired_groups())
    _report("started")
    # It ends if renewing fails: the worker starts another process.
    await asyncio.wait([renewing, reading], return_when=asyncio.FIRST_COMPLETED)
    if reading.done() and not reading.result():
        # The worker died. Its programs must not run beside the next attempt.
        process.kill_groups()
        ended = transport.calls.hello(worker=transport.worker, tenant=transport.tenant, ended=True)
        with suppress(HelixError, TimeoutError):
            await asyncio.wait_for(transport.run(ended), END_SECONDS)
    for task in (renewing, reading, killing):
        task.cancel()
    await asyncio.gather(renewing, reading, killing, return_exceptions=True)
    await transport.close()


if __name__ == "__main__":
    # It ends with its input, not with signals that are sent to the worker's group or session.
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    asyncio.run(main())
    # The worker waits for this process: skip the interpreter's teardown.
    os._exit(0)
