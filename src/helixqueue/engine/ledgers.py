"""The calls of user ledgers and feeds, described once for sync and async; nothing here does I/O."""

from __future__ import annotations

import json
import uuid
from collections.abc import Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any, NamedTuple

import orjson

from helixqueue.engine.arrays import json_texts, numbers, texts
from helixqueue.engine.calls import CHUNK_ROWS
from helixqueue.engine.cursors import (
    INT4_MAX,
    after_number,
    after_queue,
    named_page,
    read_position,
    write_position,
)
from helixqueue.identity import key_text
from helixqueue.postgres.call import Call, Row
from helixqueue.postgres.statements import sql_texts
from helixqueue.records.ledger import (
    AppendedRow,
    EntityState,
    FeedEvent,
    FeedRow,
    LedgerEvent,
    LedgerRow,
    entity_name,
)
from helixqueue.records.page import Page

if TYPE_CHECKING:
    from helixqueue.records.ledger import LedgerDeclaration, NewEventRow

_SQL = sql_texts("helixqueue.engine", "ledgers.sql")


def declare_ledger(
    *, tenant: str, ledger: LedgerDeclaration, actor: str | None = None
) -> Call[LedgerRow]:
    machine = ledger.machine
    args = (
        *(tenant, ledger.name, actor, json.dumps(machine.arrows), texts(machine.initial)),
        *(ledger.strict, ledger.bind_payload, texts(ledger.ignore), ledger.gap_rule),
    )
    return Call(_SQL["declare_ledger"], args, lambda rows: _ledger(rows[0]))


def append(
    *, tenant: str, ledger: str, rows: Sequence[NewEventRow], actor: str | None = None
) -> Call[list[AppendedRow]]:
    """Append any number of events; answers come in the order of the input."""
    if len(rows) == 1:
        [row] = rows
        # The seq as text: the driver sends integers as one of three types, each with its own plan.
        event = (row.entity, str(row.seq), row.kind, row.payload, row.node)
        return Call(
            _SQL["append_one"],
            (tenant, ledger, actor, *event),
            lambda answers: _appended(answers, 1),
        )
    entity, seq, kind, payload, node = zip(*rows, strict=True)
    args = (
        *(tenant, ledger, actor, texts(entity), numbers(seq), texts(kind), json_texts(payload)),
        None if set(node) == {None} else texts(node),
    )
    return Call(
        _SQL["append"],
        args,
        lambda answers: _appended(answers, len(rows)),
        is_chunk=len(rows) >= CHUNK_ROWS,
    )


def _appended(rows: list[Row], count: int) -> list[AppendedRow]:
    answers: list[AppendedRow | None] = [None] * count
    for place, decision, key, version, state, seq, rules, payload in rows:
        text = None if key is None else key_text(key)
        answers[place - 1] = AppendedRow(
            decision, text, version, state, seq, tuple(rules or ()), payload
        )
    return [answer for answer in answers if answer is not None]


def ledgers(
    *, tenant: str | None, name: str | None = None, after: str | None = None, limit: int = 50
) -> Call[Page[LedgerRow]]:
    args = (tenant, name, *after_queue(after).values(), limit + 1)
    return Call(_SQL["ledgers"], args, lambda rows: named_page(list(map(_ledger, rows)), limit))


def _ledger(row: Row) -> LedgerRow:
    tenant, name, machine, *rest = row
    return LedgerRow(tenant, name, orjson.loads(machine), *rest)


def entity(*, tenant: str, ledger: str, entity: str) -> Call[EntityState | None]:
    return Call(
        _SQL["entity"],
        (tenant, ledger, entity),
        lambda rows: EntityState(entity_name(rows[0][0]), *rows[0][1:]) if rows else None,
    )


class StoredEvent(NamedTuple):
    """One row of `helix.ledger_event`, with everything that its hash covers."""

    entity: str
    seq: int
    kind: str
    version: int
    payload: str | None  # None: this login may not see payloads
    node: str | None
    actor: str
    at: datetime
    violations: list[str] | None
    key: bytes
    fingerprint: bytes
    hash: bytes
    position: int
    feed_position: int

    def event(self) -> LedgerEvent:
        return LedgerEvent(
            entity_name(self.entity),
            *self[1:4],
            None if self.payload is None else orjson.loads(self.payload),
            *self[5:8],
            tuple(self.violations or ()),
            key_text(self.key),
        )


def stored_events(
    *,
    tenant: str,
    ledger: str,
    entity: str | None = None,
    after: tuple[str, int] = ("", 0),
    limit: int = 1_000,
) -> Call[list[StoredEvent]]:
    """Return events of one entity or of all, after an entity and version."""
    args = (tenant, ledger, entity, *after, limit)
    return Call(_SQL["events"], args, lambda rows: [StoredEvent(*row) for row in rows])


def events(
    *, tenant: str, ledger: str, entity: str, after: str | None = None, limit: int = 50
) -> Call[Page[LedgerEvent]]:
    """Return the history of one entity. Pages are limited in bytes: only an empty one is last."""

    def read(rows: list[Row]) -> Page[LedgerEvent]:
        events = tuple(StoredEvent(*row).event() for row in rows)
        return Page(events, str(events[-1].version) if events else None)

    args = (tenant, ledger, entity, "", after_number(after, 0, INT4_MAX), limit)
    return Call(_SQL["events"], args, read)


class Bucket(NamedTuple):
    """The entities of a ledger whose hashed name begins with one byte."""

    entities: int
    events: int
    digest: str


class LedgerDigest(NamedTuple):
    """What a ledger contains below a position; see `helix.read_ledger_head_v1`."""

    position: int
    buckets: dict[int, Bucket]


def ledger_digest(
    *, tenant: str, ledger: str, position: int | None = None
) -> Call[LedgerDigest | None]:
    """Return digests of a ledger, now or at a position; None if there is no such ledger."""

    def read(rows: list[Row]) -> LedgerDigest | None:
        if not rows:
            return None
        buckets = {
            row[1]: Bucket(row[2], row[3], bytes(row[4]).hex())
            for row in rows
            if row[1] is not None
        }
        return LedgerDigest(rows[0][0], buckets)

    return Call(_SQL["head"], (tenant, ledger, position), read)


def declare_feed(
    *,
    tenant: str,
    feed: str,
    ledger: str | None,
    queue: str | None,
    now: bool,
    actor: str | None = None,
) -> Call[None]:
    args = (tenant, feed, actor, ledger, queue, now)
    return Call(_SQL["declare_feed"], args, lambda _: None)


def take_feed(*, tenant: str, feed: str, limit: int) -> Call[list[FeedEvent]]:
    """Take the next events inside a transaction, which moves the feed behind them."""
    return Call(
        _SQL["take_feed"],
        (tenant, feed, limit),
        lambda rows: _feed_events(feed, rows, write_position(feed, (0, 0, 0))),
    )


def read_feed(*, tenant: str, feed: str, limit: int) -> Call[list[FeedEvent]]:
    """Read the next events without moving the feed."""

    def read(rows: list[Row]) -> list[FeedEvent]:
        return _feed_events(feed, rows, write_position(feed, rows[0][12:])) if rows else []

    return Call(_SQL["read_feed"], (tenant, feed, limit), read)


def _feed_events(feed: str, rows: list[Row], start: str) -> list[FeedEvent]:
    events = []
    for row in rows:
        position = write_position(feed, row[:3])
        key, entity, seq, kind, payload, node, actor, at, violations = row[3:12]
        events.append(
            FeedEvent(
                *(key, entity_name(entity), seq, kind, orjson.loads(payload), node, actor, at),
                *(tuple(violations or ()), position, start),
            )
        )
        start = position
    return events


def advance_feed(*, tenant: str, feed: str, after: str, to: str, count: int) -> Call[bool]:
    """Move a feed behind events that `read_feed` returned; False if it is elsewhere now.

    Running the call again, after its answer was lost, returns True again.
    """
    request = uuid.uuid4()
    args = (tenant, feed, *read_position(feed, after), *read_position(feed, to), count, request)
    return Call(_SQL["advance_feed"], args, lambda rows: bool(rows[0][0]))


def hold_feed(*, tenant: str, feed: str, holder: str, seconds: float) -> Call[bool]:
    args = (tenant, feed, holder, seconds)
    return Call(_SQL["hold_feed"], args, lambda rows: bool(rows[0][0]))


def set_feed(
    *,
    tenant: str,
    feed: str,
    reason: str,
    paused: bool | None = None,
    rewind: bool = False,
    since: datetime | None = None,
    actor: str | None = None,
) -> Call[None]:
    args: tuple[Any, ...] = (tenant, feed, actor, reason, paused, rewind, since)
    return Call(_SQL["set_feed"], args, lambda _: None)


def feeds(
    *,
    tenant: str | None,
    name: str | None = None,
    lag: bool = True,
    after: str | None = None,
    limit: int = 50,
) -> Call[Page[FeedRow]]:
    """Return feeds, with the number of events after their position unless `lag` is False."""
    args = (tenant, name, lag, *after_queue(after).values(), limit + 1)
    return Call(_SQL["feeds"], args, lambda rows: named_page([FeedRow(*r) for r in rows], limit))


def hint_key(*, tenant: str, ledger: str) -> Call[tuple[int, bytes]]:
    """Return the epoch and the key of a ledger's cached hints."""
    return Call(_SQL["hint_key"], (tenant, ledger), lambda rows: (rows[0][0], bytes(rows[0][1])))
