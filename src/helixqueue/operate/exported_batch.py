"""The requests in an export: which key has which batch number, and the history of one batch.

Instructions name batches by number. The entry that submitted a batch also has its request, as
`helix.asked_bytes` encodes it, and a page of a seal has a digest of these. A request begins with
the key of the batch and contains its number, so the digest binds the one to the other.
"""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import sha256

from helixqueue.fence.receipt import time_text
from helixqueue.identity import key_bytes, key_text, stored_public_id
from helixqueue.ledger.chain import INT8, LedgerEntry, integers, moment
from helixqueue.ledger.fold import Step, step_of

_KEY = 33  # bytes of a key: its version and a SHA-256
_HEAD = _KEY + 32 + 8  # key, fingerprint, time
_FIELDS = 11  # the number of the batch is the first, the actor and its length are the last


@dataclass(frozen=True, slots=True)
class ExportedStep:
    """One step of a batch, as people read it."""

    at: str
    reason: str
    from_state: str | None
    to_state: str
    attempt: int
    actor: str
    late: bool


@dataclass(frozen=True, slots=True)
class ExportedHistory:
    """The verified steps of one batch, or the reason why there are none."""

    batch_id: str | None = None
    key: str | None = None
    steps: Sequence[ExportedStep] = ()
    fault: str | None = None


def parse_ref(text: str) -> uuid.UUID | bytes:
    """A public id, or a key `v1:...`; raises ValueError for other texts."""
    return key_bytes(text) if ":" in text else uuid.UUID(text)


class ExportedRequests:
    """Digests of the requests of each submitting entry, and the requests of one wanted batch."""

    def __init__(self, wanted: uuid.UUID | bytes | None = None) -> None:
        self._wanted = wanted
        # By transaction, too: a forged line outside of all seals may repeat a sealed number.
        self._digests: dict[tuple[int, int, int], bytes] = {}
        self._found: dict[tuple[int, int, int], tuple[bytes, int]] = {}
        self._verified: set[tuple[int, int, int]] = set()

    def add(self, entry: LedgerEntry, requests: Sequence[bytes]) -> None:
        """Read the requests of an entry; those that do not belong to it get no digest."""
        numbers = [_batch_number(request) for request in requests]
        # A request contains its length. This comparison finds requests that were cut elsewhere,
        # which a digest of all of them cannot show.
        if numbers != _batches(entry):
            return
        self._digests[_place(entry)] = sha256(b"".join(requests)).digest()
        if self._wanted is None:
            return
        for request, number in zip(requests, numbers, strict=True):
            key = request[:_KEY]
            if self._wanted in {key, stored_public_id(key)} and number is not None:
                self._found[_place(entry)] = key, number

    def verify(self, sealed: str | None, entries: Sequence[LedgerEntry]) -> bool:
        """Whether the requests of a page are those that its seal covers, as seal_pages_v1 has it.

        A page with archived entries has no digest: nothing differs, and nothing is verified.
        """
        submitted = [entry for entry in entries if entry.from_state is None]
        if any(entry.batch is None for entry in submitted):
            return True
        digests = [self._digests.get(_place(entry), b"") for entry in submitted]
        if sealed != (sha256(b"".join(digests)).hexdigest() if digests else None):
            return False
        self._verified.update(map(_place, submitted))
        return True

    def history(self, sealed: Sequence[LedgerEntry]) -> ExportedHistory:
        """The history of the wanted batch in entries that seals cover and that were verified."""
        found = {batch for place, batch in self._found.items() if place in self._verified}
        if len(found) != 1:
            return ExportedHistory(fault="the sealed entries of the export have no such batch")
        [(key, number)] = found
        steps = [step for entry in sealed if (step := step_of(entry, number)) is not None]
        if not _is_complete(steps, sealed):
            return ExportedHistory(fault="steps of this batch may be in archived entries")
        shown = [
            ExportedStep(
                time_text(moment(step.at)), step.reason, step.from_state, step.to_state,
                step.attempt, step.actor, step.late,
            )
            for step in steps
        ]  # fmt: skip
        return ExportedHistory(str(stored_public_id(key)), key_text(key), shown)


def _place(entry: LedgerEntry) -> tuple[int, int, int]:
    return entry.position, entry.id, entry.part


def _batches(entry: LedgerEntry) -> list[int] | None:
    """The batch numbers of an entry, sorted; None if it is archived or malformed."""
    try:
        return None if entry.batch is None else sorted(integers(INT8, entry.batch))
    except ValueError:
        return None  # the fold reports it


def _batch_number(request: bytes) -> int | None:
    """The batch number in a request; None if it is not exactly one request."""
    fields = request[_HEAD:].split(b">", _FIELDS - 1)
    if len(fields) != _FIELDS or fields[-2] != b"%d" % len(fields[-1]) or not fields[0].isdigit():
        return None
    return int(fields[0])


def _is_complete(steps: Sequence[Step], entries: Sequence[LedgerEntry]) -> bool:
    """Whether each step links to the one before it, and no archived entry can be the next one."""
    before = [None, *(step.entry for step in steps)]
    last = steps[-1]
    return [step.before for step in steps] == before[:-1] and not any(
        entry.batch is None and entry.id > last.entry and entry.from_state == last.to_state
        for entry in entries
    )
