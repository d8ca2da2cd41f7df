"""Logs and counts submissions whose identity was refused, and accepted ones that have none.

A refused identity is logged as the bytes that came, in hex: a lab finds the tube by them, and no
terminal or log collector changes them. A batch without identity cannot be recognised when it is
submitted again, so a queue that accepts such work warns about each.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Sequence
    from uuid import UUID

LOG: Final = logging.getLogger("helixqueue.identity")
MAX_LINES: Final = 20  # of one call; the last line has the number of the others
MAX_HEX_CHARS: Final = 2048


class IdentityLog:
    """One per client, or per service, whose request log has the lines (`writes_lines=False`)."""

    def __init__(self, *, writes_lines: bool = True) -> None:
        self.refused_identities = 0
        self.accepted_without_identity = 0
        self._writes_lines = writes_lines

    def add_refused(self, queue: str, refused: Sequence[tuple[bytes, str]]) -> None:
        """Log raw bytes and reasons of identities that violate their profile, or are missing."""
        self.refused_identities += len(refused)
        lines = [
            f"identity refused: queue={queue} raw_hex={raw.hex()[:MAX_HEX_CHARS]} reason={reason}"
            for raw, reason in refused[:MAX_LINES]
        ]
        if len(refused) > MAX_LINES:
            lines.append(f"identity refused: queue={queue} more={len(refused) - MAX_LINES}")
        self._write(logging.INFO, lines)  # the caller has the error

    def add_without_identity(self, queue: str, batches: Sequence[UUID]) -> None:
        """Log batches that a queue with unknown="accept" took without an identity."""
        self.accepted_without_identity += len(batches)
        start = f"accepted without identity: queue={queue}"
        lines = [
            f"{start} batch={batch}; submitted again, it would be another batch"
            for batch in batches[:MAX_LINES]
        ]
        if len(batches) > MAX_LINES:
            lines.append(f"{start} more={len(batches) - MAX_LINES}")
        self._write(logging.WARNING, lines)

    def _write(self, level: int, lines: list[str]) -> None:
        if self._writes_lines:
            for line in lines:
                LOG.log(level, "%s", line)
