"""Hot calls of a client: SQL statements (`engine`) or HTTP requests (`transport/http`).

Both are modules with the same functions, parameters and results. All other calls follow from
declared operations (`operation.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol
from uuid import UUID

if TYPE_CHECKING:
    from helixqueue.operations.instructions import AnyCall
    from helixqueue.operations.operation import Operation
    from helixqueue.records.lease import ClaimResult, LeaseRef, Settlement, WriteResult
    from helixqueue.records.submission import SubmissionRow, SubmittedRow


class WriteCalls(Protocol):
    """Calls that change state; a module implements them."""

    def submit(
        self,
        *,
        tenant: str,
        queue: str,
        profile: str,
        rows: Sequence[SubmissionRow],
        actor: str | None = None,
    ) -> AnyCall[list[SubmittedRow]]: ...

    def note_refused(
        self,
        *,
        tenant: str,
        queue: str,
        refused: Sequence[tuple[bytes, str]],
        actor: str | None = None,
    ) -> AnyCall[None]: ...

    def claim(
        self,
        *,
        worker: str,
        request: UUID,
        queues: Sequence[str],
        count: int,
        free: dict[str, Any] | None = None,
        start: bool = False,
        tenant: str | None = None,
    ) -> AnyCall[ClaimResult]: ...

    def start(self, *, worker: str, leases: Sequence[LeaseRef]) -> AnyCall[list[WriteResult]]: ...

    def renew(self, *, worker: str, leases: Sequence[LeaseRef]) -> AnyCall[list[WriteResult]]: ...

    def release(
        self, *, worker: str, leases: Sequence[LeaseRef], detail: str | None = None
    ) -> AnyCall[list[WriteResult]]: ...

    def settle(
        self, *, worker: str, settlements: Sequence[Settlement]
    ) -> AnyCall[list[WriteResult]]: ...


@dataclass(frozen=True)
class CallSet:
    """The calls of clients on PostgreSQL or on HTTP, and their limits."""

    calls: WriteCalls
    ledgers: Any  # the module of calls about user ledgers and feeds
    chunk_rows: int  # maximum rows of one submit call
    chunk_chars: int  # maximum characters of their payloads and identities
    payload_bytes_max: int | None = None  # None: the limit of the engine
    # The request of an operation, for a service; None: operations run here.
    remote: Callable[[Operation[..., Any], dict[str, Any]], AnyCall[Any]] | None = None
