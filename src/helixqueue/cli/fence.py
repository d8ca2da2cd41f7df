"""`helixq fence list | show | explain | rehearse | resolve`."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

import typer

from helixqueue.cli import connection, options, pages, show, times
from helixqueue.cli.command import command
from helixqueue.cli.exits import Exit, NoSuchBatch
from helixqueue.cli.rehearse import rehearse
from helixqueue.engine.fences import Times
from helixqueue.errors import Refused
from helixqueue.fence.key_file import find_signer
from helixqueue.fence.receipt import PREFIX, fence_key, receipt_of
from helixqueue.fence.resolution import resolved_result
from helixqueue.identity import (
    PART_SEPARATOR,
    canonical_text,
    canonicalize,
    key_bytes,
    key_text,
    loads,
)
from helixqueue.states import FenceState

if TYPE_CHECKING:
    from helixqueue.records.fence import FenceEventRow, FenceRow

app = typer.Typer(no_args_is_help=True, help="Fences: list, show, explain, rehearse, resolve.")

_STYLES = {
    FenceState.SEALED: "green",
    FenceState.IN_DOUBT: "bold red",
    FenceState.EFFECT_STARTED: "yellow",
    FenceState.CLAIMED: "blue",
    FenceState.RELEASED: "magenta",
}
# What happens to the next call with the same key and the same request.
_NEXT = {
    FenceState.CLAIMED: "waits for the current owner; after its lease expires, runs the effect",
    FenceState.EFFECT_STARTED: "waits for the current owner; after its lease expires, the fence is "
    "in doubt",
    FenceState.SEALED: "returns the stored result, and after its retention a receipt",
    FenceState.RELEASED: "runs the effect: it is certain that it did not happen before",
    FenceState.IN_DOUBT: "fails with InDoubt until a probe or `fence resolve` decides; "
    "an effect declared replayable runs again",
}

Fence = Annotated[str, typer.Argument(metavar="FENCE", help="Key v1:..., or identity with --name.")]
Name = Annotated[str | None, typer.Option("--name", metavar="NAME", help="Name of the fence.")]


class NoSuchFence(NoSuchBatch):
    """No fence has that key."""


def register(parent: typer.Typer) -> None:
    command(app, "rehearse", example="helixq fence rehearse backlog.jsonl")(rehearse)
    parent.add_typer(app, name="fence")


@command(app, "list", example="helixq fence list --state IN_DOUBT")
@connection.service_or_database
def _list(
    *,
    name: Name = None,
    state: Annotated[
        FenceState | None,
        typer.Option(
            "--state",
            metavar="STATE",
            case_sensitive=False,
            help="CLAIMED, EFFECT_STARTED, SEALED, RELEASED or IN_DOUBT.",
        ),
    ] = None,
    limit: options.Limit = 50,
    after: options.After = None,
    tenant: options.Tenant = None,
    as_json: options.AsJson = False,
) -> None:
    """List fences, newest first.

    `--state IN_DOUBT` lists the fences that need a decision. If there are more rows, the last line
    shows the cursor for --after.
    """
    with connection.open_target() as target:
        read = partial(
            target.fences.list_fences,
            tenant=connection.tenant_to_read(target, tenant),
            name=name,
            state=state,
        )
        rows, cursor = pages.read_rows(target, read, limit, after)
    if as_json:
        show.as_json({"fences": [_facts(row) for row in rows], "next": cursor})
        return
    show.table(
        ("fence", "name", "identity", "state", "attempt", "since", "actor", "detail"),
        [_row(row) for row in rows],
        [_STYLES[row.state] for row in rows],
        empty="no fences",
    )
    pages.print_next(cursor)


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
        row = _find(target, fence, name, tenant)
        history = target.run(target.fences.fence_history(row.key))
    if as_json:
        show.as_json({**_facts(row), "story": [_event(event) for event in history]})
    else:
        _print(row, history)


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
        row = _find(target, fence, name, tenant)
    explanation = {
        "state": row.state,
        "because": f"{row.actor} ({row.reason}): {row.detail or row.reason}",
        "since": times.with_zone(row.changed_at),
        "next_call": _NEXT[row.state],
        "another_request": "is refused with a diff: the key belongs to its first request",
        "clocks": _clocks(row),
    }
    if as_json:
        show.as_json(explanation)
    else:
        show.table(
            ("fact", "value"),
            [(name.replace("_", " "), text) for name, text in explanation.items()],
        )


CorrectOption = Annotated[
    bool, typer.Option("--correct", help="Replace an earlier resolution.", show_default=False)
]
HttpStatusOption = Annotated[
    int | None,
    typer.Option(
        "--http-status",
        metavar="CODE",
        min=200,
        max=499,
        help="HTTP status for repeated requests; 200 unless set.",
    ),
]
ActorOption = Annotated[
    str | None,
    typer.Option(
        "--actor",
        metavar="NAME",
        help="Who decides; required with --dsn or --data. A service records the token.",
    ),
]
EffectOption = Annotated[
    str | None,
    typer.Option("--effect", metavar="ID", help="Id of the effect in the external system."),
]


@command(
    app,
    "resolve",
    example='helixq fence resolve order-7 --name refund --not-applied --reason "not at the bank" '
    "--actor ann",
)
@connection.service_or_database
def _resolve(
    fence: Fence,
    *,
    applied: Annotated[
        bool,
        typer.Option(
            "--applied/--not-applied",
            help="Whether the effect happened.",
            show_default=False,
        ),
    ],
    reason: Annotated[
        str,
        typer.Option(
            "--reason", metavar="TEXT", help="How you know, for the record.", show_default=False
        ),
    ],
    actor: ActorOption = None,
    effect: EffectOption = None,
    result: Annotated[
        str | None, typer.Option("--result", metavar="JSON", help="Result for repeated calls.")
    ] = None,
    http_status: HttpStatusOption = None,
    correct: CorrectOption = False,
    name: Name = None,
    tenant: options.Tenant = None,
    as_json: options.AsJson = False,
) -> None:
    """Resolve a fence in doubt; name and reason are recorded.

    First look into the external system. With --applied the fence is sealed, and repeated calls get
    --result; with --not-applied the next call runs the effect. With --correct an earlier resolution
    is replaced, while it is the last step of the fence. Needs an operator's login or a token with
    the scope operate. Exit code 1: the fence is not in doubt.
    """
    if not applied and (effect or result or http_status):
        raise typer.BadParameter("--effect, --result and --http-status require --applied")
    if not reason.strip() or (actor is not None and not actor.strip()):
        raise typer.BadParameter(
            "--reason and --actor: expected a text for the record, got an empty one"
        )
    if actor is None and connection.selected().service is None:
        raise typer.BadParameter("--actor: expected the name of the person who decides")
    text = None if result is None else canonical_text(loads(result))
    outcome: dict[str, Any] = {"effect": effect, "result": text, "http_status": http_status}
    with connection.open_target(as_owner=True) as target:
        row = _find(target, fence, name, tenant)
        decision = {"reason": reason, "applied": applied, "correct": correct}
        resolved = _send_resolution(target, row, actor, decision, outcome)
        now = _find(target, fence, name, tenant)
    if as_json:
        show.as_json({"resolved": resolved, **_facts(now)})
    elif resolved:
        show.line(f"{now.state}; the next call {_NEXT[now.state]}")
    else:
        wanted = "expected a resolution as its last step" if correct else "expected IN_DOUBT"
        show.line(f"not in doubt: {wanted}, got {now.state} ({now.reason})")
    raise typer.Exit(Exit.OK if resolved else Exit.NO)


def _send_resolution(
    target: connection.Target,
    row: FenceRow,
    actor: str | None,
    decision: dict[str, Any],
    outcome: dict[str, Any],
) -> bool:
    """Whether the fence was in doubt, or had a resolution to correct."""
    if target.is_service:
        resolved: bool = target.run(
            target.fences.resolve(row.key, row.version, **decision, **outcome)
        )
        return resolved
    stored = resolved_result(row.name, **outcome) if decision["applied"] else None
    call = target.fences.resolve(
        row.key,
        row.version,
        Times(),
        actor=actor,
        reason=decision["reason"],
        result=stored,
        correct=decision["correct"],
    )
    return bool(target.run(call).decision != "stale")


def _find(target: connection.Target, ref: str, name: str | None, tenant: str | None) -> FenceRow:
    try:
        key = key_bytes(ref)
    except ValueError:
        if name is None:
            raise Refused(
                f"expected a key such as v1:..., or an identity with --name, got {ref!r}"
            ) from None
        owner = connection.tenant_name(target, tenant)
        key = fence_key(owner, name, canonicalize(tuple(ref.split(PART_SEPARATOR))).canonical)
    row: FenceRow | None = target.run(target.fences.find_fence(key))
    if row is None:
        raise NoSuchFence(f"no fence that this login may see has the key {key_text(key)}")
    return row


def _identity(row: FenceRow) -> str:
    return "(unknown)" if row.identity is None else row.identity.replace(PART_SEPARATOR, " / ")


def _row(row: FenceRow) -> tuple[str, ...]:
    detail = row.effect or "" if row.state is FenceState.SEALED else row.detail or row.reason
    return (
        key_text(row.key), row.name, _identity(row), row.state, str(row.attempt),
        times.to_seconds(row.changed_at), row.actor, detail,
    )  # fmt: skip


def _facts(row: FenceRow) -> dict[str, Any]:
    return {
        "fence": key_text(row.key),
        "tenant": row.tenant,
        "name": row.name,
        "identity": None if row.identity is None else row.identity.split(PART_SEPARATOR),
        "state": row.state,
        "attempt": row.attempt,
        "actor": row.actor,
        "reason": row.reason,
        "detail": row.detail,
        "first_at": row.first_at,
        "changed_at": row.changed_at,
        "effect": row.effect,
        "answer_kept": row.answer_kept,
        "answer_until": row.answer_until,
        "until": row.until,
        "receipt": _receipt(row),
    }


def _receipt(row: FenceRow) -> dict[str, Any] | None:
    if row.state is FenceState.SEALED and row.digest is None:
        show.progress("the receipt requires a token with the scope payloads")
    if row.state is not FenceState.SEALED or row.digest is None:
        return None
    # A service signs what it states; the key of this machine does not vouch for it.
    if connection.selected().service is None:
        return receipt_of(row).document(find_signer())
    return receipt_of(row).document() | ({"signature": row.signature} if row.signature else {})


def _event(event: FenceEventRow) -> dict[str, Any]:
    return {
        "at": event.at,
        "what": event.what,
        "from": event.from_state,
        "to": event.to_state,
        "attempt": event.attempt,
        "actor": event.actor,
        "detail": event.detail,
    }


def _clocks(row: FenceRow) -> str:
    if row.state is FenceState.SEALED:
        result_until = times.with_zone(row.answer_until)
        return f"result until {result_until}, key until {times.with_zone(row.until)}"
    if row.state is FenceState.RELEASED:
        return f"key until {times.with_zone(row.until)}"
    return f"lease until {times.with_zone(row.deadline)}, then {row.quiet_seconds:g} s of quiet"


def _print(row: FenceRow, history: list[FenceEventRow]) -> None:
    show.line(f"{key_text(row.key)}  {row.name}  {_identity(row)}", _STYLES[row.state])
    receipt = f"; receipt {PREFIX}{row.receipt.hex()}" if row.receipt else ""
    show.line(f"{row.state} since {times.to_milliseconds(row.changed_at)}; {_clocks(row)}{receipt}")
    show.table(
        ("time", "event", "from", "to", "attempt", "actor", "detail"),
        [
            (
                times.to_milliseconds(event.at), event.what, event.from_state or "",
                event.to_state or "", "" if event.attempt is None else str(event.attempt),
                event.actor, event.detail or "",
            )
            for event in history
        ],
    )  # fmt: skip
