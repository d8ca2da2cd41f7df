"""Run a module in a process that ends when its parent ends, also by `kill -9`.

`python -m helixqueue.parent_watch MODULE ARGUMENT...`, with a pipe from the parent as its
standard input. The kernel closes the pipe when the parent is gone; nothing is sent through it.
"""

from __future__ import annotations

import os
import runpy
import signal
import sys
import threading
import time
from typing import Final

SIGNAL_INTERVAL_SECONDS: Final = 10.0


def follow() -> None:
    """Signal this process when standard input ends."""
    threading.Thread(target=_wait, name="parent-watch", daemon=True).start()


def _wait() -> None:
    while os.read(0, 4096):
        pass
    # The first SIGTERM drains, the second stops at once.
    for number in (signal.SIGTERM, signal.SIGTERM, signal.SIGKILL):
        os.kill(os.getpid(), number)
        time.sleep(SIGNAL_INTERVAL_SECONDS)


if __name__ == "__main__":
    follow()
    sys.argv = sys.argv[1:]
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
