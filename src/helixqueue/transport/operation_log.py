"""The operation log of a worker: one line of JSON per batch and call, as the service writes them.

Searching for the id of a batch then finds what happened to it, also where workers use the database
directly. Set the logger `helixqueue.worker.operation` to INFO to get the lines, as `helixq work`
does. Successful renewals are made by the heartbeat process and not logged; a refused renewal ends
the attempt, and the worker logs that.
"""

from __future__ import annotations

import json
import logging
from collections import OrderedDict
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

from helixqueue.identity import PART_SEPARATOR
from helixqueue.json_log import level_name

if TYPE_CHECKING:
    from collections.abc import Sequence
    from uuid import UUID

    from helixqueue.transport.protocol import (
        AsyncHandlerTransactions,
        ClaimRequest,
        ClaimResult,
        HandlerTransactions,
        LeaseRef,
        LeaseRow,
        Settlement,
        Transport,
        WriteResult,
    )

LOG = logging.getLogger("helixqueue.worker.operation")
REMEMBERED_MAX: Final = 10_000
_ENCODER: Final = json.JSONEncoder(ensure_ascii=False)


def with_operation_log(transport: Transport) -> Transport:
    """The same transport; it logs its results if the operation log is enabled."""
    return LoggedTransport(transport) if LOG.isEnabledFor(logging.INFO) else transport


class LoggedTransport:
    """A transport that logs the results of another one."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport
        self.worker = transport.worker
        # By batch: claimed and not settled yet. A lost lease is never settled, hence the limit.
        self._claimed: OrderedDict[int, dict[str, Any]] = OrderedDict()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

    @property
    def transactions(self) -> HandlerTransactions | None:
        inner = self._transport.transactions
        return None if inner is None else _LoggedTransactions(inner, self)

    @property
    def async_transactions(self) -> AsyncHandlerTransactions | None:
        inner = self._transport.async_transactions
        return None if inner is None else _LoggedAsyncTransactions(inner, self)

    async def claim(self, request: ClaimRequest) -> ClaimResult:
        claimed = await self._transport.claim(request)
        self._log_results("settle", claimed.settled, request.request_id)
        for row in claimed.leases:
            batch_fields = {
                "tenant": row.tenant,
                "queue": row.queue,
                "batch": str(row.batch_id),
                "attempt": row.attempt,
                "identity": row.identity,  # for terminals; not part of the JSON line
            }
            self._claimed[row.batch] = batch_fields
            self._write("claim", batch_fields, "ok", request.request_id)
        while len(self._claimed) > REMEMBERED_MAX:
            self._claimed.popitem(last=False)
        return claimed

    async def settle(self, settlements: Sequence[Settlement]) -> list[WriteResult]:
        results = await self._transport.settle(settlements)
        self._log_results("settle", results)
        return results

    async def release(self, leases: Sequence[LeaseRef], detail: str) -> list[WriteResult]:
        results = await self._transport.release(leases, detail)
        self._log_results("release", results)
        return results

    async def was_settled(self, lease: LeaseRow, *, wait: bool = True) -> bool:
        """If an unconfirmed settlement took effect, log it as a repeat."""
        settled = await self._transport.was_settled(lease, wait=wait)
        if settled:
            batch_fields = self._claimed.pop(lease.batch, {"batch": str(lease.batch_id)})
            self._write("settle", batch_fields, "repeat")
        return settled

    def log_in_transaction(self, result: WriteResult) -> None:
        """Log a settlement in a handler's transaction, which may still be rolled back.

        A refusal is rolled back with it. The worker then settles again outside of the transaction,
        and that result is logged: this very attempt may have ended the batch.
        """
        if result.answer != "refused":
            batch_fields = self._claimed.get(result.batch, {"batch": result.batch})
            self._log_result("settle", batch_fields, result, None)

    def _log_results(
        self, operation: str, results: Sequence[WriteResult], request_id: UUID | None = None
    ) -> None:
        for result in results:
            batch_fields = self._claimed.get(result.batch, {"batch": result.batch})
            if result.answer != "busy":  # else the call is repeated
                self._claimed.pop(result.batch, None)
            self._log_result(operation, batch_fields, result, request_id)

    def _log_result(
        self,
        operation: str,
        batch_fields: dict[str, Any],
        result: WriteResult,
        request_id: UUID | None,
    ) -> None:
        owner = result.owner if result.answer == "refused" else None
        fields: dict[str, Any] = {} if result.state is None else {"state": result.state.value}
        if result.mismatch:
            fields["mismatch"] = True
        self._write(operation, batch_fields | fields, result.answer, request_id, owner)

    def _write(
        self,
        operation: str,
        fields: dict[str, Any],
        decision: str,
        request_id: UUID | None = None,
        owner: str | None = None,
    ) -> None:
        level = logging.WARNING if decision == "refused" else logging.INFO
        # Another worker owns the batch, or this one had two results for one attempt.
        if owner is not None or fields.get("mismatch"):
            level = logging.ERROR
        identity = fields.get("identity")
        line: dict[str, Any] = {
            "at": datetime.now(UTC).isoformat(timespec="milliseconds"),
            "level": level_name(level),
            "request": None if request_id is None else str(request_id),
            "operation": operation,
            **fields,
            "worker": self.worker,
            "conflicting_worker": owner,
            "decision": decision,
        }
        line.pop("identity", None)
        known = {name: value for name, value in line.items() if value is not None}
        text = (identity or "").replace(PART_SEPARATOR, " / ")
        LOG.log(level, "%s", _ENCODER.encode(known), extra={"operation": known, "identity": text})


class _LoggedTransactions:
    """Settlements in a handler's transaction; the ledger shows whether it commits."""

    def __init__(self, transactions: HandlerTransactions, log: LoggedTransport) -> None:
        self._transactions = transactions
        self._log = log
        self.connection = transactions.connection
        self.is_connection_error = transactions.is_connection_error

    def settle_within(
        self,
        connection: Any,
        settlement: Settlement,
        seconds: float,
        *,
        in_caller_transaction: bool = False,
    ) -> WriteResult:
        result = self._transactions.settle_within(
            connection, settlement, seconds, in_caller_transaction=in_caller_transaction
        )
        self._log.log_in_transaction(result)
        return result


class _LoggedAsyncTransactions:
    """The same for event loops."""

    def __init__(self, transactions: AsyncHandlerTransactions, log: LoggedTransport) -> None:
        self._transactions = transactions
        self._log = log
        self.connection = transactions.connection
        self.is_connection_error = transactions.is_connection_error

    async def settle_within(
        self,
        connection: Any,
        settlement: Settlement,
        seconds: float,
        *,
        in_caller_transaction: bool = False,
    ) -> WriteResult:
        result = await self._transactions.settle_within(
            connection, settlement, seconds, in_caller_transaction=in_caller_transaction
        )
        self._log.log_in_transaction(result)
        return result
