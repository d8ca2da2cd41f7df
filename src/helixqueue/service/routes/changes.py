"""The change stream: every ledger event of the tenant, in order, as server-sent events.

The id of an event is a cursor; a client that reconnects sends it in Last-Event-ID and continues
after it. Events are sent in the order of their transactions, and only those before the oldest
running transaction: so no event can appear before the cursor.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Annotated, Final

from fastapi import Depends, Header, Query
from starlette.requests import Request
from starlette.responses import StreamingResponse

from helixqueue.engine.changes import EPOCH_BITS, SPAN_MAX, ChangeCursor, changes_lost, read_changes
from helixqueue.errors import HelixError, Refused
from helixqueue.service.models import responses
from helixqueue.service.models.requests import NAME_PATTERN
from helixqueue.service.problems import Problem, problem_of
from helixqueue.service.routing import (
    PrincipalDep,
    RequestLogDep,
    ServiceDep,
    operation,
    router,
)

if TYPE_CHECKING:
    from helixqueue.engine.changes import ChangePage
    from helixqueue.service.principal import Principal
    from helixqueue.service.service import Service
    from helixqueue.service.tenant_cipher import TenantCipher

routes = router("changes")
MAX_ROWS: Final = 500
# Transactions in the first read, and the target duration of a read. A reader may be behind by the
# whole ledger, which must not be sorted for every page.
SPAN: Final = 64
READ_SECONDS: Final = 0.1
KEEPALIVE_SECONDS: Final = 10.0  # a comment is sent after this long without events
# A new stream includes transactions that were running when it started, unless they are older.
OLDEST: Final = timedelta(hours=1)
CLOCK_SLACK: Final = timedelta(seconds=5)  # clocks may be set back a little
# Reasons why a stream cannot continue exactly where the client stopped.
RETIRED: Final = {
    "detail": "batches that finished since this cursor are past their queue's retention",
    "remedy": "the remaining events follow; read GET /v1/batches again if you keep a copy",
}
RESTORED: Final = {
    "detail": "the database was restored or failed over since this cursor, or is another database",
    "remedy": "new events follow; read GET /v1/batches again if you keep a copy",
}
_EVENT_SCHEMA = {
    "type": "object",
    "required": ["event", "data"],
    "properties": {
        "id": {"type": "string", "description": "Cursor, for Last-Event-ID."},
        "event": {"type": "string", "enum": ["begin", "gap", "change", "end"]},
        "data": {"type": "string", "description": "JSON; for a change, the event and its batch."},
        "retry": {"type": "integer"},
    },
}


async def _hold_stream(service: ServiceDep, principal: PrincipalDep) -> AsyncIterator[None]:
    """Count the stream from before its first read until it ends."""
    with service.streams.hold(principal.tenant):
        yield


@routes.get(
    "/v1/changes",
    response_class=StreamingResponse,
    dependencies=[Depends(_hold_stream)],
    summary="Stream all changes from now on, or after Last-Event-ID",
    responses={
        200: {
            "description": "Server-sent events, each with its cursor as id.",
            "content": {"text/event-stream": {"schema": _EVENT_SCHEMA}},
        }
    },
    **operation("read", "too-many-streams", "invalid-cursor"),
)
async def changes(
    *,
    request: Request,
    principal: PrincipalDep,
    service: ServiceDep,
    request_log: RequestLogDep,
    last_event_id: Annotated[str | None, Header(max_length=160)] = None,
    queue: Annotated[str | None, Query(pattern=NAME_PATTERN)] = None,
    seconds: Annotated[
        int, Query(ge=1, le=3_600, description="The stream ends after this time; reconnect.")
    ] = 300,
) -> StreamingResponse:
    """In the order of transactions, without gaps and without payloads.

    Reconnect with the last `id` in Last-Event-ID to continue. If events are missing, a `gap` event
    says so: retention removed batches that have finished since, or the database was restored. The
    stream ends after `seconds`.
    """
    request_log.add(queue=queue)
    reader = _ChangeReader(service, principal, queue, await principal.cipher())
    await reader.start(last_event_id)
    lines = _lines(reader, time.monotonic() + seconds, request)
    # nginx would buffer the stream otherwise.
    return StreamingResponse(
        lines, media_type="text/event-stream", headers={"X-Accel-Buffering": "no"}
    )


class _ChangeReader:
    """The cursor of one stream."""

    def __init__(
        self, service: Service, principal: Principal, queue: str | None, cipher: TenantCipher
    ) -> None:
        self.service = service
        self._principal = principal
        self._cipher = cipher
        self._queue = queue
        self._cursor = ChangeCursor(0, 0, 0, datetime.min.replace(tzinfo=UTC))
        self._span = SPAN
        self._epoch = 0
        self.gap: dict[str, str] | None = None  # why events are missing
        self.is_behind = True

    async def start(self, last_event_id: str | None) -> None:
        cursor = None if last_event_id is None else read_id(last_event_id, self._cipher)
        self._cursor = now = await self._current_cursor()
        self._epoch = now.epoch
        if cursor is None:
            return
        # A cursor ahead of the ledger would wait, and skip what is written until then.
        self._cursor = min(now, cursor)
        if cursor.epoch != now.epoch or cursor > now:
            self.gap = RESTORED
        elif await self._principal.execute(changes_lost(cursor)):
            self.gap = RETIRED

    async def _current_cursor(self) -> ChangeCursor:
        """A read far in the future returns no rows, but the current position."""
        future = ChangeCursor(SPAN_MAX, 0, 0, datetime.now(UTC) + timedelta(days=1))
        page = await self._principal.execute(read_changes(future, limit=1))
        return ChangeCursor(page.reached, 0, 0, page.now - OLDEST)

    async def read_events(self) -> list[str]:
        """The new events; does not wait for any."""
        page = await self._read_page()
        events = []
        if page.reached >> EPOCH_BITS != self._epoch:
            self._epoch = page.reached >> EPOCH_BITS
            events.append(gap_event(RESTORED))
        for row in page.rows:
            self._cursor = self._cursor._replace(
                position=row.position, batch=row.batch, version=row.version
            )
            change = responses.change(row, details=self._principal.sees_payloads)
            events.append(
                f"id: {self.cursor_id}\nevent: change\n"
                f"data: {json.dumps(change, ensure_ascii=False)}\n\n"
            )
        if len(page.rows) < MAX_ROWS and page.edge > self._cursor.position:
            # All transactions below the edge have ended and were sent.
            self._cursor = self._cursor._replace(position=page.edge, batch=0, version=0)
        self.is_behind = self._cursor.position < page.reached
        since = (await self.service.change_marks.before(self._cursor.position)) - CLOCK_SLACK
        self._cursor = self._cursor._replace(since=max(since, self._cursor.since))
        return events

    async def _read_page(self) -> ChangePage:
        """Read as many transactions as fill a page or take `READ_SECONDS`."""
        async with self.service.stream_reads.permit(self._principal.tenant):
            started_at = time.monotonic()
            page = await self._principal.execute(
                read_changes(self._cursor, queue=self._queue, limit=MAX_ROWS, span=self._span)
            )
            is_slow = time.monotonic() - started_at > READ_SECONDS
        if is_slow or len(page.rows) == MAX_ROWS:
            self._span = max(1, self._span // 2)
        else:
            self._span = min(SPAN_MAX, self._span * 4)
        return page

    @property
    def cursor_id(self) -> str:
        return write_id(self._cursor, self._cipher)


def write_id(cursor: ChangeCursor, cipher: TenantCipher) -> str:
    # Rounded down: the time must not be later than any event after the cursor.
    milliseconds = int(cursor.since.timestamp() * 1000) if cursor.since.year > 1970 else 0
    place = f"{cursor.position}-{cursor.batch}-{cursor.version}-{milliseconds}"
    return cipher.seal(place)


def read_id(text: str, cipher: TenantCipher) -> ChangeCursor:
    try:
        parts = (int(part) for part in cipher.open(text).split("-"))
        position, batch, version, milliseconds = parts
        since = datetime.fromtimestamp(milliseconds / 1000, UTC)
    except (Refused, ValueError, OverflowError):  # also a cursor of another kind
        raise Problem(
            "invalid-cursor",
            "Last-Event-ID: expected the id of an earlier event of this stream",
            expected="the id of an event that this tenant received",
            got=ascii(text)[:80],
            remedy="start without Last-Event-ID",
        ) from None
    return ChangeCursor(position, batch, version, since)


def gap_event(gap: dict[str, str]) -> str:
    return f"event: gap\ndata: {json.dumps(gap)}\n\n"


async def _lines(reader: _ChangeReader, until: float, request: Request) -> AsyncIterator[str]:
    sent_at = time.monotonic()
    try:
        # The cursor at once: a client that loses the connection now can continue from it.
        yield f"retry: 1000\nid: {reader.cursor_id}\nevent: begin\ndata: {{}}\n\n"
        if reader.gap is not None:
            yield gap_event(reader.gap)
        stopping = reader.service.stopping
        while (
            time.monotonic() < until
            and not stopping.is_set()
            and not await request.is_disconnected()
        ):
            events = await reader.read_events()
            if events:
                sent_at = time.monotonic()
                yield "".join(events)
            elif time.monotonic() - sent_at > KEEPALIVE_SECONDS:
                sent_at = time.monotonic()
                yield ": keepalive\n\n"
            if not reader.is_behind:
                await asyncio.sleep(reader.service.settings.poll_seconds)
    except HelixError as error:
        # The status was sent long ago; the client gets the problem when it reconnects.
        kind = problem_of(error).kind
        yield f"event: end\ndata: {json.dumps({'problem': kind})}\n\n"
