"""The thread that notices a server's death and brings it back."""

from __future__ import annotations

import logging
import os
import select
import subprocess
import threading
import time
from typing import TYPE_CHECKING

from helixqueue.embedded.sharing import breathing
from helixqueue.errors import HelixError

if TYPE_CHECKING:
    from collections.abc import Callable

    from helixqueue.embedded.sharing import Sharing

log = logging.getLogger(__name__)

# A server that dies within the first second of its life is restarted ever more slowly, up to this.
SETTLED_S = 1.0
SLOWEST_S = 5.0


class Supervisor:
    """Sleeps in `select` until the server's last process ends, then calls `restart`.

    Every process that uses a server supervises it, so it does not matter which of them started it
    and which are left; `restart` takes the lock, finds the server up when another was faster, and
    is then done. Who wants to stop the server first ends its supervisor: a clean stop happens only
    after the last user has left, and so is never mistaken for a death.
    """

    def __init__(self, name: str, sharing: Sharing, restart: Callable[[], None]) -> None:
        self._name = name
        self._sharing = sharing
        self._restart = restart
        self._wake_reader, self._wake_writer = os.pipe()
        self._thread = threading.Thread(target=self._run, name=f"{name}-supervisor", daemon=True)
        self._thread.start()

    def end(self) -> None:
        """Return once the thread has ended; a restart under way is finished first."""
        os.write(self._wake_writer, b"x")
        self._thread.join()
        os.close(self._wake_writer)
        os.close(self._wake_reader)

    def _run(self) -> None:
        pause_s = 0.0
        back_at = float("-inf")
        while self._server_died():
            settled = time.monotonic() - back_at > SETTLED_S
            pause_s = 0.0 if settled else min(max(2 * pause_s, 0.1), SLOWEST_S)
            when = f" in {pause_s:.1f} s" if pause_s else ""
            log.warning("%s died; restarting it%s", self._name, when)
            if self._asked_to_end(pause_s):
                return
            try:
                self._restart()
            except (HelixError, OSError, subprocess.SubprocessError):
                log.exception("%s did not come back", self._name)
            else:
                log.warning("%s is back", self._name)
            back_at = time.monotonic()

    def _server_died(self) -> bool:
        """Wait; True when the server's last process has ended, False when asked to end."""
        reader = self._sharing.listen()
        try:
            if breathing(reader):
                select.select([reader, self._wake_reader], [], [])
        finally:
            os.close(reader)
        return not self._asked_to_end(0)

    def _asked_to_end(self, timeout_s: float) -> bool:
        return bool(select.select([self._wake_reader], [], [], timeout_s)[0])
