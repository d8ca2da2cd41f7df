"""Compares the database with seals: finds what its own hashes cannot show.

A cut tail, a history that was rewritten with recomputed hashes, a forged completion, a removed
batch: inside the database these are consistent, but the digests of a seal no longer match.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from helixqueue.errors import Refused
from helixqueue.operate.check import WITNESSES, CheckResult
from helixqueue.operate.seal import EXPIRING, MARK_BYTES, SEALS, range_of, read_pages, read_witness
from helixqueue.postgres.snapshot import snapshot

if TYPE_CHECKING:
    from psycopg import Connection

    from helixqueue.fence.signing import Signer

Page = dict[str, Any]  # of a seal
# Name: promise, meaning, remedy.
INVARIANTS = {
    "seal_forged": (
        "G3",
        (
            "A seal was not signed by a known key, was edited, or is not the next one of its "
            "series; or the seals before the first one are missing."
        ),
        "Use the copy of the seals that is kept elsewhere, and the published public keys.",
    ),
    "sealed_record_missing": (
        "G3",
        (
            "Sealed records are not in the database: the tail of the ledger was cut, a batch was "
            "removed, or a failover or restore lost them (see `helix.epoch`)."
        ),
        "Restore them from a backup or a standby that has the last sealed entry.",
    ),
    "sealed_record_changed": (
        "G3",
        "A record is not the one that was sealed, though its hash may fit: history was rewritten.",
        "The first witness is the place; compare it with an export or a backup.",
    ),
    "sealed_record_added": (
        "G3",
        (
            "A transaction that was over when the seal was made has more records than were "
            "sealed: a step was forged."
        ),
        "The first witness is the place; compare it with an export or a backup.",
    ),
    "sealed_request_changed": (
        "G1",
        (
            "What a batch asked for (actor, time, priority, class, run, fingerprint and others) is "
            "not what was sealed with its submission."
        ),
        "Compare the batches of these entries with an export or a backup.",
    ),
}


@dataclass(slots=True)
class SealFinding:
    """An invariant that a seal shows to be broken."""

    name: str
    count: int
    witness: dict[str, Any]


def check_seals(
    connection: Connection[Any],
    seals: Sequence[dict[str, Any]],
    keys: Sequence[Signer],
    progress: Callable[[int], None] | None = None,
    start: str | None = None,
) -> list[CheckResult]:
    """Verify a series of seals and compare all that they cover, in one snapshot."""
    with snapshot(connection):
        return check_seals_within(connection, seals, keys, progress, start)


def check_seals_within(
    connection: Connection[Any],
    seals: Sequence[dict[str, Any]],
    keys: Sequence[Signer],
    progress: Callable[[int], None] | None = None,
    start: str | None = None,
) -> list[CheckResult]:
    """As `check_seals`, inside the transaction of the connection."""
    return verify_seals(seals, keys, partial(_compare, connection), progress, start)


def verify_seals(
    seals: Sequence[dict[str, Any]],
    keys: Sequence[Signer],
    compare: Callable[[dict[str, Any]], list[SealFinding]],
    progress: Callable[[int], None] | None = None,
    start: str | None = None,
) -> list[CheckResult]:
    """Verify the signatures and the order of seals; `compare` examines what a seal covers.

    The first seal is the first of its ledger, or its digest is `start`.
    """
    if not seals:
        raise Refused("expected at least one seal to compare with, got none")
    findings: list[SealFinding] = []
    previous: dict[str, Any] | None = None
    for number, seal in enumerate(seals, 1):
        faults = _forged(seal, previous, keys, start)
        findings += [
            SealFinding("seal_forged", 1, {"seal": seal.get("number"), "what": fault})
            for fault in faults
        ]
        if not faults:
            findings += compare(seal)
            previous = seal
        if progress is not None:
            progress(number)
    return [_result(name, findings) for name in INVARIANTS]


def _forged(
    seal: dict[str, Any],
    previous: dict[str, Any] | None,
    keys: Sequence[Signer],
    start: str | None,
) -> list[str]:
    faults = SEALS.faults(seal, previous, keys, start)
    if faults or previous is None:
        return faults
    if range_of(seal)[0] != range_of(previous)[1]:
        return ["it does not continue where the seal before it ended"]
    return []


def _compare(connection: Connection[Any], seal: dict[str, Any]) -> list[SealFinding]:
    sealed, found = (
        _by_kind(seal["pages"]),
        _by_kind(read_pages(connection, *range_of(seal))),
    )
    findings = []
    for kind in MARK_BYTES:
        difference = _difference(kind, sealed.get(kind, []), found.get(kind, []))
        if difference is not None:
            name, count, place = difference
            witness = read_witness(connection, kind, seal, place) or {"after": "the last record"}
            head = {"seal": seal["number"], "sealed_at": seal["sealed_at"], "kind": kind}
            findings.append(SealFinding(name, count, head | witness))
    findings += _changed_requests(seal, sealed.get("entry", []), found.get("entry", []))
    return findings


def _difference(kind: str, sealed: list[Page], found: list[Page]) -> tuple[str, int, int] | None:
    """The invariant that is broken, by how many records, and the place of the first one."""
    if [page["digest"] for page in sealed] == [page["digest"] for page in found]:
        return None
    before, now = _marks(kind, sealed), _marks(kind, found)
    if kind in EXPIRING:
        # Retention deletes such records; those that are left must be among the sealed ones.
        rest = iter(before)
        changed = [place for place, mark in enumerate(now) if mark not in rest]
        return ("sealed_record_changed", len(changed), changed[0]) if changed else None
    place = next((n for n, (a, b) in enumerate(zip(before, now, strict=False)) if a != b), None)
    if place is None:
        place = min(len(before), len(now))
    if len(now) == len(before):
        # Equal marks of different digests: the page is known, not the record.
        unequal = (n for n, page in enumerate(sealed) if page["digest"] != found[n]["digest"])
        place = place if place < len(now) else next(unequal) * sealed[0]["rows"]
        changed_marks = sum(a != b for a, b in zip(before, now, strict=True))
        return "sealed_record_changed", max(changed_marks, 1), place
    name = "sealed_record_missing" if len(now) < len(before) else "sealed_record_added"
    return name, abs(len(before) - len(now)), place


def _changed_requests(
    seal: dict[str, Any], sealed: list[Page], found: list[Page]
) -> list[SealFinding]:
    changed = [
        page
        for page, now in zip(sealed, found, strict=False)
        # Null in the database: retention archived the entries that name the batches.
        if page["digest"] == now["digest"]
        and page["requests"]
        and now["requests"]
        and page["requests"] != now["requests"]
    ]
    if not changed:
        return []
    witness = {
        "seal": seal["number"],
        "sealed_at": seal["sealed_at"],
        "first_entry": int(changed[0]["first"]),
        "last_entry": int(changed[0]["last"]),
    }
    return [SealFinding("sealed_request_changed", len(changed), witness)]


def _by_kind(pages: list[Page]) -> dict[str, list[Page]]:
    kinds: dict[str, list[Page]] = {}
    for page in pages:
        kinds.setdefault(page["kind"], []).append(page)
    return kinds


def _marks(kind: str, pages: list[Page]) -> list[bytes]:
    size = MARK_BYTES[kind]
    marks = b"".join(base64.b64decode(page["marks"]) for page in pages)
    return [marks[n : n + size] for n in range(0, len(marks), size)]


def _result(name: str, findings: list[SealFinding]) -> CheckResult:
    promise, meaning, remedy = INVARIANTS[name]
    own = [finding for finding in findings if finding.name == name]
    return CheckResult(
        name,
        promise,
        sum(finding.count for finding in own),
        meaning,
        remedy,
        [finding.witness for finding in own[:WITNESSES]],
    )
