"""The entry point of `helixq`: handles Ctrl-C before it imports anything."""

from __future__ import annotations

import signal

from helixqueue.cli import leave_quietly

TYPE_CHECKING = False  # `typing` itself takes long to import
if TYPE_CHECKING:
    from typing import NoReturn


def main() -> NoReturn:
    """Run `helixq`; `main` changes the handler so that a running command can clean up."""
    signal.signal(signal.SIGINT, leave_quietly)
    from helixqueue.cli.main import main as run  # noqa: PLC0415 - a third of a second

    run()
