"""A module run so that it ends when its starter does, however that ends.

`python -m helixqueue.parent_watch MODULE ARGUMENT...`, with a pipe from the starter as its
standard input.
The kernel closes the pipe when the starter is gone, also by `kill -9`; nothing else is sent.
"""

from __future__ import annotations

import os
import runpy
import signal
import sys
import threading
import time
from typing import Final

PATIENCE_SECONDS: Final = 10.0


def follow() -> None:
    """End this process, as a signal would, when standard input ends."""
    threading.Thread(target=_wait, name="tether", daemon=True).start()


def _wait() -> None:
    while os.read(0, 4096):
        pass
    # The first asks it to finish, the second to leave at once; the third is no question.
    for one in (signal.SIGTERM, signal.SIGTERM, signal.SIGKILL):
        os.kill(os.getpid(), one)
        time.sleep(PATIENCE_SECONDS)


if __name__ == "__main__":
    follow()
    sys.argv = sys.argv[1:]
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
