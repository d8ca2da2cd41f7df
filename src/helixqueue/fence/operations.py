"""What operators do with fences: list, show, resolve, and predict the decisions on calls.

The operations stand here and not in `operations/`, because receipts and stored answers are below.
"""

from __future__ import annotations

from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Annotated, Literal

from helixqueue.engine import fences
from helixqueue.engine.fences import FenceResult, Times
from helixqueue.errors import NoSuchFence, NotInDoubt, Refused
from helixqueue.fence.encoding import JSON
from helixqueue.fence.http.stored import FORM, StoredResponse
from helixqueue.fence.policy import HTTP_PREFIX
from helixqueue.fence.receipt import receipt_of
from helixqueue.fence.rehearsal import MEANS as PREDICTIONS
from helixqueue.fence.rehearsal import WORDS, call_of
from helixqueue.identity import canonical_text, key_range, key_text
from helixqueue.operations.instructions import Instructions
from helixqueue.operations.operation import operation
from helixqueue.records.fence import (
    MEANS,
    FenceCall,
    FenceDetail,
    FenceRow,
    PredictedCall,
    ResolvedFence,
)
from helixqueue.records.page import Page
from helixqueue.records.parameter import ABSENT, Cursor, Json, Limit, Param, Reason, printable
from helixqueue.states import FenceState

if TYPE_CHECKING:
    from helixqueue.operations.batches import Operations

FenceKey = Annotated[
    str,
    Param("Key of the fence; 8 digits suffice if they are unique.", length=100, metavar="FENCE"),
]
Name = Annotated[str, Param("Name of the guarded effect.", length=255, metavar="NAME")]
State = Annotated[
    FenceState, Param("State; fences IN_DOUBT wait for an operator.", metavar="STATE")
]
Version = Annotated[
    int,
    Param(
        "Version that the operator read; if it has changed, nothing is decided.",
        2, least=1, most=2**31 - 1,
    ),
]  # fmt: skip
Applied = Annotated[bool, Param("Whether the effect happened.")]
Effect = Annotated[
    str, Param("Id of the effect in the other system.", "re_77", length=255, check=printable)
]
Result = Annotated[Json, Param("Result for repeats; leave it out if it is unknown.")]
HttpStatus = Annotated[
    int,
    Param(
        "Status of the response, if the fence guards a request; 200 unless set.",
        least=200, most=499,
    ),
]  # fmt: skip
Correct = Annotated[
    bool, Param("Replace an earlier resolution, while it is the last step of the fence.")
]
Undecided = Annotated[
    Literal["IN_DOUBT", "EFFECT_STARTED"],
    Param("State; EFFECT_STARTED selects calls whose lease ended and that were not repeated."),
]
Age = Annotated[
    float, Param("Only fences in their state for so long.", 3600, least=0, most=3.2e9, option="age")
]
DryRun = Annotated[bool, Param("Show what would be resolved; change nothing.")]
Calls = Annotated[list[FenceCall], Param("Calls, each evaluated separately.", length=500)]


@operation("GET /v1/fences", scope="read")
def list_fences(
    operations: Operations,
    *,
    state: State | None = None,
    name: Name | None = None,
    after: Cursor | None = None,
    limit: Limit = 50,
) -> Instructions[Page[FenceRow]]:
    """List fences, newest first.

    `IN_DOUBT` selects the fences that need a decision. A page reads a limited number of fences: it
    may be short or empty and still have a `next`. Error details need the scope payloads.
    """
    return operations.ask(
        fences.list_fences(
            tenant=operations.tenant or None,
            name=name,
            state=None if state is None else FenceState(state),
            after=after,
            limit=limit,
        )
    )


@operation("GET /v1/fences/{fence}", scope="read", raises=[NoSuchFence])
def show_fence(operations: Operations, fence: FenceKey) -> Instructions[FenceDetail]:
    """Show a fence with its history and its receipt.

    `means` says what a repeat of the call gets. The receipt is signed if there is a key; it needs
    the scope payloads.
    """
    row = yield from _find(operations, fence)
    history = yield from operations.ask(fences.fence_history(row.key))
    receipt = None
    if row.state is FenceState.SEALED and operations.sees_payloads:
        receipt = receipt_of(row).document(operations.find_signer())
    fields = {name: getattr(row, name) for name in FenceRow.__slots__}
    return FenceDetail(**fields, means=MEANS[row.state], receipt_document=receipt, history=history)


@operation(
    "POST /v1/fences/{fence}/resolve",
    scope="operate",
    raises=[NoSuchFence, NotInDoubt],
    fenced=True,
)
def resolve_fence(
    operations: Operations,
    fence: FenceKey,
    *,
    reason: Reason,
    version: Version,
    applied: Applied,
    effect: Effect | None = None,
    result: Result = ABSENT,
    http_status: HttpStatus | None = None,
    correct: Correct = False,
) -> Instructions[FenceDetail]:
    """Resolve a fence in doubt.

    First find out in the other system whether the effect happened. With `applied` the fence is
    sealed, and repeats get `result`, or learn that the effect happened. Without, the next call runs
    the effect. With `correct` an earlier resolution is replaced. The history of the fence stores
    the reason and the name of the operator or token.
    """
    row = yield from _find(operations, fence)
    stored = None
    if applied:
        text = None if result is ABSENT else canonical_text(result)
        stored = resolved_result(row.name, effect=effect, result=text, http_status=http_status)
    elif result is not ABSENT or effect is not None or http_status is not None:
        raise Refused("effect, result and http_status: expected only if applied, got one")
    decided = yield from operations.ask(
        fences.resolve(
            row.key, version, Times(),
            actor=_decider(operations), reason=reason, result=stored, correct=correct,
        ),
        repeatable=False,
    )  # fmt: skip
    now = yield from show_fence(operations, fence)
    if decided.decision == "stale":
        expected = "a resolution as the last step" if correct else FenceState.IN_DOUBT
        raise NotInDoubt(
            f"fence {row.name}: expected {expected} and version {version}, got {now.state} and "
            f"version {now.version}; nothing was changed",
            state=now.state,
            version=now.version,
        )
    return now


@operation("POST /v1/fences/resolve", scope="operate", fenced=True)
def resolve_fences(
    operations: Operations,
    *,
    reason: Reason,
    applied: Applied,
    name: Name | None = None,
    state: Undecided = "IN_DOUBT",
    age_seconds: Age = 0.0,
    dry_run: DryRun = False,
    after: Cursor | None = None,
    limit: Limit = 50,
) -> Instructions[Page[ResolvedFence]]:
    """Resolve the fences that match.

    As `resolve_fence`, one by one, newest first: each is decided in the version that the filters
    saw. With `applied`, repeats learn that the effect happened. Without filters, expected is a
    `name` or an `age_seconds`.
    """
    if name is None and not age_seconds:
        raise Refused("expected a name or an age, got neither")
    actor = _decider(operations)
    before = datetime.now(UTC) - timedelta(seconds=age_seconds)
    page = yield from list_fences(
        operations, state=FenceState(state), name=name, after=after, limit=limit
    )
    answers = []
    for row in page.rows:
        if row.changed_at > before:
            continue
        answer: Literal["ok", "stale", "dry_run"] = "dry_run"
        if not dry_run:
            stored = (
                resolved_result(row.name, effect=None, result=None, http_status=None)
                if applied
                else None
            )
            call = fences.resolve(
                row.key, row.version, Times(), actor=actor, reason=reason, result=stored
            )
            decided = yield from operations.ask(call, repeatable=False)
            answer = "stale" if decided.decision == "stale" else "ok"
        answers.append(ResolvedFence(row.fence, row.name, row.identity, row.changed_at, answer))
    return Page(tuple(answers), page.next)


def _decider(operations: Operations) -> str | bytes:
    actor = operations.token_hash or operations.actor
    if actor is None:
        raise Refused("actor: expected the name of the person who decides, got none")
    return actor


@operation("POST /v1/rehearse", scope="payloads", computes=True)
def rehearse(operations: Operations, *, calls: Calls) -> Instructions[Page[PredictedCall]]:
    """Predict the decisions on fenced calls without running them.

    Each call is evaluated separately, in the order of the list. Nothing is claimed. Needs the scope
    payloads: the decision discloses whether a payload equals the stored one.
    """
    previews = [call_of(call) for call in calls]
    decisions = yield from operations.ask(fences.preview(tenant=operations.tenant, calls=previews))
    return Page(
        tuple(
            PredictedCall(key_text(key), decision, PREDICTIONS[WORDS[decision]])
            for key, decision in decisions
        ),
        None,
    )


def _find(operations: Operations, fence: str) -> Instructions[FenceRow]:
    found: list[FenceRow] = []
    with suppress(ValueError):
        found = yield from operations.ask(fences.find_fences(*key_range(fence)))
    if not found:
        raise NoSuchFence(f"no fence that this login or token may see has the key {fence}")
    if len(found) > 1:
        raise NoSuchFence(f"expected a key that is unique, got {fence}; add digits of the key")
    return found[0]


def resolved_result(
    name: str, *, effect: str | None, result: str | None, http_status: int | None
) -> FenceResult:
    """The answer that repeats get; without a result they get the receipt."""
    is_http = name.startswith(HTTP_PREFIX)
    if http_status is not None and not is_http:
        raise Refused(
            f"fence {name}: expected an HTTP status for a fenced request only, got {http_status} "
            "for a function; leave it out"
        )
    if is_http and (result is not None or http_status is not None):
        headers = [(b"content-type", b"application/json")]
        body = None if result is None else result.encode()
        stored = StoredResponse.of(http_status or 200, headers, body)
        return FenceResult(FORM, stored.write(), effect=effect)
    if result is None:
        return FenceResult("omitted", b"", omitted=True, effect=effect)
    return FenceResult(JSON, result.encode(), effect=effect)
