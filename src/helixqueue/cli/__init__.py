"""The command `helixq`: one module per verb, each with `register(app)`."""

from __future__ import annotations

import os
import signal
import sys


def leave_quietly(*_: object) -> None:
    """Whoever changes his mind while the program loads sees nothing, and a shell sees 130.

    A KeyboardInterrupt in the middle of an import is a screen full of lines that mean nothing, and
    some import may take it for something else. There is nothing to clean up yet.
    """
    os._exit(130)


# The first thing that the program does, so nothing is loaded before that takes time. Only in the
# program itself; whoever imports us has ways of his own.
if (
    os.path.basename(sys.argv[0] if sys.argv else "") == "helixq"  # noqa: PTH119 - quicker
    and signal.getsignal(signal.SIGINT) is signal.default_int_handler
):
    signal.signal(signal.SIGINT, leave_quietly)
