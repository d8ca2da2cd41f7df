"""Exports of the ledger, which an auditor verifies with seals and public keys, without a database.

An export is JSONL, one line per ledger entry. The digests of a seal show that its lines are those
that the database had; the fold shows that every step follows from the one before it. It has no
payloads and no identities; the requests of a submitting entry have the keys of its batches.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from hashlib import sha256
from itertools import islice
from mmap import mmap
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, NotRequired
from uuid import UUID

from pydantic import ConfigDict, Field, TypeAdapter, ValidationError, with_config
from typing_extensions import TypedDict

from helixqueue.errors import Refused
from helixqueue.ledger.chain import BYTEA, INT2, INT4, INT8, LedgerEntry, array_of
from helixqueue.ledger.fold import fold
from helixqueue.operate.check_seals import SealFinding, verify_seals
from helixqueue.operate.exported_batch import ExportedHistory, ExportedRequests
from helixqueue.operate.seal import range_of
from helixqueue.postgres.snapshot import snapshot
from helixqueue.postgres.statements import sql_texts

if TYPE_CHECKING:
    from psycopg import Connection

    from helixqueue.fence.signing import Signer
    from helixqueue.operate.check import CheckResult

PAGE = 1_000  # entries of a page of a seal
_ARRAYS = {
    "batch": INT8, "queue": INT4, "version": INT4, "attempt": INT2, "before": INT8,
    "content": BYTEA,
}  # fmt: skip
Int2 = Annotated[int, Field(ge=-(2**15), lt=2**15)]
Int4 = Annotated[int, Field(ge=-(2**31), lt=2**31)]
Int8 = Annotated[int, Field(ge=-(2**63), lt=2**63)]


@with_config(ConfigDict(strict=True, extra="forbid", val_json_bytes="hex"))
class _Line(TypedDict):
    """One line of an export, as the query `entries` of seal.sql writes it."""

    id: Int8
    part: Int2
    at: Int8
    position: Int8
    epoch: Int4 | None
    from_state: str | None
    to_state: str
    reason: str
    late: bool
    hash: bytes
    actor: str
    batch: list[Int8] | None
    queue: list[Int4] | None
    version: list[Int4] | None
    attempt: list[Int2] | None
    before: list[Int8] | None
    content: list[bytes | None] | None
    requests: NotRequired[Annotated[list[bytes], Field(alias="asked")]]


_LINE: Final[TypeAdapter[Any]] = TypeAdapter(_Line)


@dataclass(frozen=True, slots=True)
class ExportResult:
    """What an export shows: entries, batches by their last state, and the faults."""

    entries: int
    states: dict[str, int]
    results: list[CheckResult]
    violations: list[str]
    history: ExportedHistory | None = None  # of the batch that was asked for

    @property
    def ok(self) -> bool:
        return not self.violations and not any(result.count for result in self.results)


def write_export(connection: Connection[Any], seal: dict[str, Any], file: Path) -> int:
    """Append the entries that a seal covers to an export; returns their number.

    An interrupted run may have appended some of them already; those are not written twice.
    """
    count = 0
    first, end = range_of(seal)
    args = {"from_position": first, "to_position": end}
    query = sql_texts("helixqueue.operate", "seal.sql")["entries"]
    present = _appended(file, first)
    with (
        snapshot(connection),
        connection.cursor("export") as cursor,
        file.open("a", encoding="utf-8") as lines,
    ):
        cursor.itersize = 5_000
        for (entry,) in cursor.execute(query.encode(), args):
            count += 1
            earlier = present.get((entry["id"], entry["part"]))
            if earlier is None:
                lines.write(json.dumps(entry, separators=(",", ":")) + "\n")
            elif earlier != entry:
                raise Refused(
                    f"{file}: expected entry {entry['id']} as the database has it, got another; "
                    "compare both with helixq check --against, and export to a new file"
                )
    return count


def _appended(file: Path, from_position: int) -> dict[tuple[int, int], Any]:
    """The entries at the end of an export that no earlier seal covers; half a line is removed."""
    if not file.exists() or file.stat().st_size == 0:
        return {}
    entries = {}
    with file.open("r+b") as opened, mmap(opened.fileno(), 0) as text:
        end = keep = text.rfind(b"\n") + 1
        while end:
            start = text.rfind(b"\n", 0, end - 1) + 1
            entry = json.loads(text[start:end])
            if entry["position"] < from_position:
                break
            entries[entry["id"], entry["part"]] = entry
            end = start
    os.truncate(file, keep)
    return entries


def check_export(
    file: Path,
    seals: Sequence[dict[str, Any]],
    keys: Sequence[Signer],
    batch: UUID | bytes | None = None,
    start: str | None = None,
) -> ExportResult:
    """Verify an export from its first entry on; then read the history of a batch, if one is given.

    `batch` is a public id or a key. Without an intact export there is no history. `start` as in
    `verify_seals`.
    """
    requests = ExportedRequests(batch)
    malformed: list[str] = []
    entries = sorted(_read(file, requests, malformed), key=lambda entry: (entry.id, entry.part))
    results = verify_seals(seals, keys, lambda seal: _compare(entries, seal, requests), start=start)
    folded = fold(entries)
    result = ExportResult(
        len(entries),
        dict(Counter(str(head.state) for head in folded.heads.values())),
        results,
        malformed + [violation.message for violation in folded.violations],
    )
    if batch is None:
        return result
    if not result.ok:
        return replace(result, history=ExportedHistory(fault="the export was not verified"))
    sealed = [entry for entry in entries if any(_covers(seal, entry) for seal in seals)]
    return replace(result, history=requests.history(sealed))


def _covers(seal: dict[str, Any], entry: LedgerEntry) -> bool:
    first, end = range_of(seal)
    return first <= entry.position < end


def _compare(
    entries: list[LedgerEntry], seal: dict[str, Any], requests: ExportedRequests
) -> list[SealFinding]:
    covered = [entry for entry in entries if _covers(seal, entry)]
    sealed = [page for page in seal["pages"] if page["kind"] == "entry"]
    rest = iter(covered)
    pages = list(iter(lambda: list(islice(rest, PAGE)), []))
    missing = sum(page["rows"] for page in sealed) - len(covered)
    if missing:
        name = "sealed_record_missing" if missing > 0 else "sealed_record_added"
        return [SealFinding(name, abs(missing), {"seal": seal["number"]})]
    for page, found in zip(sealed, pages, strict=True):
        witness = {
            "seal": seal["number"],
            "first_entry": int(page["first"]),
            "last_entry": int(page["last"]),
        }
        if page["digest"] != sha256(b"".join(map(_digest, found))).hexdigest():
            return [SealFinding("sealed_record_changed", 1, witness)]
        if not requests.verify(page["requests"], found):
            return [SealFinding("sealed_request_changed", 1, witness)]
    return []


def _digest(entry: LedgerEntry) -> bytes:
    """As helix.seal_pages_v1 computes it."""
    header = (
        entry.id, entry.part, entry.position, "" if entry.epoch is None else entry.epoch,
        entry.from_state or "", entry.to_state, entry.reason, "t" if entry.late else "f",
        entry.actor,
    )  # fmt: skip
    at = entry.at.to_bytes(8, "big", signed=True)
    return sha256((entry.hash or b"") + at + ">".join(map(str, header)).encode()).digest()


def _read(file: Path, requests: ExportedRequests, malformed: list[str]) -> Iterator[LedgerEntry]:
    """The entries of an export; adds what is wrong with other lines to `malformed`."""
    try:
        with file.open("rb") as lines:
            for number, text in enumerate(lines, 1):
                try:
                    line = _LINE.validate_json(text)
                except ValidationError as error:
                    malformed.append(f"line {number}: {_fault(error)}")
                    continue
                found = line.pop("requests", None)
                for name, kind in _ARRAYS.items():
                    if line[name] is not None:
                        line[name] = array_of(kind, line[name])
                entry = LedgerEntry(**line)
                if found is not None:
                    requests.add(entry, found)
                yield entry
    except OSError as error:
        raise Refused(f"expected an export in {file}, got {error.strerror}") from error


def _fault(error: ValidationError) -> str:
    first = error.errors(include_url=False, include_input=False)[0]
    place = ".".join(map(str, first["loc"]))
    return f"{place}: {first['msg']}" if place else first["msg"]
