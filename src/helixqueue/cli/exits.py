"""What `helixq` ends with: scripts branch on these numbers, so they never change their meaning."""

from __future__ import annotations

from enum import IntEnum

from helixqueue.errors import (
    HelixError,
    InDoubt,
    InProgress,
    Refused,
    Retryable,
    SchemaMismatch,
    Unavailable,
)
from helixqueue.up.directory_lock import AlreadyUp


class Exit(IntEnum):
    OK = 0
    NO = 1  # the question was answered, and the answer is no
    USAGE = 2  # Typer's own: the command line makes no sense
    UNAVAILABLE = 3  # the database is away
    SCHEMA = 4  # the database's schema does not fit this release: `helixq migrate`
    REFUSED = 5  # not permitted, conflicting, illegal: asking again changes nothing
    BUSY = 6  # somebody else is at it, or a deadlock: asking again later may do
    IN_DOUBT = 7  # an outside effect may or may not have happened
    FAILED = 8  # any other failure that HelixQueue explains
    RUNNING = 9  # `helixq up` runs in that directory already
    BUG = 70  # one that it does not; not 1, which is an answer (EX_SOFTWARE of sysexits.h)
    INTERRUPTED = 130  # by Ctrl-C, as shells have it


class NoSuchBatch(Refused):
    """A question was answered: no batch goes by that name, or several do."""


# The first that fits; the root comes last.
_BY_ERROR: tuple[tuple[type[HelixError], Exit], ...] = (
    (NoSuchBatch, Exit.NO),
    (AlreadyUp, Exit.RUNNING),
    (Unavailable, Exit.UNAVAILABLE),
    (SchemaMismatch, Exit.SCHEMA),
    (Refused, Exit.REFUSED),
    (InProgress, Exit.BUSY),
    (Retryable, Exit.BUSY),
    (InDoubt, Exit.IN_DOUBT),
    (HelixError, Exit.FAILED),
)


def exit_for(error: HelixError) -> Exit:
    return next(code for kind, code in _BY_ERROR if isinstance(error, kind))
