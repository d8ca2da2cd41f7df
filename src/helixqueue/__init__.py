"""HelixQueue: every piece of work takes effect once, and you can prove it.

Names are loaded when they are used: importing the package costs nothing that is not needed.
"""

from __future__ import annotations

TYPE_CHECKING = False  # as `typing` has it, which takes longer to load than all the rest
if TYPE_CHECKING:
    from helixqueue import errors as errors
    from helixqueue.client.asynchronous import AsyncHelixQueue
    from helixqueue.client.http import HelixClient
    from helixqueue.client.http_async import AsyncHelixClient
    from helixqueue.client.sync import HelixQueue
    from helixqueue.errors import (
        Conflict,
        GiveUp,
        HelixError,
        IllegalTransition,
        InDoubt,
        InProgress,
        InvalidIdentity,
        InvalidPayload,
        LeaseLost,
        NoResult,
        NotInstalled,
        NotInTransaction,
        NotPermitted,
        QueueClosed,
        Refused,
        ResultGone,
        Retry,
        Retryable,
        SchemaMismatch,
        Unavailable,
    )
    from helixqueue.queues import Queue
    from helixqueue.records.lease import Settlement
    from helixqueue.records.ledger import Appended, NewEvent
    from helixqueue.records.machine import Machine
    from helixqueue.records.submission import (
        Accepted,
        Receipt,
        Source,
        Submission,
        Submitted,
    )
    from helixqueue.states import State
    from helixqueue.worker.lease import AsyncLease, Lease

__version__ = "0.1.0"

__all__ = [
    "Accepted",
    "Appended",
    "AsyncHelixClient",
    "AsyncHelixQueue",
    "AsyncLease",
    "Conflict",
    "GiveUp",
    "HelixClient",
    "HelixError",
    "HelixQueue",
    "IllegalTransition",
    "InDoubt",
    "InProgress",
    "InvalidIdentity",
    "InvalidPayload",
    "Lease",
    "LeaseLost",
    "Machine",
    "NewEvent",
    "NoResult",
    "NotInTransaction",
    "NotInstalled",
    "NotPermitted",
    "Queue",
    "QueueClosed",
    "Receipt",
    "Refused",
    "ResultGone",
    "Retry",
    "Retryable",
    "SchemaMismatch",
    "Settlement",
    "Source",
    "State",
    "Submission",
    "Submitted",
    "Unavailable",
    "errors",
]

# Where each name lives, unless it is an error.
_HOMES = {
    "Accepted": "helixqueue.records.submission",
    "Appended": "helixqueue.records.ledger",
    "AsyncHelixClient": "helixqueue.client.http_async",
    "AsyncHelixQueue": "helixqueue.client.asynchronous",
    "AsyncLease": "helixqueue.worker.lease",
    "HelixClient": "helixqueue.client.http",
    "HelixQueue": "helixqueue.client.sync",
    "Lease": "helixqueue.worker.lease",
    "Machine": "helixqueue.records.machine",
    "NewEvent": "helixqueue.records.ledger",
    "Queue": "helixqueue.queues",
    "Receipt": "helixqueue.records.submission",
    "Settlement": "helixqueue.records.lease",
    "Source": "helixqueue.records.submission",
    "State": "helixqueue.states",
    "Submission": "helixqueue.records.submission",
    "Submitted": "helixqueue.records.submission",
}


def __getattr__(name: str) -> object:
    from importlib import import_module  # noqa: PLC0415 - loaded when used

    if name not in __all__:
        raise AttributeError(f"module 'helixqueue' has no attribute {name!r}")
    if name == "errors":
        return import_module("helixqueue.errors")
    found: object = getattr(import_module(_HOMES.get(name, "helixqueue.errors")), name)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted([*__all__, "__version__"])
