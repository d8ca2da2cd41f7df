"""Every error HelixQueue raises.

Below `HelixError` stand `Refused` with its subclasses (the answer is no; asking again changes
nothing), and errors after which another try may succeed: `InProgress`, `Unavailable`, `Retryable`.
Handlers say with `Retry` and `GiveUp` how their attempt is to end; those are no errors of ours.

A message says what was expected, what came, and what to do.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any, ClassVar


class HelixError(Exception):
    """The root: catch this to catch everything HelixQueue raises.

    `kind` names the problem that a service answers with, `exit_status` is that of a command.
    """

    kind: ClassVar[str] = "internal"
    exit_status: ClassVar[int] = 8


class Refused(HelixError):
    """The answer is no, and asking again with the same words changes nothing."""

    kind = "refused"
    exit_status = 5


class InvalidIdentity(Refused):
    """The identifier breaks its profile; `code`, `code_point` and `offset` say where and why.

    `offset` counts code points in the raw spelling; of a tuple, in the part numbered `part`.
    """

    kind = "invalid-identity"

    def __init__(
        self,
        message: str,
        *,
        code: str,
        code_point: int | None = None,
        offset: int | None = None,
        suggestion: str | None = None,
        part: int = 0,
    ) -> None:
        super().__init__(message)
        self.code = code
        self.code_point = code_point
        self.offset = offset
        self.suggestion = suggestion
        self.part = part


class InvalidPayload(Refused):
    """Not strict JSON, or larger than its bound; `path` is a JSON Pointer to the place."""

    kind = "invalid-payload"

    def __init__(self, message: str, *, code: str, path: str = "") -> None:
        super().__init__(message)
        self.code = code
        self.path = path


class Conflict(Refused):
    """This key already belongs to another payload; `diff` is the RFC 6902 patch between them.

    Of a fenced call, `effect` is the id of the effect that the key belongs to, if it has one.
    """

    kind = "conflict"

    def __init__(
        self, message: str, *, diff: list[dict[str, Any]], effect: str | None = None
    ) -> None:
        super().__init__(message)
        self.diff = diff
        self.effect = effect


class LeaseLost(Refused):
    """The token is not the owner's any more; `owner` names who was given the batch next, if any."""

    def __init__(self, message: str, *, owner: str | None = None) -> None:
        super().__init__(message)
        self.owner = owner


class IllegalTransition(Refused):
    """There is no such arrow from the `state` the batch is in."""

    kind = "illegal-transition"

    def __init__(self, message: str, *, state: str | None = None, note: str | None = None) -> None:
        super().__init__(message)
        self.state = state
        self.note = note


class NotPermitted(Refused):
    """This role may not touch that tenant, queue or function."""

    kind = "forbidden"


class NotInTransaction(Refused):
    """A connection was given that is in no transaction, or in one that has failed.

    Also raised by `lease.within` inside a savepoint: it needs the top level of the transaction.
    """


class QueueClosed(Refused):
    """The queue takes no new work now."""

    kind = "queue-closed"


class NotFound(Refused):
    """The tenant has no such thing."""

    exit_status = 1


class NoSuchBatch(NotFound):
    """The tenant has no batch with that id, key or identity, or several have it."""

    kind = "no-such-batch"


class NoSuchQueue(NotFound):
    """The tenant has no queue of that name."""

    kind = "no-such-queue"


class NoSuchWorker(NotFound):
    """No worker has that name, or several names start with it."""

    kind = "no-such-worker"


class NoSuchLetter(NotFound):
    """The tenant has no dead letter of that number."""

    kind = "no-such-letter"


class NoSuchOutputs(NotFound):
    """The batch has no published files."""

    kind = "no-such-outputs"


class NoSuchRun(NotFound):
    """The tenant has no such run."""

    kind = "no-such-run"


class NoSuchSeal(NotFound):
    """The service has made no seal of that number."""

    kind = "no-such-seal"


class NoSuchWebhook(NotFound):
    """The tenant has no source of webhooks with that name."""

    kind = "no-such-webhook"


class BadSignature(Refused):
    """The source is unknown, or no valid secret signed the delivery; `reason` is for the log."""

    kind = "bad-signature"

    def __init__(self, reason: str) -> None:
        super().__init__("the source is unknown, or the signature is not valid")
        self.reason = reason


class UnreadableDelivery(Refused):
    """The signature holds, but the body is no event."""

    kind = "unreadable-delivery"


class WebhookFailed(HelixError):
    """The effect of a webhook raised an exception and was rolled back; the provider resends."""


class NoSuchToken(NotFound):
    """The tenant has no valid token of that name."""

    kind = "no-such-token"


class NoSuchLedger(NotFound):
    """The tenant has no ledger of that name."""

    kind = "no-such-ledger"


class NoSuchEntity(NotFound):
    """The ledger has no event of that entity."""

    kind = "no-such-entity"


class NoSuchFeed(NotFound):
    """The tenant has no feed of that name."""

    kind = "no-such-feed"


class NoSuchFence(NotFound):
    """The tenant has no fence with that key."""

    kind = "no-such-fence"


class NotInDoubt(Refused):
    """The fence is in another state or version than the resolution expects."""

    kind = "not-in-doubt"
    exit_status = 1

    def __init__(self, message: str, *, state: str, version: int) -> None:
        super().__init__(message)
        self.state = state
        self.version = version


class NameTaken(Refused):
    """A token of that name exists or existed; the ledger names actors by it."""

    kind = "name-taken"
    exit_status = 1


class QueueNotEmpty(Refused):
    """The queue has or had batches, so it cannot be deleted."""

    kind = "queue-not-empty"
    exit_status = 1


class NoResult(Refused):
    """The batch ended in `state` without a result; `failure` is the class of what went wrong."""

    kind = "no-result"

    def __init__(self, message: str, *, state: str, failure: str | None = None) -> None:
        super().__init__(message)
        self.state = state
        self.failure = failure


class ResultGone(Refused):
    """It took effect, once, but its answer is not kept (any more); `receipt` proves the effect."""

    def __init__(self, message: str, *, receipt: str) -> None:
        super().__init__(message)
        self.receipt = receipt


class InProgress(HelixError):
    """The same work is still under way; ask again after `retry_after` seconds.

    Of a fenced call, `key` names its fence.
    """

    kind = "in-progress"
    exit_status = 6

    def __init__(self, message: str, *, retry_after: float, key: str | None = None) -> None:
        super().__init__(message)
        self.retry_after = retry_after
        self.key = key


class InDoubt(HelixError):
    """An effect outside the database may or may not have happened.

    `key` names its fence; with `retry_after`, asking again then may be answered otherwise.
    """

    exit_status = 7

    def __init__(
        self, message: str, *, key: str | None = None, retry_after: float | None = None
    ) -> None:
        super().__init__(message)
        self.key = key
        self.retry_after = retry_after


class Unavailable(HelixError):
    """The database is away; with `outcome_unknown` the last call may have committed: repeat it.

    `retry_after`: seconds to wait, if the server named them.
    """

    kind = "unavailable"
    exit_status = 3

    def __init__(
        self, message: str, *, outcome_unknown: bool = False, retry_after: float | None = None
    ) -> None:
        super().__init__(message)
        self.outcome_unknown = outcome_unknown
        self.repeatable = True  # whether the engine recognises a repeat of the call
        self.retry_after = retry_after


class Retryable(HelixError):
    """A deadlock or a serialisation failure undid the transaction; run it again from its start."""

    kind = "retryable"
    exit_status = 6


class SchemaMismatch(HelixError):
    """The database's schema is older or newer than this release needs; run `helixq migrate`."""

    kind = "not-ready"
    exit_status = 4


class NotInstalled(HelixError):
    """The Python package `package` is missing; it comes with `helixqueue[extra]`."""

    def __init__(self, package: str | None, extra: str, *, otherwise: str = "") -> None:
        super().__init__(
            f"expected the package {package}, and it is missing: "
            f"pip install 'helixqueue[{extra}]'{otherwise}"
        )
        self.package = package
        self.extra = extra


class Retry(Exception):
    """Raised by a handler: this attempt failed; try again `after` so long, else by the back-off."""

    def __init__(self, after: float | timedelta | None = None, reason: str = "") -> None:
        super().__init__(reason or "to be tried again")
        self.after_seconds = (
            after if after is None or isinstance(after, int | float) else (after.total_seconds())
        )


class GiveUp(Exception):
    """Raised by a handler: this work cannot succeed; it ends as FAILED with tries left."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
