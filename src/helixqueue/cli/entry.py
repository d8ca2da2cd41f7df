"""Where `helixq` begins: loads nothing before it is ready for Ctrl-C."""

from __future__ import annotations

import signal

from helixqueue.cli import leave_quietly

TYPE_CHECKING = False  # as `typing` has it, which takes a while to load
if TYPE_CHECKING:
    from typing import NoReturn


def main() -> NoReturn:
    """Run `helixq`; from the moment when a command runs on, Ctrl-C lets it clean up (main.py)."""
    signal.signal(signal.SIGINT, leave_quietly)
    from helixqueue.cli.main import main as run  # noqa: PLC0415 - it takes a third of a second

    run()
