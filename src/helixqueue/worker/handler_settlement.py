"""How a handler settles its lease in one commit with its own rows.

The settlement is the last statement of the transaction. If it is refused, the transaction cannot
commit, the handler gets `LeaseLost`, and the worker sends the refused settlement again, alone, to
keep the refusal. If the reply to the commit is lost, the settlement is unconfirmed: the worker
reads the ledger when the handler has ended. Until then the lease is not renewed, because the
renewal of a completed batch would be refused and recorded as a refusal.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Generic, TypeVar

from helixqueue.errors import GiveUp, LeaseLost, Refused, Retry, Unavailable
from helixqueue.failpoints import failpoint
from helixqueue.log.events import log_write
from helixqueue.worker import outcomes

if TYPE_CHECKING:
    from helixqueue.queues import Queue
    from helixqueue.schemas import Schema
    from helixqueue.transport.protocol import Settlement, WriteResult
    from helixqueue.worker.attempt import Attempt
    from helixqueue.worker.handle import WorkerHandle

R = TypeVar("R")


class Settling(Generic[R]):
    def __init__(
        self,
        attempt: Attempt,
        queue: Queue[Any, Any] | None,
        schema: Schema | None,
        handle: WorkerHandle,
        connection: Any,
    ) -> None:
        self._attempt = attempt
        self._queue = queue
        self._schema = schema
        self._handle = handle
        self.connection = connection

    def _completed(self, result: R) -> Settlement:
        return outcomes.completed(self._attempt.row, self._queue, self._schema, result)

    def _failed(self, reason: str, after: float | None, *, permanent: bool) -> Settlement:
        error = GiveUp(reason) if permanent else Retry(after, reason)
        return outcomes.failed(self._attempt.row, error)

    def _check(
        self, result: WriteResult, settlement: Settlement, earlier: Settlement | None
    ) -> None:
        """Raise unless the engine accepted the settlement; `earlier` was unconfirmed before it."""
        if result.answer == "ok":
            return
        # A refusal is rolled back with the transaction: the worker then settles again outside of
        # it, and that result is logged.
        if result.answer == "repeat":
            self._log(result, settlement)
            if result.mismatch:
                outcomes.report_mismatch(self._attempt.row.batch_id, self._handle.worker)
            self._attempt.settled_as = settlement.outcome
            raise LeaseLost(
                "an earlier transaction has settled this lease and taken effect; this one takes no "
                "effect: settle a lease once"
            )
        # The reply to an earlier commit was lost. If it took effect, the lease was settled and not
        # lost: the worker reads the ledger.
        self._attempt.unconfirmed = earlier
        if earlier is not None:
            raise LeaseLost(
                f"the batch is {result.state}; an earlier transaction of this attempt may have "
                "settled it, and this one takes no effect: settle a lease once",
                owner=result.owner,
            )
        self._attempt.refused = settlement
        self._attempt.stop("abandoned", f"refused: the batch is {result.state}", result.owner)
        raise _lease_lost(self._attempt)

    def _log(self, result: WriteResult, settlement: Settlement, *, committed: bool = True) -> None:
        log_write(
            self._handle.worker, "settle", self._attempt.row, result, detail=settlement.detail,
            committed=committed,
        )  # fmt: skip

    def _require_held(self) -> None:
        if self._attempt.settled_as:
            raise Refused("this lease has been settled; settle a lease once")
        if self._attempt.stop_kind is not None:
            raise _lease_lost(self._attempt)


def _lease_lost(attempt: Attempt) -> LeaseLost:
    owner = f"; {attempt.owner} holds it now" if attempt.owner else ""
    return LeaseLost(
        f"this worker lost the lease on batch {attempt.row.batch_id} ({attempt.stop_reason}"
        f"{owner}); nothing of this attempt is written",
        owner=attempt.owner,
    )


class DeferredSettlement(Settling[R]):
    """`complete` and `fail` choose the settlement; it is sent when the block ends."""

    settlement: Settlement | None = None
    _earlier: Settlement | None = None  # unconfirmed when this transaction began
    _accepted: WriteResult | None = None  # it takes effect when the transaction commits

    def complete(self, result: R) -> R:
        """Complete the batch with this result when the block ends."""
        self.settlement = self._completed(result)
        return result

    def fail(self, reason: str, *, after: float | None = None, permanent: bool = False) -> None:
        """Fail the attempt when the block ends; the rows of this transaction are committed."""
        self.settlement = self._failed(reason, after, permanent=permanent)

    def _required_settlement(self) -> Settlement:
        """The settlement at the end of the block; without one, the rows must not be committed."""
        self._require_held()
        if self.settlement is None:
            raise Refused(
                "lease.transaction(): expected tx.complete(...) or tx.fail(...) before the end of "
                "the block, got neither; the transaction was rolled back because it did not settle "
                "its lease"
            )
        return self.settlement

    def _accept(self, result: WriteResult, settlement: Settlement) -> None:
        self._check(result, settlement, self._earlier)
        self._accepted = result

    def _commit_error(self, error: BaseException) -> Unavailable | None:
        """The error to raise when the connection broke at the commit, whose outcome is unknown."""
        transactions = self._handle.transactions or self._handle.async_transactions
        if self._accepted is None or self.settlement is None or transactions is None:
            return None
        if not transactions.is_connection_error(error):
            return None
        self._log(self._accepted, self.settlement, committed=False)
        return Unavailable(f"the commit may have happened: {error}", outcome_unknown=True)

    def _rolled_back(self) -> None:
        if self._attempt.settled_as:
            return
        # If this settlement was accepted, the lease was live: the earlier commit did not happen.
        self._attempt.unconfirmed = None if self._accepted else self._earlier
        is_held = self._attempt.stop_kind is None and self._attempt.unconfirmed is None
        if is_held and self.settlement is not None:
            self._handle.resume_renewal(self._attempt)

    def _committed(self) -> None:
        if self.settlement is not None and self._accepted is not None:
            self._log(self._accepted, self.settlement)
            self._attempt.unconfirmed = None
            self._attempt.settled_as = self.settlement.outcome
            self._handle.stop_renewal(self._attempt)
            failpoint("effect.after")


class CallerSettlement(Settling[R]):
    """A settlement in a transaction that only the caller commits."""

    def _check(
        self, result: WriteResult, settlement: Settlement, earlier: Settlement | None
    ) -> None:
        super()._check(result, settlement, earlier)
        self._log(result, settlement, committed=False)

    def _rolled_back(self, earlier: Settlement | None) -> None:
        """The settlement failed, and with it the caller's transaction."""
        self._attempt.unconfirmed = earlier
        if earlier is None and self._attempt.stop_kind is None:
            self._handle.resume_renewal(self._attempt)


def no_transactions() -> Refused:
    return Refused(
        "expected a worker with a database connection, got a worker over HTTP: return the result "
        "instead, and the worker settles it"
    )
