"""The sample sheet of a sequencing run: one sample in two spellings, one invalid identity."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from helixqueue.queues import Queue

if TYPE_CHECKING:
    from helixqueue.client.sync import HelixQueue
    from helixqueue.records.submission import Submitted

# A tenant and a queue that no other program uses: the demo kills workers and judges its own work
# only, so programs that share its database are neither disturbed nor counted.
TENANT = "demo"
QUEUE = "demo-basecall"
LEASE_SECONDS = 2.0
SAMPLES = 12
BASECALL: Queue[Any, Any] = Queue(QUEUE, profile="lab-id-v1", lease=LEASE_SECONDS, max_attempts=5)

# The same tube, typed on two keyboards: ä as one code point, and as a with a combining mark.
NFC = "S\u00e4mple-07"
NFD = "Sa\u0308mple-07"
# An invisible zero-width space, pasted from a web page; it would create a second sample.
INVALID = "Sample\u200b-99"


class SheetRow(NamedTuple):
    """One row of the sheet and the answer to its submission."""

    identity: str
    answer: Submitted[Any]


def sheet() -> list[tuple[str, str]]:
    """Identities and the files they stand for."""
    numbers = [number for number in range(1, SAMPLES + 1) if number != 7]
    rows = [(f"Sample-{number:02d}", f"run42/{number:02d}.pod5") for number in numbers]
    return [*rows, (NFD, "run42/07.pod5"), (NFC, "run42/07.pod5"), (INVALID, "run42/99.pod5")]


def submit_sheet(helix: HelixQueue) -> list[SheetRow]:
    """Submit every row; a refused row does not affect the others."""
    rows = sheet()
    answers = helix.submit_many(
        BASECALL, [{"identity": identity, "payload": {"pod5": file}} for identity, file in rows]
    )
    return [SheetRow(identity, answer) for (identity, _), answer in zip(rows, answers, strict=True)]
