"""A stream of changes: every event of the tenant's ledger, in order, none left out.

Server-sent events. An event's id is where the reader stands; a client that comes back with it in
Last-Event-ID goes on behind it. Events are told in the order of their transactions, and only those
before the first transaction that is still under way: so none can appear behind the reader's back.
"""

from __future__ import annotations

import asyncio
import json
import re
import time
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Annotated, Final

from fastapi import Depends, Header, Query
from starlette.requests import Request
from starlette.responses import StreamingResponse

from helixqueue.engine.changes import SPAN_MAX, ChangeCursor, changes_lost, read_changes
from helixqueue.errors import HelixError
from helixqueue.service import answers
from helixqueue.service.bodies import NAME_PATTERN
from helixqueue.service.problems import Problem, problem_of
from helixqueue.service.routing import Asker, Here, Note, demands, router

if TYPE_CHECKING:
    from helixqueue.engine.changes import ChangePage
    from helixqueue.service.principal import Principal
    from helixqueue.service.service import Service

routes = router("changes")
MAX_ROWS: Final = 500
# How many transactions the first look is at, and how long a look should take at most: what lies
# behind a reader may be the whole ledger, and to sort all of that for every page would never end.
SPAN: Final = 64
LOOK_SECONDS: Final = 0.1
QUIET_SECONDS: Final = 10.0  # then a comment is sent, so that nobody takes silence for death
# A stream that begins anew tells of transactions that were under way then, if they are no older.
OLDEST: Final = timedelta(hours=1)
# A clock may be set back a little.
SLACK: Final = timedelta(seconds=5)
# Why a stream cannot tell everything since the place that a reader comes back to.
RETIRED: Final = {
    "detail": "batches that finished since you were here are past their queue's retention",
    "remedy": "what is left is told; read GET /v1/batches anew if you keep a copy",
}
AHEAD: Final = {
    "detail": "the database has not come as far as you were: it was restored, or is another one",
    "remedy": "what comes from now on is told; read GET /v1/batches anew if you keep a copy",
}
_ID = re.compile(r"(\d{1,19})-(\d{1,19})-(\d{1,9})-(\d{1,14})")

# Of one server-sent event.
_SCHEMA = {
    "type": "object",
    "required": ["event", "data"],
    "properties": {
        "id": {"type": "string", "description": "The place; come back with it."},
        "event": {"type": "string", "enum": ["begin", "gap", "change", "end"]},
        "data": {"type": "string", "description": "JSON: of a change, the step and its batch."},
        "retry": {"type": "integer"},
    },
}


async def _place(here: Here, asker: Asker) -> AsyncIterator[None]:
    """One of so many, from before the first look until the last line is sent."""
    with here.streams.place(asker.tenant):
        yield


@routes.get(
    "/v1/changes",
    response_class=StreamingResponse,
    dependencies=[Depends(_place)],
    summary="Every change from now on, or from behind Last-Event-ID, as server-sent events",
    responses={
        200: {
            "description": "Events, each with the id to come back with.",
            "content": {"text/event-stream": {"schema": _SCHEMA}},
        }
    },
    **demands("read", "too-many-streams"),
)
async def changes(
    *,
    request: Request,
    asker: Asker,
    here: Here,
    note: Note,
    last_event_id: Annotated[str | None, Header(max_length=80)] = None,
    queue: Annotated[str | None, Query(pattern=NAME_PATTERN)] = None,
    seconds: Annotated[
        int, Query(ge=1, le=3_600, description="The stream ends after this long; come back.")
    ] = 300,
) -> StreamingResponse:
    """In the order of their transactions, none left out; only payloads are not told.

    Come back with the last `id` in Last-Event-ID and nothing is missing, or `gap` says so: the
    queue's retention took away what had finished since, or the database was set back. The stream
    ends by itself after `seconds`.
    """
    note.know(queue=queue)
    reader = _Reader(here, asker, queue)
    await reader.begin(last_event_id)
    lines = _lines(reader, time.monotonic() + seconds, request)
    # Proxies of nginx's kind would gather a stream until it is worth sending.
    return StreamingResponse(
        lines, media_type="text/event-stream", headers={"X-Accel-Buffering": "no"}
    )


class _Reader:
    """Where one stream stands."""

    def __init__(self, service: Service, principal: Principal, queue: str | None) -> None:
        self.service = service
        self._principal = principal
        self._queue = queue
        self._cursor = ChangeCursor(0, 0, 0, datetime.min.replace(tzinfo=UTC))
        self._span = SPAN
        self.gap: dict[str, str] | None = None  # why not everything since then can be told
        self.is_behind = True

    async def begin(self, last_event_id: str | None) -> None:
        back = None if last_event_id is None else read_id(last_event_id)
        self._cursor = await self._now()
        if back is None:
            return
        if back.xid > self._cursor.xid:
            # Transactions are numbered anew behind a restore: it would wait, and miss all before.
            self.gap = AHEAD
            return
        self._cursor = back
        if await self._principal.ask(changes_lost(back)):
            self.gap = RETIRED

    async def _now(self) -> ChangeCursor:
        """One look in the future tells where now is, and gives no rows."""
        never = ChangeCursor(2**62, 0, 0, datetime.now(UTC) + timedelta(days=1))
        found = await self._principal.ask(read_changes(never, limit=1))
        return ChangeCursor(found.reached, 0, 0, found.now - OLDEST)

    async def more(self) -> list[str]:
        """What is new, as server-sent events; waits for nothing."""
        found = await self._look()
        told = []
        for row in found.rows:
            self._cursor = ChangeCursor(row.xid, row.batch, row.version, self._cursor.since)
            said = answers.change(row, details=self._principal.sees_payloads)
            told.append(
                f"id: {write_id(self._cursor)}\nevent: change\n"
                f"data: {json.dumps(said, ensure_ascii=False)}\n\n"
            )
        if len(found.rows) < MAX_ROWS and found.edge > self._cursor.xid:
            # Everything below has ended and was told.
            self._cursor = ChangeCursor(found.edge, 0, 0, self._cursor.since)
        self.is_behind = self._cursor.xid < found.reached
        since = (await self.service.marks.before(self._cursor.xid)) - SLACK
        self._cursor = self._cursor._replace(since=max(since, self._cursor.since))
        return told

    async def _look(self) -> ChangePage:
        """At as many transactions as fill a page, or as can be looked through in a moment."""
        async with self.service.looks.permit(self._principal.tenant):
            began = time.monotonic()
            found = await self._principal.ask(
                read_changes(self._cursor, queue=self._queue, limit=MAX_ROWS, span=self._span)
            )
            is_much = len(found.rows) == MAX_ROWS or time.monotonic() - began > LOOK_SECONDS
        self._span = max(1, self._span // 2) if is_much else min(SPAN_MAX, self._span * 4)
        return found

    @property
    def place(self) -> str:
        return write_id(self._cursor)


def write_id(cursor: ChangeCursor) -> str:
    # Rounded down: a time that no event is older than may be earlier, not later.
    milliseconds = int(cursor.since.timestamp() * 1000) if cursor.since.year > 1970 else 0
    return f"{cursor.xid}-{cursor.batch}-{cursor.version}-{milliseconds}"


def read_id(text: str) -> ChangeCursor:
    found = _ID.fullmatch(text)
    numbers = [int(part) for part in found.groups()] if found else []
    if not numbers or max(numbers[:2]) >= 2**63 or numbers[2] >= 2**31 or numbers[3] > 10**14:
        raise Problem(
            "invalid-request",
            "Last-Event-ID: expected the id of an earlier event of this stream",
            expected="an id such as 815-17-2-1788220800000",
            got=ascii(text)[:80],
            remedy="begin without one",
        )
    xid, batch, version, milliseconds = numbers
    return ChangeCursor(xid, batch, version, datetime.fromtimestamp(milliseconds / 1000, UTC))


async def _lines(reader: _Reader, until: float, request: Request) -> AsyncIterator[str]:
    service = reader.service
    said_at = time.monotonic()
    try:
        # The place at once: who is cut off before the first event can come back to it.
        yield f"retry: 1000\nid: {reader.place}\nevent: begin\ndata: {{}}\n\n"
        if reader.gap is not None:
            yield f"event: gap\ndata: {json.dumps(reader.gap)}\n\n"
        while time.monotonic() < until and not await request.is_disconnected():
            told = await reader.more()
            if told:
                said_at = time.monotonic()
                yield "".join(told)
            elif time.monotonic() - said_at > QUIET_SECONDS:
                said_at = time.monotonic()
                yield ": nothing new\n\n"
            if not reader.is_behind:
                await asyncio.sleep(service.settings.poll_seconds)
    except HelixError as error:
        # The status has long been sent. The client comes back, and is told then.
        kind = problem_of(error).kind
        yield f"event: end\ndata: {json.dumps({'problem': kind})}\n\n"
