"""Which calls a client makes: statements (`store`), or HTTP requests (`transport/http`).

Both come as functions of the same names that take the same things and whose answers are the same
values. So what a client does is written once (`desk`, `submitting`), whichever way it asks.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, Unpack

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from datetime import datetime
    from uuid import UUID

    from helixqueue.states import State
    from helixqueue.store.plans import Asked
    from helixqueue.store.read_rows import EventRow, LetterPage, OutcomeRow, Page
    from helixqueue.store.rows import (
        Answer,
        Claimed,
        Held,
        QueueRow,
        QueueSettings,
        Settlement,
        SubmissionRow,
        SubmittedRow,
        Verdict,
    )


class Calls(Protocol):
    """What changes something; a module is one."""

    def submit(
        self,
        *,
        tenant: str,
        queue: str,
        profile: str,
        rows: Sequence[SubmissionRow],
        actor: str | None = None,
    ) -> Asked[list[SubmittedRow]]: ...

    def note_refused(
        self,
        *,
        tenant: str,
        queue: str,
        refused: Sequence[tuple[bytes, str]],
        actor: str | None = None,
    ) -> Asked[None]: ...

    def queue(self, *, tenant: str, queue: str) -> Asked[QueueRow | None]: ...

    def set_queue(
        self,
        *,
        tenant: str,
        queue: str,
        actor: str | None = None,
        **settings: Unpack[QueueSettings],
    ) -> Asked[QueueRow]: ...

    def cancel(
        self, *, ids: Sequence[UUID], reason: str, actor: str | None = None
    ) -> Asked[list[Verdict]]: ...

    def retry(
        self, *, ids: Sequence[UUID], reason: str, actor: str | None = None
    ) -> Asked[list[Verdict]]: ...

    def erase(
        self, *, ids: Sequence[UUID], reason: str, actor: str | None = None
    ) -> Asked[list[Verdict]]: ...

    def redrive(
        self, *, ids: Sequence[UUID], reason: str, actor: str | None = None
    ) -> Asked[list[Verdict]]: ...

    def claim(
        self,
        *,
        worker: str,
        request: UUID,
        queues: Sequence[str],
        count: int,
        free: dict[str, Any] | None = None,
        start: bool = False,
    ) -> Asked[Claimed]: ...

    def start(self, *, worker: str, held: Sequence[Held]) -> Asked[list[Answer]]: ...

    def renew(self, *, worker: str, held: Sequence[Held]) -> Asked[list[Answer]]: ...

    def release(
        self, *, worker: str, held: Sequence[Held], detail: str | None = None
    ) -> Asked[list[Answer]]: ...

    def settle(self, *, worker: str, settlements: Sequence[Settlement]) -> Asked[list[Answer]]: ...


class Reads(Protocol):
    """What changes nothing."""

    def outcomes(
        self, *, ids: Sequence[UUID], results: bool = False
    ) -> Asked[list[OutcomeRow | None]]: ...

    def events(self, *, ids: Sequence[UUID]) -> Asked[dict[UUID, list[EventRow]]]: ...

    def batches(
        self,
        *,
        tenant: str | None = None,
        queue: str | None = None,
        state: State | None = None,
        identity: str | tuple[str, ...] | None = None,
        worker: str | None = None,
        since: datetime | None = None,
        until: datetime | None = None,
        after: str | None = None,
        limit: int = 50,
    ) -> Asked[Page]: ...

    def letters(
        self,
        *,
        tenant: str | None = None,
        queue: str | None = None,
        failure: str | None = None,
        since: datetime | None = None,
        before: datetime | None = None,
        after: str | None = None,
        limit: int = 50,
    ) -> Asked[LetterPage]: ...


@dataclass(frozen=True)
class Book:
    calls: Calls
    reads: Reads
    chunk_rows: int  # of one call of submit
    chunk_chars: int  # of their payloads and identities
    check: Callable[[SubmissionRow], None]  # refuses a row that no call could carry


def takes_any(_: SubmissionRow) -> None:
    """Whatever was prepared fits a statement."""
