"""`helixq fence list | show | explain | rehearse | resolve`."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

import typer

from helixqueue.cli import connection, operation, options, shapes, show, times
from helixqueue.cli.command import command
from helixqueue.cli.derived_commands import verb
from helixqueue.cli.options import argument, option
from helixqueue.cli.rehearse import rehearse
from helixqueue.errors import Refused
from helixqueue.fence import operations as fences
from helixqueue.fence.policy import HTTP_PREFIX
from helixqueue.fence.receipt import fence_key
from helixqueue.identity import PART_SEPARATOR, canonicalize, key_range, key_text, loads
from helixqueue.records.parameter import ABSENT, MAX_PAGE
from helixqueue.states import FenceState

if TYPE_CHECKING:
    from helixqueue.records.fence import FenceDetail, FenceRow, ResolvedFence
    from helixqueue.records.page import Page

app = typer.Typer(no_args_is_help=True, help="Fences: list, show, explain, rehearse, resolve.")

_STYLES = {
    FenceState.SEALED: "green",
    FenceState.IN_DOUBT: "bold red",
    FenceState.EFFECT_STARTED: "yellow",
    FenceState.CLAIMED: "blue",
    FenceState.RELEASED: "magenta",
}

Fence = Annotated[str, argument("FENCE", "Key v1:... (8 digits suffice), or identity with --name.")]
Name = Annotated[str | None, option("--name NAME", "Name of the fence.")]

FenceOrFilters = Annotated[
    str | None,
    argument("FENCE", "Key v1:... (8 digits suffice), or identity with --name; else filters."),
]
Verdict = Annotated[
    bool, option("--applied/--not-applied", "Whether the effect happened.", show_default=False)
]
Decider = Annotated[
    str | None,
    option(
        "--actor NAME", "Who decides; required with --dsn or --data. A service records the token."
    ),
]
Effect = Annotated[str | None, option("--effect ID", "Id of the effect in the external system.")]
Result = Annotated[str | None, option("--result JSON", "Result for repeated calls.")]
HttpStatus = Annotated[
    int | None,
    option(
        "--http-status CODE", "HTTP status for repeated requests; 200 unless set.", min=200, max=499
    ),
]
Correct = Annotated[bool, option("--correct", "Replace an earlier resolution.", show_default=False)]
Route = Annotated[str | None, option("--route PATH", "Path of a policy route, in place of --name.")]
State = Annotated[
    FenceState | None, option("--state", "IN_DOUBT or EFFECT_STARTED.", case_sensitive=False)
]
Age = Annotated[float | None, option("--age SECONDS", "In their state for so long.", min=0)]

DryRun = Annotated[bool, option("--dry-run", "Show what would be resolved; change nothing.")]


def register(parent: typer.Typer) -> None:
    command(app, "rehearse", example="helixq fence rehearse backlog.jsonl")(rehearse)
    parent.add_typer(app, name="fence")


@verb(
    app,
    "list",
    fences.list_fences,
    example="helixq fence list --state IN_DOUBT",
    every_tenant=True,
)
def _list(page: Page[FenceRow]) -> None:
    show.table(
        ("fence", "tenant", "name", "identity", "state", "attempt", "since", "actor", "detail"),
        [
            (
                row.fence, row.tenant, row.name, _identity(row), row.state, str(row.attempt),
                row.changed_at, row.actor, _detail(row),
            )
            for row in page.rows
        ],
        [_STYLES.get(row.state, "") for row in page.rows],
        empty="no fences",
        optional=("tenant", "attempt", "actor"),
    )  # fmt: skip


@command(app, "show", example="helixq fence show order-7 --name refund")
@connection.service_or_database
def _show(
    fence: Fence,
    *,
    name: Name = None,
    tenant: options.Tenant = None,
    as_json: options.AsJson = False,
) -> None:
    """Show one fence with its history and its receipt.

    Exit code 1: no such fence.
    """
    with connection.open_target() as target:
        found = _find(target, fence, name, tenant)
    if as_json:
        _print_json(found)
        return
    show.line(f"{found.fence}  {found.name}  {_identity(found)}", _STYLES.get(found.state, ""))
    receipt = f"; receipt {found.receipt}" if found.receipt else ""
    since = times.to_milliseconds(found.changed_at)
    show.line(f"{found.state} since {since}; {_clocks(found)}{receipt}")
    show.table(
        ("time", "event", "from", "to", "attempt", "actor", "detail"),
        [
            (
                times.to_milliseconds(event.at), event.what, event.from_state or "",
                event.to_state or "", "" if event.attempt is None else str(event.attempt),
                event.actor, event.detail or "",
            )
            for event in found.history
        ],
    )  # fmt: skip


@command(app, "explain", example="helixq fence explain order-7 --name refund")
@connection.service_or_database
def _explain(
    fence: Fence,
    *,
    name: Name = None,
    tenant: options.Tenant = None,
    as_json: options.AsJson = False,
) -> None:
    """Explain the state of a fence and what its next call gets.

    Exit code 1: no such fence.
    """
    with connection.open_target() as target:
        found = _find(target, fence, name, tenant)
    explanation = {
        "state": found.state,
        "because": f"{found.actor} ({found.reason}): {found.detail or found.reason}",
        "since": times.with_zone(found.changed_at),
        "next_call": found.means,
        "another_request": "is refused with a diff: the key belongs to its first request",
        "clocks": _clocks(found),
    }
    if as_json:
        show.as_json(explanation)
    else:
        facts = [(word.replace("_", " "), text) for word, text in explanation.items()]
        show.table(("fact", "value"), facts)


@command(
    app,
    "resolve",
    example='helixq fence resolve order-7 --name refund --not-applied --reason "not at the bank" '
    "--actor ann",
)
@connection.service_or_database
def _resolve(
    fence: FenceOrFilters = None,
    *,
    applied: Verdict,
    reason: options.Reason,
    actor: Decider = None,
    effect: Effect = None,
    result: Result = None,
    http_status: HttpStatus = None,
    correct: Correct = False,
    name: Name = None,
    route: Route = None,
    state: State = None,
    age: Age = None,
    dry_run: DryRun = False,
    tenant: options.Tenant = None,
    as_json: options.AsJson = False,
) -> None:
    """Resolve a fence in doubt; name and reason are recorded.

    First look into the external system. With --applied the fence is sealed, and repeated calls get
    --result; with --not-applied the next call runs the effect. With --correct an earlier resolution
    is replaced, while it is the last step of the fence. Without FENCE all fences that match are
    resolved; --dry-run shows them. Needs an operator's login or a token with the scope operate.
    Exit code 1: the fence is not in doubt.
    """
    if actor is None and connection.selected().service is None:
        raise typer.BadParameter("--actor: expected the name of the person who decides")
    if route is not None:
        name = HTTP_PREFIX + route
    filters = {"state": state, "age_seconds": age, "dry_run": dry_run or None}
    filters = {option: value for option, value in filters.items() if value is not None}
    if fence is None:
        if effect is not None or result is not None or http_status is not None or correct:
            raise typer.BadParameter(
                "expected FENCE with --effect, --result, --http-status or --correct, got filters"
            )
        _resolve_matching(
            {"reason": reason, "applied": applied, "name": name, **filters},
            tenant=tenant, actor=actor, as_json=as_json,
        )  # fmt: skip
        return
    if filters:
        raise typer.BadParameter("expected FENCE or filters, got both")
    with connection.open_target(as_owner=True) as target:
        found = _find(target, fence, name, tenant)
        resolve = partial(
            fences.resolve_fence,
            fence=found.fence,
            reason=reason,
            version=found.version,
            applied=applied,
            effect=effect,
            result=ABSENT if result is None else loads(result),
            http_status=http_status,
            correct=correct,
        )
        now = operation.run(target, found.tenant, actor, resolve)
    if as_json:
        _print_json(now)
    else:
        show.line(f"{now.state}: {now.means}")


def _resolve_matching(
    filters: dict[str, Any], *, tenant: str | None, actor: str | None, as_json: bool
) -> None:
    rows: list[ResolvedFence] = []
    after: str | None = None
    with connection.open_target(as_owner=True) as target:
        while True:
            resolve = partial(fences.resolve_fences, **filters, after=after, limit=MAX_PAGE)
            page = operation.run(target, tenant, actor, resolve)
            rows += page.rows
            after = page.next
            if after is None:
                break
    if as_json:
        show.as_json([shapes.plain(row) for row in rows])
        return
    show.table(
        ("fence", "name", "identity", "since", "answer"),
        [(row.fence, row.name, _identity(row), row.changed_at, row.answer) for row in rows],
        empty="no fences",
    )


def _find(target: connection.Target, ref: str, name: str | None, tenant: str | None) -> FenceDetail:
    key = ref
    try:
        key_range(ref)
    except ValueError:
        if name is None:
            raise Refused(
                f"expected a key such as v1:..., or an identity with --name, got {ref!r}"
            ) from None
        owner = connection.tenant_name(target, tenant)
        parts = canonicalize(tuple(ref.split(PART_SEPARATOR))).canonical
        key = key_text(fence_key(owner, name, parts))
    show_fence = partial(fences.show_fence, fence=key)
    return operation.run(target, tenant, None, show_fence, every_tenant=True)


def _print_json(fence: FenceDetail) -> None:
    if fence.state == FenceState.SEALED and fence.receipt_document is None:
        show.progress("the receipt requires a token with the scope payloads")
    show.as_json(shapes.plain(fence))


def _identity(row: FenceRow | ResolvedFence) -> str:
    return "(unknown)" if row.identity is None else " / ".join(row.identity)


def _detail(row: FenceRow) -> str:
    return row.effect or "" if row.state == FenceState.SEALED else row.detail or row.reason


def _clocks(row: FenceRow) -> str:
    if row.state == FenceState.SEALED:
        result_until = times.with_zone(row.answer_until)
        return f"result until {result_until}, key until {times.with_zone(row.until)}"
    if row.state == FenceState.RELEASED:
        return f"key until {times.with_zone(row.until)}"
    return f"lease until {times.with_zone(row.deadline)}, then {row.quiet_seconds:g} s of quiet"
