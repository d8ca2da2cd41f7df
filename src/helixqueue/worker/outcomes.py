"""The settlement of an attempt, from what its handler returned or raised.

Reporting a failure must not fail: any text is changed into a text that the database can store.
"""

from __future__ import annotations

import asyncio
import logging
import traceback
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from helixqueue.errors import GiveUp, HelixError, InvalidPayload, Retry
from helixqueue.identity import canonical_text
from helixqueue.transport.protocol import LeaseRow, Settlement

if TYPE_CHECKING:
    from uuid import UUID

    from helixqueue.queues import Queue
    from helixqueue.schemas import Schema
    from helixqueue.transport.protocol import WriteResult

LOG = logging.getLogger("helixqueue.worker")
MAX_DETAIL_BYTES = 64_000  # the database stores 65,536
LIKELY_RESULT_CHARS = 4_096  # longer results are rare, and may hold the event loop


class FailureClass(StrEnum):
    """Classes of failures that are not an exception of the handler, whose type is its class.

    The worker writes nothing about lost and cancelled attempts; the ledger has reasons for them.
    """

    EXECUTOR = "executor"  # the program exited with an error
    SYSTEM = "system"  # it could not be started, or a signal from outside ended it
    TIMEOUT = "timeout"
    OUT_OF_MEMORY = "out of memory"
    INPUTS = "inputs"  # they cannot be fetched
    OUTPUTS = "outputs"  # its output files cannot be published
    RESULT = "result"  # the result does not match the type or schema of the queue


class AttemptFailure(Exception):
    """A failure with an explicit class; the message is the detail."""

    def __init__(self, failure: FailureClass, detail: str, *, permanent: bool = False) -> None:
        super().__init__(detail)
        self.failure = failure
        self.permanent = permanent


class ReportedFailure(Exception):
    """A failure that a handler process has described already."""

    def __init__(
        self,
        failure: str | None,
        detail: str | None,
        *,
        permanent: bool,
        after: float | None,
    ) -> None:
        super().__init__(detail or "")
        self.failure = failure
        self.permanent = permanent
        self.after_seconds = after


def completed(
    row: LeaseRow, queue: Queue[Any, Any] | None, schema: Schema | None, value: Any
) -> Settlement:
    """Check the result; `AttemptFailure` names the JSON path of a mismatch."""
    try:
        text = _result_text(queue, value)
        if schema is not None and (queue is None or queue.result is None):
            schema.check("null" if text is None else text, "result")
    except InvalidPayload as error:
        raise AttemptFailure(
            FailureClass.RESULT, f"the result does not match the queue's result type: {error}"
        ) from None
    return Settlement(row.batch, row.token, "completed", result=text)


async def completed_async(
    row: LeaseRow, queue: Queue[Any, Any] | None, schema: Schema | None, value: Any
) -> Settlement:
    """The same in an event loop, which must not wait for a check in another process."""
    if schema is not None and not schema.is_inline(LIKELY_RESULT_CHARS):
        return await asyncio.to_thread(completed, row, queue, schema, value)
    return completed(row, queue, schema, value)


def _result_text(queue: Queue[Any, Any] | None, value: Any) -> str | None:
    if queue is not None and queue.result is not None:
        return canonical_text(queue.result.to_json(value))
    return None if value is None else canonical_text(value)


def failed(row: LeaseRow, error: BaseException) -> Settlement:
    after = None
    permanent = isinstance(error, GiveUp)
    failure = type(error).__name__
    if isinstance(error, Retry):
        after = error.after_seconds
    elif isinstance(error, AttemptFailure):
        failure, permanent = error.failure.value, error.permanent
    elif isinstance(error, ReportedFailure):
        failure, permanent = error.failure or "failed", error.permanent
        after = error.after_seconds
    elif isinstance(error, MemoryError):
        failure = FailureClass.OUT_OF_MEMORY.value
    has_detail = isinstance(error, Retry | GiveUp | AttemptFailure | ReportedFailure | HelixError)
    detail = str(error) if has_detail else _traceback(error)
    return Settlement(
        row.batch,
        row.token,
        "failed",
        failure=storable(failure),
        detail=storable(detail),
        permanent=permanent,
        after_seconds=after,
    )


def report_mismatch(batch_id: UUID, worker: str) -> None:
    """A settlement was repeated with another result: one of the two is wrong."""
    LOG.error(
        "batch %s: worker %s repeated its settlement with another result; the stored result stays",
        batch_id,
        worker,
    )


def report_refused(batch_id: UUID, result: WriteResult) -> None:
    """A settlement was refused: another worker holds the batch, or it has ended."""
    LOG.log(
        logging.ERROR if result.owner else logging.WARNING,
        "batch %s: settlement %s, the batch is %s%s; nothing was written",
        batch_id,
        result.answer,
        result.state,
        f" and {result.owner} holds it now" if result.owner else "",
    )


def _traceback(error: BaseException) -> str:
    """The message first, then the innermost frames."""
    try:
        message = "".join(traceback.format_exception_only(error))
        return message + "".join(traceback.format_tb(error.__traceback__)[-8:])
    except Exception:  # noqa: BLE001 - an exception's own __str__ may raise
        return type(error).__name__


def storable(text: str) -> str:
    """Head and tail of a text, without characters that PostgreSQL cannot store."""
    data = text.replace("\0", "\\0").encode("utf-8", "backslashreplace")
    if len(data) > MAX_DETAIL_BYTES:
        half = MAX_DETAIL_BYTES // 2
        omitted = f"\n[... {len(data) - 2 * half} bytes ...]\n".encode()
        data = data[:half] + omitted + data[-half:]
    return data.decode(errors="ignore")
