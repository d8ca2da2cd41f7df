"""Exit codes of `helixq`: scripts depend on them, so a code never changes its meaning."""

from __future__ import annotations

from enum import IntEnum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from helixqueue.errors import HelixError


class Exit(IntEnum):
    OK = 0
    NO = 1  # the command ran, and its answer is no: a failed check, an unknown batch
    USAGE = 2  # invalid command line (Typer's own code)
    UNAVAILABLE = 3  # the database or service cannot be reached
    SCHEMA = 4  # the schema does not fit this release: run `helixq migrate`
    REFUSED = 5  # not permitted, conflicting or invalid: a retry fails again
    BUSY = 6  # in progress elsewhere, or a deadlock: retry later
    IN_DOUBT = 7  # an external effect may or may not have happened
    FAILED = 8  # another failure with an error message
    UNSIGNED = 10  # a receipt is consistent, but not signed by a known key
    CANCELLED = 11  # the run was cancelled
    TIMEOUT = 12  # what was waited for did not happen in time
    RUNNING = 9  # another `helixq up` runs in that directory
    BUG = 70  # an unexpected error (EX_SOFTWARE of sysexits.h)
    INTERRUPTED = 130  # by Ctrl-C, as in shells


def exit_for(error: HelixError) -> Exit:
    return Exit(error.exit_status)
