"""From what a handler returned or raised to the settlement of its attempt.

The report of a failure must not itself fail: any text becomes one that the database can hold.
"""

from __future__ import annotations

import json
import logging
import traceback
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from helixqueue.errors import GiveUp, HelixError, InvalidPayload, Retry
from helixqueue.identity import canonical_text
from helixqueue.transport.protocol import LeaseRow, Settlement

if TYPE_CHECKING:
    from uuid import UUID

    from helixqueue.queues import Queue, Schema
    from helixqueue.transport.protocol import WriteResult

LOG = logging.getLogger("helixqueue.worker")
MAX_DETAIL_CHARS = 8_000


class Failure(StrEnum):
    """Classes of failures that are not a handler's own exception, which is its class by itself.

    Of a lost or cancelled attempt nothing is written by its worker: those are words of the ledger.
    """

    EXECUTOR = "executor"  # the program ended with an error of its own
    SYSTEM = "system"  # it could not be started, or something from outside ended it
    TIMEOUT = "timeout"
    OUT_OF_MEMORY = "out of memory"
    RESULT = "result"  # what the handler returned is not what the queue promises


class Failed(Exception):
    """A failure with a class of its own; `detail` is for people."""

    def __init__(self, failure: Failure, detail: str, *, permanent: bool = False) -> None:
        super().__init__(detail)
        self.failure = failure
        self.permanent = permanent


class Reported(Exception):
    """A failure that another process has put into words already."""

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
    """Checked before anything is settled; `Failed` names the JSON path of a misfit."""
    try:
        text = _result_text(queue, schema, value)
    except InvalidPayload as error:
        raise Failed(
            Failure.RESULT, f"the result is not what the queue promises: {error}"
        ) from None
    return Settlement(row.batch, row.token, "completed", result=text)


def _result_text(queue: Queue[Any, Any] | None, schema: Schema | None, value: Any) -> str | None:
    if queue is not None and queue.result is not None:
        return canonical_text(queue.result.to_json(value))
    text = None if value is None else canonical_text(value)
    if schema is not None:
        schema.check(None if text is None else json.loads(text), "result")
    return text


def failed(row: LeaseRow, error: BaseException) -> Settlement:
    after = None
    permanent = isinstance(error, GiveUp)
    failure = type(error).__name__
    if isinstance(error, Retry):
        after = error.after_seconds
    elif isinstance(error, Failed):
        failure, permanent = error.failure.value, error.permanent
    elif isinstance(error, Reported):
        failure, permanent = error.failure or "failed", error.permanent
        after = error.after_seconds
    elif isinstance(error, MemoryError):
        failure = Failure.OUT_OF_MEMORY.value
    told = isinstance(error, Retry | GiveUp | Failed | Reported | HelixError)
    detail = str(error) if told else _explained(error)
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
    """A settle was repeated with another result: one of the two is wrong, and people must know."""
    LOG.error(
        "batch %s: worker %s repeated its settle with another result; the stored result stays",
        batch_id,
        worker,
    )


def report_lost(batch_id: UUID, answer: WriteResult) -> None:
    """A settle was refused: another worker has the batch, or it has ended otherwise."""
    LOG.warning(
        "batch %s: %s, it is %s%s; nothing was written",
        batch_id,
        answer.answer,
        answer.state,
        f" and {answer.owner} had it next" if answer.owner else "",
    )


def _explained(error: BaseException) -> str:
    """The message first: it is what people look for; then where it came from."""
    try:
        said = "".join(traceback.format_exception_only(error))
        return said + "".join(traceback.format_tb(error.__traceback__)[-8:])
    except Exception:  # noqa: BLE001 - whatever an exception's own __str__ raises
        return type(error).__name__


def storable(text: str) -> str:
    """Head and tail of any text, without what PostgreSQL cannot hold."""
    text = text.replace("\0", "\\0").encode("utf-8", "backslashreplace").decode()
    if len(text) > MAX_DETAIL_CHARS:
        half = MAX_DETAIL_CHARS // 2
        text = f"{text[:half]}\n[... {len(text) - 2 * half} characters ...]\n{text[-half:]}"
    return text
