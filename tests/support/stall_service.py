"""A service in a process of its own that measures how long its event loop stands still.

`python -m tests.support.stall_service DSN [large-policy]`: prints its port; for each line on
standard input it prints the longest stall since the last one, in milliseconds. A stall is the delay
of a timer, but no more than the processor time that the process used meanwhile: on a busy machine
other processes delay timers as well. Time that a hypervisor gave to other machines is no stall; the
kernel may count it as used by the process.
"""

from __future__ import annotations

import asyncio
import json
import os
import socket
import subprocess
import sys
import threading
import time
from contextlib import contextmanager
from pathlib import Path

from helixqueue.dashboard.app import create_app
from helixqueue.fence.policy import OnConflict, Policy, Route
from helixqueue.service import ServiceSettings
from helixqueue.service.run import HttpServer, config_of
from tests.support.lab import POOLED

INTERVAL_SECONDS = 0.005


class StallMonitor:
    def __init__(self):
        self.longest = 0.0

    async def run(self):
        while True:
            began, used, stolen = time.monotonic(), time.process_time(), stolen_seconds()
            await asyncio.sleep(INTERVAL_SECONDS)
            late = time.monotonic() - began - INTERVAL_SECONDS
            taken = max(now - before for now, before in zip(stolen_seconds(), stolen, strict=True))
            self.longest = max(self.longest, min(late, time.process_time() - used) - taken)

    def report(self):
        for _ in sys.stdin:
            longest, self.longest = self.longest, 0.0
            _write(round(longest * 1000, 1))


def stolen_seconds():
    """Seconds that a hypervisor has withheld from each processor."""
    lines = Path("/proc/stat").read_text(encoding="ascii").splitlines()[1 : os.cpu_count() + 1]
    return [int(line.split()[8]) / os.sysconf("SC_CLK_TCK") for line in lines]


def _write(value):
    sys.stdout.write(f"{value}\n")
    sys.stdout.flush()


def large_policy():
    """Rules of 6,000 members: most are about members that no request has."""
    members = tuple(f"/payload/n{number}" for number in range(3000))
    others = tuple(f"/payload/m{number}" for number in range(3000))
    return Policy(
        routes=(Route(required=False, ignore=others),),
        on_conflict=OnConflict(include_diff="values", mask=members),
    )


async def main(dsn, *options):
    listener = socket.create_server(("127.0.0.1", 0), backlog=512)
    settings = ServiceSettings(
        dsn,
        pooled=POOLED,
        requests_per_second=10_000,
        burst=10_000,
        policy=large_policy() if "large-policy" in options else None,
    )
    server = HttpServer(config_of(settings, create_app))
    monitor = StallMonitor()
    threading.Thread(target=monitor.report, daemon=True).start()
    watching = asyncio.create_task(monitor.run())
    _write(listener.getsockname()[1])
    await server.serve(sockets=[listener])
    watching.cancel()


class StallService:
    def __init__(self, process):
        self._process = process
        self.url = f"http://127.0.0.1:{json.loads(process.stdout.readline())}"

    def longest_stall(self):
        """Milliseconds since the last call."""
        self._process.stdin.write("\n")
        self._process.stdin.flush()
        return json.loads(self._process.stdout.readline())


@contextmanager
def stall_service(dsn, *options):
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.support.stall_service", dsn, *options],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    with process:
        try:
            yield StallService(process)
        finally:
            process.terminate()
            process.stdin.close()
            process.wait(timeout=30)


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
