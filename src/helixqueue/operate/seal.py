"""Seals: signed digests of the ledger, kept outside of the database.

A person who can edit every row can also recompute every hash, so hashes inside a database prove
nothing to anyone who does not trust its administrators. A seal is a signed file elsewhere. It
covers every record of the transactions that were over when it was made; the next seal covers those
that came after, and names the one before. `check --against` computes the digests again.

A seal takes no lock: it reads one snapshot, and only transactions below the oldest running one.
What is written after a failover or a restore has higher positions than all that was sealed before.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from helixqueue.engine import seals
from helixqueue.errors import Refused, Retryable
from helixqueue.fence.receipt import time_text
from helixqueue.fence.signing import signature_faults
from helixqueue.operate.release import fix_output, schema_objects
from helixqueue.operate.signed_series import SignedSeries, document_id
from helixqueue.postgres.database import Database
from helixqueue.postgres.snapshot import snapshot
from helixqueue.postgres.statements import sql_texts
from helixqueue.records.seal import SealHead

if TYPE_CHECKING:
    from psycopg import Connection

    from helixqueue.fence.signing import Signer

SEALS = SignedSeries("seal", "helixqueue seal 1", "helixq seal")
SEAL_TRIES = 5
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


def head_of(seal: dict[str, Any]) -> SealHead:
    return SealHead(seal["number"], document_id(seal), seal["to_position"], dict(seal["counts"]))


def range_of(seal: dict[str, Any]) -> tuple[int, int]:
    """The first position that a seal covers, and the first after it."""
    return int(seal["from_position"]), int(seal["to_position"])


def make_seal(
    connection: Connection[Any], signer: Signer, previous: SealHead | None = None
) -> dict[str, Any]:
    """Seal what happened since `previous`, or everything. Needs a login for all tenants."""
    with snapshot(connection):
        row = connection.execute(_sql("position")).fetchone()
        if row is None:
            raise Refused("expected an epoch in helix.epoch, got none; run helixq recover")
        to_position, timeline, created, entry, batches = row
        from_position = 0 if previous is None else int(previous.to_position)
        if from_position > to_position:
            raise Refused(
                f"expected a database that is at or after position {from_position}, where the last "
                f"seal ended, got one at {to_position}: an older state was restored; run helixq "
                "recover"
            )
        pages = read_pages(connection, from_position, to_position)
        fix_output(connection)
        objects = sorted(connection.execute(schema_objects().encode()).fetchall())
    counts = {} if previous is None else dict(previous.counts)
    for page in pages:
        counts[page["kind"]] = counts.get(page["kind"], 0) + page["rows"]
    members = {
        "database": time_text(created),  # when its first epoch began
        "timeline": timeline,
        "from_position": str(from_position),
        "to_position": str(to_position),
        "last_entry": entry,
        "batch_numbers": batches,
        "counts": counts,
        "schema": hashlib.sha256(json.dumps(objects).encode()).hexdigest(),
        "pages": pages,
    }
    follows = None if previous is None else (previous.number, previous.id)
    return SEALS.sign(members, follows, signer)


def make_next_seal(
    connection: Connection[Any], keys: Sequence[Signer], actor: str | None
) -> dict[str, Any]:
    """Continue the series of the database and keep the seal there, for services.

    The last seal decides where this one begins, so it must be one that these keys signed: a caller,
    or an edit of the database, can neither leave out records nor repeat them. Of two that continue
    the same seal, the second is made again.
    """
    for _ in range(SEAL_TRIES - 1):
        with suppress(Retryable):
            return _continue_series(connection, keys, actor)
    return _continue_series(connection, keys, actor)


def _continue_series(
    connection: Connection[Any], keys: Sequence[Signer], actor: str | None
) -> dict[str, Any]:
    database = Database(connection)
    last = database.run(seals.find_seal(number=None))
    document = None if last is None else dict(last.document or {})
    if document is not None and (faults := signature_faults(SEALS.purpose, document, keys)):
        raise Refused(
            f"expected the last seal in helix.seal to be signed by this service, got: {faults[0]}; "
            "start every replica with the same --key"
        )
    previous = None if document is None else head_of(document)
    seal = make_seal(connection, keys[-1], previous)
    call = seals.add_seal(
        number=seal["number"], actor=actor, digest=document_id(seal),
        to_position=seal["to_position"], document=json.dumps(seal),
    )  # fmt: skip
    database.run(call)
    return seal


def add_after_missing(
    place: Path, seal: dict[str, Any], find: Callable[[int], Mapping[str, Any]]
) -> Path:
    """Write a seal to a place, after those of the series that other callers made meanwhile."""
    last = last_head(place)
    for number in range(1 if last is None else last.number + 1, seal["number"]):
        SEALS.add(place, dict(find(number)))
    return SEALS.add(place, seal)


def read_document(connection: Connection[Any], number: int) -> Mapping[str, Any]:
    """A seal that a service made."""
    row = Database(connection).run(seals.find_seal(number=number))
    if row is None or row.document is None:
        raise Refused(f"expected seal {number} in helix.seal, got none; was it deleted?")
    return row.document


def read_pages(
    connection: Connection[Any], from_position: int, to_position: int
) -> list[dict[str, Any]]:
    """Pages of records, as helix.seal_pages_v1 has them and a seal contains them."""
    args = {"from_position": from_position, "to_position": to_position}
    return [
        {
            "kind": kind,
            "first": first,
            "last": last,
            "rows": rows,
            "digest": digest.hex(),
            "marks": base64.b64encode(marks).decode(),
            # Of entries: the digest of what the submitted batches asked for.
            "requests": None if requests is None else requests.hex(),
        }
        for kind, first, last, rows, digest, marks, requests in connection.execute(
            _sql("pages"), args, binary=True
        )
    ]


def read_witness(
    connection: Connection[Any], kind: str, seal: dict[str, Any], place: int
) -> dict[str, Any] | None:
    first, end = range_of(seal)
    args = {"kind": kind, "from_position": first, "to_position": end, "place": place}
    row = connection.execute(_sql("witness"), args).fetchone()
    return None if row is None else row[0]


def _sql(name: str) -> bytes:
    return sql_texts("helixqueue.operate", "seal.sql")[name].encode()


def last_head(place: Path) -> SealHead | None:
    """Where the next seal of this place continues; None for its first."""
    seal = SEALS.last(place)
    return None if seal is None else head_of(seal)
