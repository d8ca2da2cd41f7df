"""The command `helixq`: one module per verb or noun, each with `register(app)`."""

from __future__ import annotations

import os
import signal
import sys


def leave_quietly(*_: object) -> None:
    """Exit with 130 on Ctrl-C while modules load.

    A KeyboardInterrupt during an import would print a long traceback, or be swallowed. There is
    nothing to clean up yet.
    """
    os._exit(130)


# This runs before any slow import, and only in the program itself: a program that imports this
# package keeps its own signal handlers.
if (
    os.path.basename(sys.argv[0] if sys.argv else "") == "helixq"  # noqa: PTH119 - faster
    and signal.getsignal(signal.SIGINT) is signal.default_int_handler
):
    signal.signal(signal.SIGINT, leave_quietly)
