"""Seals: signed digests of the ledger, kept outside of the database.

A person who can edit every row can also recompute every hash, so hashes inside a database prove
nothing to anyone who does not trust its administrators. A seal is a signed file elsewhere. It
covers every record of the transactions that were over when it was made; the next seal covers those
that came after, and names the one before. `check --against` computes the digests again.

A seal takes no lock: it reads one snapshot, and only transactions below the oldest running one.
After a failover or a restore (another epoch) a seal starts over at the beginning of the ledger,
because transactions that the earlier seals cover may be lost and their numbers used again.
"""

from __future__ import annotations

import base64
import hashlib
import json
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import rfc8785

from helixqueue import __version__
from helixqueue.errors import Refused
from helixqueue.fence.receipt import time_text
from helixqueue.fence.signing import signed
from helixqueue.operate.release import schema_objects
from helixqueue.postgres.snapshot import snapshot
from helixqueue.postgres.statements import sql_texts
from helixqueue.records.seal import SealHead

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from psycopg import Connection

    from helixqueue.fence.signing import Signer

PURPOSE = "helixqueue seal 1"  # of its signatures
# Records that retention may delete; of the others, none may ever be missing.
EXPIRING = frozenset({"answer", "refusal", "fence", "call"})
MARK_BYTES = {
    "entry": 1,
    "decision": 1,
    "event": 1,
    "answer": 8,
    "refusal": 8,
    "fence": 8,
    "call": 8,
}


@dataclass(frozen=True, slots=True)
class SealPage:
    """A page of records, as helix.seal_page has it."""

    kind: str
    first: str
    last: str
    rows: int
    digest: bytes
    marks: bytes
    requests: bytes | None  # entries: digest of what the submitted batches asked for

    def document(self) -> dict[str, Any]:
        return {
            "kind": self.kind,
            "first": self.first,
            "last": self.last,
            "rows": self.rows,
            "digest": self.digest.hex(),
            "marks": base64.b64encode(self.marks).decode(),
            "requests": None if self.requests is None else self.requests.hex(),
        }


def seal_id(seal: dict[str, Any]) -> str:
    """The name by which the next seal refers to this one: it covers the signature, too."""
    return hashlib.sha256(rfc8785.dumps(seal)).hexdigest()


def head_of(seal: dict[str, Any]) -> SealHead:
    return SealHead(
        seal["number"], seal_id(seal), seal["to_xid"], seal["epoch"], dict(seal["counts"])
    )


def make_seal(
    connection: Connection[Any],
    signer: Signer,
    previous: SealHead | None = None,
    *,
    enter: Callable[[Connection[Any]], None] | None = None,
) -> dict[str, Any]:
    """Seal what happened since `previous`, or everything. Needs a login for all tenants."""
    with snapshot(connection, enter):
        row = connection.execute(_sql("position")).fetchone()
        if row is None:
            raise Refused("expected an epoch in helix.epoch, got none; run helixq recover")
        to_xid, epoch, timeline, created, entry, batches = row
        continues = previous is not None and previous.epoch == epoch
        from_xid = previous.to_xid if previous is not None and continues else 0
        if from_xid > to_xid:
            raise Refused(
                f"expected a database that is at or after transaction {from_xid}, where the last "
                f"seal ended, got one at {to_xid}: an older state was restored; run helixq recover"
            )
        pages = read_pages(connection, from_xid, to_xid)
        connection.execute("set local search_path = pg_catalog, pg_temp")
        objects = sorted(connection.execute(schema_objects().encode()).fetchall())
    counts = dict(previous.counts) if previous is not None and continues else {}
    for page in pages:
        counts[page.kind] = counts.get(page.kind, 0) + page.rows
    document = {
        "format": PURPOSE,
        "number": 1 if previous is None else previous.number + 1,
        "previous": None if previous is None else previous.id,
        "sealed_at": time_text(datetime.now(UTC)),
        "release": __version__,
        "database": time_text(created),  # when its first epoch began
        "epoch": epoch,
        "timeline": timeline,
        "from_xid": from_xid,
        "to_xid": to_xid,
        "last_entry": entry,
        "batch_numbers": batches,
        "counts": counts,
        "schema": hashlib.sha256(json.dumps(objects).encode()).hexdigest(),
        "pages": [page.document() for page in pages],
    }
    return signed(PURPOSE, document, signer)


def read_pages(connection: Connection[Any], from_xid: int, to_xid: int) -> list[SealPage]:
    args = {"from_xid": from_xid, "to_xid": to_xid}
    return [SealPage(*row) for row in connection.execute(_sql("pages"), args, binary=True)]


def read_witness(
    connection: Connection[Any], kind: str, seal: dict[str, Any], place: int
) -> dict[str, Any] | None:
    args = {"kind": kind, "from_xid": seal["from_xid"], "to_xid": seal["to_xid"], "place": place}
    row = connection.execute(_sql("witness"), args).fetchone()
    return None if row is None else row[0]


def _sql(name: str) -> bytes:
    return sql_texts("helixqueue.operate", "seal.sql")[name].encode()


# Files: a directory has one file per seal, a file one line per seal.


def read_seals(place: Path) -> list[dict[str, Any]]:
    """The seals of a file or directory, in their order."""
    try:
        seals = [json.loads(text) for text in _texts(place)]
    except FileNotFoundError:
        raise Refused(
            f"expected seals in {place}, got nothing; make one with helixq seal"
        ) from None
    except (OSError, ValueError) as error:
        raise Refused(f"{place}: expected seals as JSON, got {error}") from error
    for seal in seals:
        if not isinstance(seal, dict) or seal.get("format") != PURPOSE:
            raise Refused(f"{place}: expected documents of format {PURPOSE!r}, got another")
    return seals


def last_head(place: Path) -> SealHead | None:
    """Where the next seal of this place continues; None for its first."""
    seals = read_seals(place) if place.exists() else []
    return head_of(seals[-1]) if seals else None


def add_seal(place: Path, seal: dict[str, Any]) -> Path:
    """Write a seal beside the earlier ones; returns its file. Nothing is ever overwritten."""
    text = json.dumps(seal, separators=(",", ":")) + "\n"
    if place.is_dir():
        file = place / f"seal-{seal['number']:06}.json"
        with file.open("x", encoding="utf-8") as writer:
            writer.write(text)
        return file
    with place.open("a", encoding="utf-8") as writer:
        writer.write(text)
    return place


def _texts(place: Path) -> Iterator[str]:
    if place.is_dir():
        for file in sorted(place.glob("seal-*.json")):
            yield file.read_text(encoding="utf-8")
        return
    with place.open(encoding="utf-8") as lines:
        yield from (line for line in lines if line.strip())
