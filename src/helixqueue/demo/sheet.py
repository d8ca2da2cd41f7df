"""The sheet of a sequencing run, as it comes from people: one sample twice, one name broken."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from helixqueue.queues import Queue

if TYPE_CHECKING:
    from helixqueue.client.sync import HelixQueue
    from helixqueue.records.submission import Submitted

TENANT = "lab"
LEASE_SECONDS = 2.0
SAMPLES = 12
BASECALL: Queue[Any, Any] = Queue(
    "basecall", profile="lab-id-v1", lease=LEASE_SECONDS, max_attempts=5
)

# The same tube, typed on two keyboards: ä as one code point, and as a with a combining mark.
NFC = "S\u00e4mple-07"
NFD = "Sa\u0308mple-07"
# A zero-width space, pasted from a web page: nobody can see it, and it would make a second tube.
BROKEN = "Sample\u200b-99"


class Row(NamedTuple):
    """A line of the sheet, and what became of it."""

    identity: str
    answer: Submitted[Any]


def sheet() -> list[tuple[str, str]]:
    """Identities and the files they stand for."""
    numbers = [number for number in range(1, SAMPLES + 1) if number != 7]
    rows = [(f"Sample-{number:02d}", f"run42/{number:02d}.pod5") for number in numbers]
    return [*rows, (NFD, "run42/07.pod5"), (NFC, "run42/07.pod5"), (BROKEN, "run42/99.pod5")]


def submit_sheet(helix: HelixQueue) -> list[Row]:
    """Queue the sheet; what breaks its profile hinders no other row."""
    rows = sheet()
    answers = helix.submit_many(
        BASECALL, [{"identity": name, "payload": {"pod5": file}} for name, file in rows]
    )
    return [Row(name, answer) for (name, _), answer in zip(rows, answers, strict=True)]
