"""The sheet of a sequencing run, as it comes from people: one sample twice, one name broken."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from helixqueue.errors import InvalidIdentity
from helixqueue.identity import canonical_text, canonicalize
from helixqueue.store import calls
from helixqueue.store.rows import SubmissionRow

if TYPE_CHECKING:
    from helixqueue.store.database import Database
    from helixqueue.store.rows import SubmittedRow

TENANT = "lab"
QUEUE = "basecall"
PROFILE = "lab-id-v1"
LEASE_SECONDS = 1.5
SAMPLES = 24

# The same tube, typed on two keyboards: ä as one code point, and as a with a combining mark.
NFC = "S\u00e4mple-07"
NFD = "Sa\u0308mple-07"
# A zero-width space, pasted from a web page: nobody can see it, and it would make a second tube.
BROKEN = "Sample\u200b-99"


class Row(NamedTuple):
    identity: str
    pod5: str


class Intake(NamedTuple):
    rows: int
    submitted: list[SubmittedRow]
    refused: list[tuple[str, InvalidIdentity]]


def sheet() -> list[Row]:
    rows = [Row(f"Sample-{number:02d}", f"run42/{number:02d}.pod5") for number in range(1, SAMPLES)]
    return [*rows, Row(NFC, "run42/a7.pod5"), Row(NFD, "run42/a7.pod5"), Row(BROKEN, "x.pod5")]


def submit_sheet(database: Database) -> Intake:
    """Queue the sheet; what breaks its profile is kept aside with the reason."""
    database.run(
        calls.set_queue(
            tenant=TENANT, queue=QUEUE, profile=PROFILE, lease_seconds=LEASE_SECONDS, max_attempts=5
        )
    )
    rows = sheet()
    submissions, refused = [], []
    for row in rows:
        try:
            identity = canonicalize(row.identity, PROFILE)
        except InvalidIdentity as error:
            refused.append((row.identity, error))
            continue
        payload = canonical_text({"pod5": row.pod5})
        submissions.append(SubmissionRow(identity.text, payload, raw=identity.raw_text))
    submitted = database.run(
        calls.submit(tenant=TENANT, queue=QUEUE, profile=PROFILE, rows=submissions, actor="sheet")
    )
    database.run(
        calls.note_refused(
            tenant=TENANT,
            queue=QUEUE,
            refused=[(raw.encode(), error.code) for raw, error in refused],
            actor="sheet",
        )
    )
    return Intake(len(rows), submitted, refused)
