"""Runs: start one from its spec and datums, see how far it is, cancel and retry it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal

from helixqueue.errors import (
    Conflict,
    HelixError,
    IllegalTransition,
    NoSuchQueue,
    NoSuchRun,
    Refused,
)
from helixqueue.identity import canonical_text, identity_texts
from helixqueue.operations import engine
from helixqueue.operations.batch_reads import Failure, StateFilter, read_state
from helixqueue.operations.instructions import Instructions
from helixqueue.operations.operation import operation
from helixqueue.queues import checked_requires
from helixqueue.records.batch import BatchRow
from helixqueue.records.page import Page
from helixqueue.records.parameter import (
    Cursor,
    Limit,
    Param,
    QueueName,
    Reason,
    Requirements,
    printable,
)
from helixqueue.records.run import (
    RunDetail,
    RunOutput,
    RunProgress,
    RunRoot,
    RunRow,
    RunState,
    RunText,
)

if TYPE_CHECKING:
    from helixqueue.operations.batches import Operations
    from helixqueue.records.run import RunAnswer

PROFILE: Final = "text-v1"  # of queues that take datums
SPEC_CHARS: Final = 1024 * 1024
DIGEST: Final = "9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08"

RunRef = Annotated[
    str,
    Param("Run: its name or id.", "words-0c5de1f2a7", length=63, metavar="RUN", check=printable),
]
State = Annotated[RunState, Param("State, such as running, done or failed.", metavar="WORD")]
Key = Annotated[
    str,
    Param("Key of the run: a repeat with the same key is the same run.", "books-2026-11-19",
          length=255, check=printable),
]  # fmt: skip
Name = Annotated[str, Param("Beginning of the run's name.", "words", length=255, check=printable)]
Digest = Annotated[
    str, Param("SHA-256 of all datums with their inputs, in hex.", DIGEST, pattern="^[0-9a-f]{64}$")
]
Count = Annotated[int, Param("Number of datums.", 2, least=0, most=100_000_000)]
SpecText = Annotated[str, Param("The spec as it is run.", "{}", length=SPEC_CHARS)]
Received = Annotated[
    str, Param("The spec as it was received, if different.", "{}", length=SPEC_CHARS)
]
Egress = Annotated[
    str, Param("Where output files go; without it, the run has none.", "s3://b/words", length=500)
]
Layout = Annotated[
    Literal["names", "run"],
    Param("names: egress and relative path; run: a folder of the run's name between them."),
]
Tries = Annotated[int, Param("Attempts of each datum.", 3, least=1, most=1_000)]
Timeout = Annotated[
    float, Param("Seconds after which what has not ended is stopped.", 300.0, least=1, most=3.2e8)
]
Priority = Annotated[int, Param("0 is the most urgent, 9 the least.", 5, least=0, most=9)]
First = Annotated[int, Param("Number of the first of these datums, starting at 0.", 0, least=0)]
Datums = Annotated[
    list[dict[str, Any]],
    Param(
        "Datums with their inputs: where each is stored, and its path for the command.",
        [{"name": "a.txt", "inputs": [{"uri": "s3://b/a.txt", "path": "books/a.txt"}]}],
        length=5_000,
    ),
]


@operation("GET /v1/runs", scope="read")
def list_runs(
    operations: Operations,
    *,
    state: State | None = None,
    after: Cursor | None = None,
    limit: Limit = 50,
) -> Instructions[Page[RunRow]]:
    """List runs, newest first.

    Counts come from a rollup and are current.
    """
    return operations.ask(
        engine.runs.runs(
            tenant=operations.tenant or None, state=state, before=after or "infinity", limit=limit
        )
    )


@operation(
    "GET /v1/runs/{run}",
    scope="read",
    raises=[NoSuchRun],
)
def show_run(operations: Operations, run: RunRef) -> Instructions[RunDetail]:
    """Show a run with its counts and spec.

    `failures` counts failed attempts by class. The spec needs the scope payloads as well.
    """
    return (yield from _find(operations, run, spec=True))


@operation("GET /v1/runs/{run}/datums", scope="read", raises=[NoSuchRun])
def list_datums(
    operations: Operations,
    run: RunRef,
    *,
    state: StateFilter | None = None,
    failure: Failure | None = None,
    after: Cursor | None = None,
    limit: Limit = 50,
) -> Instructions[Page[BatchRow]]:
    """List the batches of a run, the last of its datums first.

    The second part of an identity is the name of the datum. A PENDING batch with the cause `held`
    had not begun when the run was stopped.
    """
    found = yield from _find(operations, run)
    wanted = None if state is None else read_state(state)
    call = engine.reads.batches(
        tenant=found.tenant, queue=found.queue, run=found.run, state=wanted, failure=failure,
        after=after, limit=limit,
    )  # fmt: skip
    return (yield from operations.ask(call))


@operation("GET /v1/runs/{run}/outputs", scope="read", raises=[NoSuchRun])
def list_run_outputs(
    operations: Operations, run: RunRef, *, after: Cursor | None = None, limit: Limit = 50
) -> Instructions[Page[RunOutput]]:
    """List the published files of a run.

    Those of exactly one attempt of each completed datum, with address, size and SHA-256.
    """
    found = yield from _find(operations, run)
    return (
        yield from operations.ask(
            engine.runs.outputs(run=found.run, after=after or "", limit=limit)
        )
    )


@operation("GET /v1/runs/{run}/spec", scope="work", raises=[NoSuchRun])
def show_run_text(operations: Operations, run: RunRef) -> Instructions[RunText]:
    """Show what workers execute for the batches of a run.

    The spec as it is run; secrets are in it by name only.
    """
    wanted = int(run) if re.fullmatch("[0-9]{1,18}", run) else -1
    found = yield from operations.ask(engine.runs.run_text(run=wanted))
    if found is None:
        raise NoSuchRun(f"no run with id {run}: expected the id in the lease of a batch")
    return found


@operation("GET /v1/roots", scope="run")
def list_roots(operations: Operations) -> Instructions[Page[RunRoot]]:
    """List the roots below which runs read and write.

    `stored_at` is where the objects are that a spec names below `uri`.
    """
    rows = yield from operations.ask(engine.runs.roots(tenant=operations.tenant or None))
    return Page(tuple(rows), None)


@operation("POST /v1/runs", scope="run", raises=[Conflict, NoSuchQueue])
def start_run(
    operations: Operations,
    *,
    key: Key,
    name: Name,
    digest: Digest,
    datums: Count,
    spec: SpecText,
    received: Received | None = None,
    queue: QueueName = "runs",
    egress: Egress | None = None,
    layout: Layout = "names",
    tries: Tries = 1,
    timeout_seconds: Timeout | None = None,
    priority: Priority = 5,
    requires: Requirements | None = None,
) -> Instructions[RunProgress]:
    """Start a run, or answer the one that was started with this key.

    The datums follow with `append`; workers begin with the first of them. The same key with another
    spec or other datums is a conflict. Refused if files of other runs have names below the egress.
    """
    operations.require_queue(queue)
    if (yield from operations.find_queue(queue)) is None:
        raise operations.no_such_queue(queue)
    answer = yield from operations.ask(
        engine.runs.start(
            tenant=operations.tenant, queue=queue, key=key, name=name, digest=bytes.fromhex(digest),
            datums=datums, spec=spec, received=spec if received is None else received,
            egress=egress or "", layout=layout, tries=tries, timeout_seconds=timeout_seconds,
            priority=priority, actor=operations.actor,
            requires=None if requires is None else canonical_text(checked_requires(requires)),
        )
    )  # fmt: skip
    if answer.answer == "conflict":
        raise Conflict(
            f"run {answer.name} was started with key {key!r}, and these differ: {answer.note}; "
            "use another key",
            diff=[],
        )
    if answer.answer == "occupied":
        raise Refused(
            f"expected an egress without files of other runs, got {egress} with: {answer.note}; "
            "choose another one with --egress, or set egress.layout to run"
        )
    return _progress(answer)


@operation(
    "POST /v1/runs/{run}/datums", scope="run", raises=[NoSuchRun, IllegalTransition], computes=True
)
def append_run(
    operations: Operations, run: RunRef, *, first: First, datums: Datums
) -> Instructions[RunProgress]:
    """Append datums to a run; the last one closes it.

    A repeat changes nothing. `appended` is the number of the next datum: a start that was
    interrupted continues there.
    """
    found = yield from _find(operations, run)
    operations.require_queue(found.queue)
    rows = [_row(found.name, number, datum) for number, datum in enumerate(datums, first)]
    answer = yield from operations.ask(
        engine.runs.append(
            tenant=operations.tenant, run=found.run, first=first, rows=rows, actor=operations.actor
        )
    )
    return _changed("append datums", run, answer)


@operation(
    "POST /v1/runs/{run}/cancel",
    scope="operate",
    raises=[NoSuchRun, IllegalTransition],
    fenced=True,
)
def cancel_run(operations: Operations, run: RunRef, *, reason: Reason) -> Instructions[RunProgress]:
    """Cancel a run: all its batches that have not ended.

    Also those that are running: their leases end. A repeat changes nothing.
    """
    return (yield from _change(operations, "cancel", run, reason))


@operation(
    "POST /v1/runs/{run}/retry",
    scope="operate",
    raises=[NoSuchRun, IllegalTransition],
    fenced=True,
)
def retry_run(operations: Operations, run: RunRef, *, reason: Reason) -> Instructions[RunProgress]:
    """Reopen a run: its failed batches, and those that never ran.

    With all their attempts. What completed stays. A repeat changes nothing.
    """
    return (yield from _change(operations, "retry", run, reason))


def _find(operations: Operations, run: str, *, spec: bool = False) -> Instructions[RunDetail]:
    rows = yield from operations.ask(
        engine.runs.find_run(tenant=operations.tenant or None, run=run, spec=spec)
    )
    if not rows:
        raise _no_such_run(run)
    if len(rows) > 1:
        raise Refused(f"expected a tenant: run {run} exists for several; choose one of them")
    return rows[0]


def _no_such_run(run: str) -> NoSuchRun:
    return NoSuchRun(f"no run {run}: helixq run list shows their names")


def _change(
    operations: Operations, verb: Literal["cancel", "retry"], run: str, reason: str
) -> Instructions[RunProgress]:
    found = yield from _find(operations, run)
    operations.require_queue(found.queue)
    answer = yield from operations.ask(
        engine.runs.change(
            verb, tenant=found.tenant, run=found.run, reason=reason, actor=operations.actor
        )
    )
    return _changed(verb, run, answer)


def _changed(verb: str, run: str, answer: RunAnswer) -> RunProgress:
    if answer.answer == "absent":
        raise _no_such_run(run)
    if answer.answer == "illegal":
        raise IllegalTransition(
            f"{verb}: not possible for run {answer.name}, which is {answer.state}",
            state=None, note=f"the run is {answer.state}",
        )  # fmt: skip
    return _progress(answer)


def _progress(answer: RunAnswer) -> RunProgress:
    if answer.run is None or answer.name is None or answer.state is None:
        raise HelixError(f"expected a run, got the answer {answer.answer}")
    is_new = answer.answer in {"new", "ok"}
    return RunProgress(answer.run, answer.name, answer.state, answer.appended or 0, is_new)


def _row(run: str, number: int, datum: object) -> tuple[str, str, str | None]:
    """Canonical identity, payload and raw identity of a datum."""
    if not isinstance(datum, Mapping) or set(datum) != {"name", "inputs"}:
        raise Refused(f"datum {number}: expected name and inputs, got {ascii(datum)[:80]}")
    name, inputs = datum["name"], datum["inputs"]
    fits = isinstance(inputs, list) and all(
        isinstance(item, Mapping)
        and set(item) == {"uri", "path"}
        and isinstance(item["uri"], str)
        and isinstance(item["path"], str)
        for item in inputs
    )
    if not isinstance(name, str) or not fits:
        raise Refused(
            f"datum {number}: expected a text and a list of uri and path, got {ascii(datum)[:80]}"
        )
    identity, raw = identity_texts((run, name), PROFILE)
    return identity, canonical_text({"datum": name, "inputs": inputs}), raw
