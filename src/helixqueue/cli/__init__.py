"""The command `helixq`: one module per verb, each with `register(app)`."""

from __future__ import annotations

import signal
import sys
from pathlib import PurePath

# Until `main` answers for it, Ctrl-C ends the program without a word: loading takes a while, and a
# KeyboardInterrupt in the middle of an import is a screen full of lines that mean nothing. Only in
# the program itself; whoever imports us has ways of his own.
if (
    PurePath(sys.argv[0] if sys.argv else "").name == "helixq"
    and signal.getsignal(signal.SIGINT) is signal.default_int_handler
):
    signal.signal(signal.SIGINT, signal.SIG_DFL)
