"""A thread that restarts a server that dies."""

from __future__ import annotations

import logging
import os
import select
import subprocess
import threading
import time
from collections.abc import Callable

from helixqueue.embedded.sharing import Sharing, has_writer
from helixqueue.errors import HelixError

log = logging.getLogger(__name__)

# A server that dies within its first second is restarted with increasing pauses, up to SLOWEST_S.
SETTLED_S = 1.0
SLOWEST_S = 5.0


class Supervisor:
    """Sleeps in `select` until the server's last process ends, then calls `restart`.

    Every process that uses a server supervises it, regardless of which process started it.
    `restart` takes the lock and returns at once when another process has restarted the server.
    Users end their supervisor before they leave: a clean stop happens after the last user has left
    and is never taken for a crash.
    """

    def __init__(self, name: str, sharing: Sharing, restart: Callable[[], None]) -> None:
        self._name = name
        self._sharing = sharing
        self._restart = restart
        self._wake_reader, self._wake_writer = os.pipe()
        self._thread = threading.Thread(target=self._run, name=f"{name}-supervisor", daemon=True)
        self._thread.start()

    def end(self) -> None:
        """End the thread; waits for a restart in progress."""
        os.write(self._wake_writer, b"x")
        self._thread.join()
        os.close(self._wake_writer)
        os.close(self._wake_reader)

    def _run(self) -> None:
        pause_s = 0.0
        restarted_at = float("-inf")
        while self._server_died():
            settled = time.monotonic() - restarted_at > SETTLED_S
            pause_s = 0.0 if settled else min(max(2 * pause_s, 0.1), SLOWEST_S)
            when = f" in {pause_s:.1f} s" if pause_s else ""
            log.warning("%s died; restarting it%s", self._name, when)
            if self._should_end(pause_s):
                return
            try:
                self._restart()
            except (HelixError, OSError, subprocess.SubprocessError):
                log.exception("%s could not be restarted", self._name)
            else:
                log.warning("%s is running again", self._name)
            restarted_at = time.monotonic()

    def _server_died(self) -> bool:
        """Wait; True when the last server process has ended, False when `end` was called."""
        reader = self._sharing.open_liveness_reader()
        try:
            if has_writer(reader):
                select.select([reader, self._wake_reader], [], [])
        finally:
            os.close(reader)
        return not self._should_end(0)

    def _should_end(self, timeout_s: float) -> bool:
        return bool(select.select([self._wake_reader], [], [], timeout_s)[0])
