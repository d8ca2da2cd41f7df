"""Operations of every client, as instructions without I/O: queues, outcomes, leases.

An `Operations` object remembers the queues that it has read, which saves a round trip per call. The
engine compares the profile in every call; after a refusal the queue is read again.
"""

from __future__ import annotations

import json
import logging
import math
import time
import uuid
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from helixqueue.errors import (
    InProgress,
    NoResult,
    NoSuchBatch,
    NoSuchQueue,
    NotPermitted,
    Refused,
)
from helixqueue.identity import PROFILES, check_name
from helixqueue.operations import batch_reads, engine, queues
from helixqueue.operations.instructions import Execute, Instructions, Sleep, retried, short_pause
from helixqueue.operations.outputs import are_published
from helixqueue.operations.prepare import KnownQueue
from helixqueue.queues import Queue, checked_requires
from helixqueue.records.batch import failure_text
from helixqueue.records.lease import LeaseRef, LeaseRow
from helixqueue.records.submission import Receipt
from helixqueue.states import FINISHED, State

if TYPE_CHECKING:
    from helixqueue.operations.call_set import CallSet
    from helixqueue.operations.instructions import AnyCall
    from helixqueue.records.batch import EventRow, OutcomeRow
    from helixqueue.records.lease import Settlement, WriteResult
    from helixqueue.records.queue import QueueRow

T = TypeVar("T")
LOG = logging.getLogger("helixqueue.client")

# How long a queue that was passed by name is remembered: its schema may change.
REMEMBER_S = 30.0
FIRST_LOOK_S = 0.02
LONGEST_LOOK_S = 1.0

Which = Receipt[Any] | uuid.UUID


class Operations:
    def __init__(
        self,
        call_set: CallSet,
        *,
        tenant: str | None,
        actor: str | None,
        retry_seconds: float,
        outage_pause: Callable[[int], float] = short_pause,
        logs_identities: bool = True,
        only_queues: Collection[str] | None = None,
        sees_payloads: bool = True,
        reads_batches: bool = True,
        token_hash: bytes | None = None,
        find_signer: Callable[[], Any] = lambda: None,
        keeps_json: bool = False,
    ) -> None:
        """Without `tenant`, the token of the connection determines the tenant.

        `only_queues`, `sees_payloads` and `reads_batches` are the limits of a token; a database
        login has none.
        `token_hash` is the token for which a service acts, `find_signer` finds the key that signs
        receipts. With `keeps_json` payloads and results are read as `JsonText`.
        """
        self.logs_identities = logs_identities
        self.call_set = call_set
        self.calls = call_set.calls
        self.tenant = "" if tenant is None else check_name("tenant", tenant)
        no_tenant = "this login" if call_set.remote is None else "the token's tenant"
        self._tenant_text = f"tenant {tenant}" if tenant else no_tenant
        self.actor = actor
        self._queues = only_queues
        self.sees_payloads, self.reads_batches = sees_payloads, reads_batches
        self.token_hash, self.find_signer = token_hash, find_signer
        self.keeps_json = keeps_json
        self._retry_seconds, self._outage_pause = retry_seconds, outage_pause
        self._known: dict[Queue[Any, Any] | str, KnownQueue] = {}
        self._connected = False

    def ask(self, call: AnyCall[T], *, repeatable: bool = True) -> Instructions[T]:
        """Run a call on a connection of the client, and retry while the database is unavailable.

        A client that never reached its database does not retry: a wrong DSN fails at once.
        """
        seconds = self._retry_seconds if self._connected else 0.0
        answer = yield from retried(
            call, seconds=seconds, repeatable=repeatable, outage=self._outage_pause
        )
        self._connected = True
        return answer

    # Queues.

    def may_use(self, queue: str | None) -> bool:
        return self._queues is None or queue in self._queues

    def require_queue(self, queue: str) -> None:
        if not self.may_use(queue):
            raise NotPermitted(f"the token does not permit queue {queue}")

    def known(
        self, queue: Queue[Any, Any] | str, *, create: bool = False
    ) -> Instructions[KnownQueue]:
        """Return the stored queue, remembered or read; create or change a declared queue first."""
        known = self._known.get(queue) if isinstance(queue, Queue | str) else None
        now = time.monotonic()
        if known is not None and (known.declared or now - known.read_at < REMEMBER_S):
            return known
        if isinstance(queue, Queue):
            row = yield from self._declare(queue)
            known = KnownQueue(row, queue, now)
        else:
            name = check_name("queue", queue)
            known = KnownQueue((yield from self._find(name, create=create)), None, now)
        self._known[queue] = known
        return known

    def _declare(self, queue: Queue[Any, Any]) -> Instructions[QueueRow]:
        named = queue.settings()
        row = yield from self.find_queue(queue.name)
        wanted: Any = {
            name: value
            for name, value in named.items()
            if row is None or not _equal(getattr(row, name), value)
        }
        if row is not None and not wanted:
            return row
        try:
            # Refuses another profile, unless the queue is empty.
            return (yield from queues.set_queue(self, queue.name, reason=queues.DECLARED, **wanted))
        except NotPermitted as denied:
            found = "does not exist" if row is None else f"has other settings ({_few(row, wanted)})"
            raise NotPermitted(
                f"queue {queue.name} is declared, {found}, and was not set: {denied}; or a login "
                f"with that right runs `helixq queue set {queue.name} --reason ...`"
            ) from denied

    def _find(self, name: str, *, create: bool) -> Instructions[QueueRow]:
        row = yield from self.find_queue(name)
        if row is None and create:
            row = yield from queues.set_queue(self, name, reason=queues.DECLARED)
        if row is None:
            raise Refused(
                f"{self._tenant_text} has no queue {name!r}: declare it with Queue({name!r}) or "
                f"`helixq queue set {name} --profile PROFILE --reason ...` "
                f"({' or '.join(PROFILES)}), or submit to it with create=True"
            )
        return row

    def find_queue(self, name: str) -> Instructions[QueueRow | None]:
        """The queue, whatever the queues of the token: the caller has checked them."""
        if self.call_set.remote is None:
            return (yield from self.ask(engine.calls.queue(tenant=self.tenant, queue=name)))
        try:
            return (yield from queues.show_settings(self, name))
        except NoSuchQueue:
            return None

    def no_such_queue(self, name: str) -> NoSuchQueue:
        return NoSuchQueue(f"{self._tenant_text} has no queue {name}")

    def forget(self, name: str) -> None:
        """Read the queue again at its next use."""
        for queue in list(self._known):
            if queue == name or getattr(queue, "name", None) == name:
                self._known.pop(queue, None)

    # Batches.

    def require_payloads(self) -> None:
        if not self.sees_payloads:
            raise NotPermitted("the operation requires the scope payloads")

    def no_such_batch(self, batch_id: uuid.UUID) -> NoSuchBatch:
        return NoSuchBatch(f"{self._tenant_text} has no batch {batch_id}: check the receipt")

    def state(self, which: Which) -> Instructions[State]:
        found = yield from batch_reads.show_outcome(self, which, result=False)
        return found.state

    def wait(
        self, which: Which, timeout: float | None, *, outputs: bool = False
    ) -> Instructions[State]:
        deadline = math.inf if timeout is None else time.monotonic() + timeout
        pause = FIRST_LOOK_S
        while True:
            found = yield from batch_reads.show_outcome(self, which, result=False)
            if found.state in FINISHED and (
                not outputs or (yield from are_published(self, found.batch_id))
            ):
                return found.state
            left = deadline - time.monotonic()
            if left <= 0:
                raise InProgress(
                    f"batch {found.batch_id} is {found.state} and did not finish in {timeout} s; "
                    "wait again",
                    retry_after=LONGEST_LOOK_S,
                )
            yield Sleep(min(pause, left))
            pause = min(pause * 1.5, LONGEST_LOOK_S)

    def result(self, which: Which, queue: Queue[Any, Any] | None) -> Instructions[Any]:
        found = yield from batch_reads.show_outcome(self, which, result=True)
        if found.state not in FINISHED:
            raise InProgress(
                f"batch {found.batch_id} is {found.state} and has no result yet; wait for it",
                retry_after=LONGEST_LOOK_S,
            )
        if found.state is not State.COMPLETED or found.queue is None:
            raise _no_result(found, "its retention is over")
        declared = queue or self._declared(found.queue)
        shape = None if declared is None else declared.result
        if shape is None:
            return found.result
        if not found.has_result:
            raise _no_result(found, "its worker gave none, or it was erased")
        return shape.read(found.result)

    def _declared(self, name: str) -> Queue[Any, Any] | None:
        """Return the latest declaration of that name: notebooks run a cell again."""
        latest = reversed(list(self._known))
        return next(
            (queue for queue in latest if isinstance(queue, Queue) and queue.name == name), None
        )

    def history(self, which: Which) -> Instructions[list[EventRow]]:
        found = yield from batch_reads.show_batch(self, which)
        return list(found.events)

    # Leases.

    def claim(
        self,
        worker: str,
        queues: Sequence[Queue[Any, Any] | str],
        count: int,
        free: Mapping[str, Any] | None,
        *,
        start: bool,
    ) -> Instructions[list[LeaseRow]]:
        if isinstance(queues, str | Queue):  # a frequent mistake without a type checker
            raise Refused(f"queues: expected several, such as [{queues!r}]; got {queues!r} alone")
        names = []
        for queue in queues:
            known = yield from self.known(queue)
            names.append(known.row.name)
        claimed = yield from self.ask(
            self.calls.claim(
                worker=_worker(worker),
                request=uuid.uuid4(),  # the same for all retries: a repeat returns the same leases
                queues=names,
                count=count,
                free=None if free is None else checked_requires(free, "free"),
                start=start,
                tenant=self.tenant,
            )
        )
        return list(claimed.leases)

    def change_leases(
        self, verb: str, worker: str, leases: Iterable[LeaseRow | LeaseRef]
    ) -> Instructions[list[WriteResult]]:
        """Start, renew or release leases."""
        calls = self.calls
        build = {"start": calls.start, "renew": calls.renew, "release": calls.release}[verb]
        held = [LeaseRef(lease.batch, lease.token) for lease in leases]
        call = build(worker=_worker(worker), leases=held)
        return (yield from self.ask(call)) if held else []

    def settle(
        self, worker: str, settlements: Sequence[Settlement], within: object
    ) -> Instructions[list[WriteResult]]:
        call = self.calls.settle(worker=_worker(worker), settlements=settlements)
        if not settlements:
            return []
        answers: list[WriteResult]
        if within is None:
            answers = yield from self.ask(call)
        else:
            answers = yield Execute(call, within)
        for answer in answers:
            if answer.mismatch:
                LOG.error(
                    "batch %d: worker %s repeated its settle with another result; "
                    "the stored result stays",
                    answer.batch,
                    worker,
                )
        return answers


def _few(stored: QueueRow, declared: Mapping[str, Any]) -> str:
    """The settings that differ; schemas only by name."""
    return ", ".join(
        name if name.endswith("_schema") else f"{name} {getattr(stored, name)!r}, not {value!r}"
        for name, value in declared.items()
    )


def _equal(stored: object, named: object) -> bool:
    if isinstance(named, float) and isinstance(stored, float):
        # The column is a four-byte real.
        return math.isclose(stored, named, rel_tol=1e-6)
    # Through JSON, because the stored document went through it.
    return bool(stored == json.loads(json.dumps(named)))


def _worker(name: object) -> str:
    """Check the name of a worker, which the ledger records."""
    if not isinstance(name, str) or not 1 <= len(name) <= 255 or not name.isprintable():
        raise Refused(
            f"worker: expected a name of 1 to 255 visible characters, got {ascii(name)[:80]}"
        )
    return name


def _no_result(found: OutcomeRow, gone: str) -> NoResult:
    if found.state is State.COMPLETED:
        why, remedy = gone, "its receipt still proves that it happened"
    else:
        why = failure_text(found.failure, found.detail, between=": ") or "no reason given"
        remedy = "retry it" if found.state is State.FAILED else "submit a new revision"
    return NoResult(
        f"batch {found.batch_id} is {found.state} and has no result ({why}); {remedy}",
        state=found.state,
        failure=found.failure,
    )
