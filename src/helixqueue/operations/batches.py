"""What both clients do, as plans.

A desk remembers queues that it has met, to spare a round trip each time. Nothing rests on that: the
engine compares the profile with every call, and what it refuses is looked up afresh.
"""

from __future__ import annotations

import json
import logging
import math
import time
import uuid
from itertools import islice
from typing import TYPE_CHECKING, Any, TypeVar

from helixqueue.errors import (
    HelixError,
    IllegalTransition,
    InProgress,
    NoResult,
    Refused,
    Retryable,
)
from helixqueue.identity import check_name
from helixqueue.operations.prepare import KnownQueue, moment
from helixqueue.operations.steps import Execute, Sleep, Steps, retried
from helixqueue.queues import Queue, checked_requires
from helixqueue.records.read_rows import Letter
from helixqueue.records.rows import LeaseRef, LeaseRow, Receipt
from helixqueue.states import FINISHED, State

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence
    from datetime import datetime

    from helixqueue.operations.backend import Backend
    from helixqueue.operations.steps import AnyCall
    from helixqueue.records.read_rows import BatchPage, EventRow, LetterPage, OutcomeRow
    from helixqueue.records.rows import ActionResult, QueueRow, Settlement, WriteResult

T = TypeVar("T")
LOG = logging.getLogger("helixqueue.client")

# How long a queue that was only named is remembered: somebody else may set its schema.
REMEMBER_S = 30.0
FIRST_LOOK_S = 0.02
LONGEST_LOOK_S = 1.0
PAGE_ROWS = 500

Which = Receipt[Any] | uuid.UUID


class Operations:
    def __init__(
        self, book: Backend, *, tenant: str | None, actor: str | None, patience_seconds: float
    ) -> None:
        """Without `tenant` it is whoever is asked that knows whose desk this is."""
        self.book = book
        self.calls, self.reads = book.calls, book.reads
        self.tenant = "" if tenant is None else check_name("tenant", tenant)
        self._whose = f"tenant {tenant}" if tenant else "the token's tenant"
        self.actor = actor
        self._patience_seconds = patience_seconds
        self._known: dict[Queue[Any, Any] | str, KnownQueue] = {}
        self._met = False

    def ask(self, call: AnyCall[T], *, replayable: bool = True) -> Steps[T]:
        """Ask on a connection of ours, again and again if need be.

        Not if this client never reached its database: a wrong DSN should say so at once.
        """
        seconds = self._patience_seconds if self._met else 0.0
        answer = yield from retried(call, seconds=seconds, replayable=replayable)
        self._met = True
        return answer

    # Queues.

    def known(self, queue: Queue[Any, Any] | str, *, create: bool = False) -> Steps[KnownQueue]:
        """The queue as it is stored; a declared one is created or changed first."""
        if not isinstance(queue, Queue):
            check_name("queue", queue)
        known = self._known.get(queue)
        now = time.monotonic()
        if known is not None and (known.declared or now - known.read_at < REMEMBER_S):
            return known
        if isinstance(queue, Queue):
            row = yield from self._declare(queue)
            known = KnownQueue(row, queue, now)
        else:
            known = KnownQueue((yield from self._find(queue, create=create)), None, now)
        self._known[queue] = known
        return known

    def _declare(self, queue: Queue[Any, Any]) -> Steps[QueueRow]:
        named = queue.settings()
        row = yield from self.ask(self.calls.queue(tenant=self.tenant, queue=queue.name))
        if row is not None and named.get("profile", row.profile) != row.profile:
            raise Refused(
                f"queue {queue.name} has profile {row.profile}, and the declaration says "
                f"{named['profile']}: another profile would take known identities for new ones; "
                "declare the stored one, or another queue"
            )
        wanted = {
            name: value
            for name, value in named.items()
            if row is None or not _equal(getattr(row, name), value)
        }
        if row is None or wanted:
            row = yield from self._set(queue.name, wanted)
        return row

    def _find(self, name: str, *, create: bool) -> Steps[QueueRow]:
        row = yield from self.ask(self.calls.queue(tenant=self.tenant, queue=name))
        if row is None and create:
            row = yield from self._set(name, {})
        if row is None:
            raise Refused(
                f"{self._whose} has no queue {name!r}: declare it with Queue({name!r}) or "
                f"`helixq queue set {name} --reason ...`, or submit to it with create=True"
            )
        return row

    def _set(self, name: str, settings: dict[str, Any]) -> Steps[QueueRow]:
        return self.ask(
            self.calls.set_queue(tenant=self.tenant, queue=name, actor=self.actor, **settings)
        )

    def forget(self, name: str) -> None:
        """Look the queue up afresh next time."""
        for queue in list(self._known):
            if queue == name or getattr(queue, "name", None) == name:
                self._known.pop(queue, None)

    # What became of a batch.

    def look(self, which: Which, *, results: bool = False) -> Steps[OutcomeRow]:
        batch_id = _batch_id(which)
        [found] = yield from self.ask(self.reads.outcomes(ids=[batch_id], results=results))
        if found is None:
            raise Refused(f"{self._whose} has no batch {batch_id}: look at the receipt")
        return found

    def state(self, which: Which) -> Steps[State]:
        found = yield from self.look(which)
        return found.state

    def wait(self, which: Which, timeout: float | None) -> Steps[State]:
        deadline = math.inf if timeout is None else time.monotonic() + timeout
        pause = FIRST_LOOK_S
        while (found := (yield from self.look(which))).state not in FINISHED:
            left = deadline - time.monotonic()
            if left <= 0:
                raise InProgress(
                    f"batch {found.batch_id} is {found.state} and did not finish in {timeout} s; "
                    "wait again",
                    retry_after=LONGEST_LOOK_S,
                )
            yield Sleep(min(pause, left))
            pause = min(pause * 1.5, LONGEST_LOOK_S)
        return found.state

    def result(self, which: Which, queue: Queue[Any, Any] | None) -> Steps[Any]:
        found = yield from self.look(which, results=True)
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
            return None if found.result is None else json.loads(found.result)
        if found.result is None:
            raise _no_result(found, "its worker gave none, or it was erased")
        return shape.read(json.loads(found.result))

    def _declared(self, name: str) -> Queue[Any, Any] | None:
        """The latest declaration of that name: in a notebook a cell is run again."""
        latest = reversed(list(self._known))
        return next((one for one in latest if isinstance(one, Queue) and one.name == name), None)

    def history(self, which: Which) -> Steps[list[EventRow]]:
        batch_id = _batch_id(which)
        found = yield from self.ask(self.reads.events(ids=[batch_id]))
        if not found[batch_id]:
            yield from self.look(which)  # an unknown one is an error, a retired one has no steps
        return found[batch_id]

    def page(
        self,
        *,
        queue: Queue[Any, Any] | str | None,
        state: State | str | None,
        identity: str | tuple[str, ...] | None,
        worker: str | None,
        since: datetime | None,
        until: datetime | None,
        after: str | None,
    ) -> Steps[BatchPage]:
        name = queue.name if isinstance(queue, Queue) else queue
        return self.ask(
            self.reads.batches(
                tenant=self.tenant,
                queue=None if name is None else check_name("queue", name),
                state=None if state is None else _state(state),
                identity=identity,
                worker=worker,
                since=moment("since", since),
                until=moment("until", until),
                after=after,
                limit=PAGE_ROWS,
            )
        )

    def letter_page(
        self,
        *,
        queue: Queue[Any, Any] | str | None,
        failure: str | None,
        since: datetime | None,
        before: datetime | None,
        after: str | None,
    ) -> Steps[LetterPage]:
        name = queue.name if isinstance(queue, Queue) else queue
        return self.ask(
            self.reads.letters(
                tenant=self.tenant,
                queue=None if name is None else check_name("queue", name),
                failure=failure,
                since=moment("since", since),
                before=moment("before", before),
                after=after,
                limit=PAGE_ROWS,
            )
        )

    # What people decide about a batch.

    def decide(self, verb: str, which: Which, reason: str) -> Steps[State]:
        """cancel, retry or erase; the state afterwards."""
        _demand_reason(verb, reason)
        batch_id = _batch_id(which)
        calls = self.calls
        build = {"cancel": calls.cancel, "retry": calls.retry, "erase": calls.erase}[verb]
        [verdict] = yield from self.ask(build(ids=[batch_id], reason=reason, actor=self.actor))
        if verdict.answer in {"ok", "repeat"} and verdict.state is not None:
            return verdict.state
        raise _unwilling(verb, batch_id, verdict.answer, verdict.state, verdict.note)

    def redrive(self, letters: Iterable[Letter | Which], reason: str) -> Steps[list[ActionResult]]:
        """Letter by letter what became of it, in calls of a page each."""
        _demand_reason("redrive", reason)
        if isinstance(letters, Letter | Receipt | uuid.UUID | str):
            raise Refused(f"letters: expected several, such as [...]; got {ascii(letters)[:80]}")
        verdicts: list[ActionResult] = []
        for ids in _pages(_letter_id(one) for one in letters):
            call = self.calls.redrive(ids=ids, reason=reason, actor=self.actor)
            verdicts += yield from self.ask(call)
        return verdicts

    # Leases.

    def claim(
        self,
        worker: str,
        queues: Sequence[Queue[Any, Any] | str],
        count: int,
        free: Mapping[str, Any] | None,
        *,
        start: bool,
    ) -> Steps[list[LeaseRow]]:
        if isinstance(queues, str | Queue):  # which callers without a type checker do
            raise Refused(f"queues: expected several, such as [{queues!r}]; got {queues!r} alone")
        names = []
        for queue in queues:
            known = yield from self.known(queue)
            names.append(known.row.name)
        claimed = yield from self.ask(
            self.calls.claim(
                worker=_worker(worker),
                request=uuid.uuid4(),  # one for all tries: a repeat gives the same leases
                queues=names,
                count=count,
                free=None if free is None else checked_requires(free, "free"),
                start=start,
            )
        )
        return list(claimed.leases)

    def hold(
        self, verb: str, worker: str, leases: Iterable[LeaseRow | LeaseRef]
    ) -> Steps[list[WriteResult]]:
        """start, renew or release."""
        calls = self.calls
        build = {"start": calls.start, "renew": calls.renew, "release": calls.release}[verb]
        held = [LeaseRef(one.batch, one.token) for one in leases]
        call = build(worker=_worker(worker), leases=held)
        return (yield from self.ask(call)) if held else []

    def settle(
        self, worker: str, settlements: Sequence[Settlement], within: object
    ) -> Steps[list[WriteResult]]:
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


def _equal(stored: object, named: object) -> bool:
    if isinstance(named, float) and isinstance(stored, float):
        # The column is a four-byte real.
        return math.isclose(stored, named, rel_tol=1e-6)
    # Through JSON, because the stored document went through it.
    return bool(stored == json.loads(json.dumps(named)))


def _batch_id(which: object) -> uuid.UUID:
    found = which.batch_id if isinstance(which, Receipt) else which
    if not isinstance(found, uuid.UUID):
        inside = "; give its .receipt" if hasattr(which, "receipt") else ""
        raise Refused(f"expected a receipt or a batch's UUID, got {ascii(which)[:80]}{inside}")
    return found


def _letter_id(which: object) -> uuid.UUID:
    return which.batch_id if isinstance(which, Letter) else _batch_id(which)


def _pages(ids: Iterable[uuid.UUID]) -> Iterator[list[uuid.UUID]]:
    """Each once, though it was named twice."""
    rest = iter(dict.fromkeys(ids))
    while page := list(islice(rest, PAGE_ROWS)):
        yield page


def _demand_reason(verb: str, reason: object) -> None:
    if not isinstance(reason, str) or not reason.strip() or "\0" in reason:
        raise Refused(f"{verb}: expected a reason for the record, got {reason!r}")


def _worker(name: object) -> str:
    """Whom the record names: never nobody, and never more than a name."""
    if not isinstance(name, str) or not 1 <= len(name) <= 255 or not name.isprintable():
        raise Refused(
            f"worker: expected a name of 1 to 255 visible characters, got {ascii(name)[:80]}"
        )
    return name


def _state(word: State | str) -> State:
    try:
        return State(word)
    except ValueError:
        raise Refused(f"state: expected one of {', '.join(State)}; got {word!r}") from None


def _no_result(found: OutcomeRow, gone: str) -> NoResult:
    if found.state is State.COMPLETED:
        why, remedy = gone, "its receipt still proves that it happened"
    else:
        why = ": ".join(part for part in (found.failure, found.detail) if part) or "no reason given"
        remedy = "retry it" if found.state is State.FAILED else "submit a new revision"
    return NoResult(
        f"batch {found.batch_id} is {found.state} and has no result ({why}); {remedy}",
        state=found.state,
        failure=found.failure,
    )


def _unwilling(
    verb: str, batch_id: uuid.UUID, answer: str, state: State | None, note: str | None
) -> HelixError:
    if answer == "busy":
        return Retryable(f"{verb}: batch {batch_id} is in other hands this moment; ask again")
    if answer == "refused":
        return Refused(f"{verb}: {note or 'refused'}: {batch_id}; look at the receipt")
    return IllegalTransition(
        f"{verb}: not possible for batch {batch_id}, which is {state}{': ' + note if note else ''}"
    )
