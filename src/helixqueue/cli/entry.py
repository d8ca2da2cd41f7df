"""Where `helixq` begins: loads nothing before it is ready for Ctrl-C."""

from __future__ import annotations

import signal
import sys
from typing import NoReturn


def main() -> NoReturn:
    """Run `helixq`; whoever changes their mind while it loads sees no traceback."""
    signal.signal(signal.SIGINT, lambda *_: sys.exit(130))
    from helixqueue.cli.main import main as run  # noqa: PLC0415 - it takes a third of a second

    signal.signal(signal.SIGINT, signal.default_int_handler)
    run()
