"""`helixq queue list | show | set | pause | resume`."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

import typer

from helixqueue.cli import connection, pages, shapes, show, times
from helixqueue.cli.exits import Exit
from helixqueue.cli.resources import resources
from helixqueue.identity import PROFILES, check_name

if TYPE_CHECKING:
    from pathlib import Path

    from helixqueue.records.queue import QueueSummary

app = typer.Typer(no_args_is_help=True, help="Queues: list, show, set, pause, resume.")

Name = Annotated[str, typer.Argument(metavar="QUEUE", help="The name of the queue.")]
Profile = Annotated[
    str | None, typer.Option("--profile", help="Rules of identities.", show_default=False)
]
Lease = Annotated[
    float | None,
    typer.Option("--lease", help="Seconds of a lease.", min=0.05, max=86400, show_default=False),
]
MaxAttempts = Annotated[
    int | None,
    typer.Option("--max-attempts", help="Tries in all.", min=1, max=1000, show_default=False),
]
Backoff = Annotated[
    float | None,
    typer.Option(
        "--backoff",
        help="Seconds after the first failed try; they double.",
        min=0,
        max=86400,
        show_default=False,
    ),
]
BackoffMax = Annotated[
    float | None,
    typer.Option("--backoff-max", help="The longest wait.", min=0, max=604800, show_default=False),
]
KeyLimit = Annotated[
    int | None,
    typer.Option(
        "--key-limit",
        help="Live leases of one limit key.",
        min=1,
        max=100000,
        show_default=False,
    ),
]
Unidentified = Annotated[
    str | None,
    typer.Option("--unknown", help="Work without identity: refuse | accept.", show_default=False),
]
Closed = Annotated[
    bool | None,
    typer.Option("--closed/--open", help="Take no new work, or do.", show_default=False),
]
Requires = Annotated[
    str | None,
    typer.Option(
        "--requires",
        metavar="JSON",
        help='What a worker must have: {"gpus": 1}.',
        show_default=False,
    ),
]


def _kept(name: str, what: str) -> Any:  # noqa: ANN401 - an option
    return typer.Option(
        f"--keep-{name}",
        metavar="SPAN",
        parser=times.span,
        help=f"How long {what} stay: 30d, ever.",
        show_default=False,
    )


KeepCompleted = Annotated[float | None, _kept("completed", "completed batches")]
KeepFailed = Annotated[float | None, _kept("failed", "failed batches")]
KeepCancelled = Annotated[float | None, _kept("cancelled", "cancelled batches")]
KeepDecisions = Annotated[
    float | None, _kept("decisions", "answers to duplicates, conflicts and refused submissions")
]


def register(parent: typer.Typer) -> None:
    parent.add_typer(app, name="queue")


@app.command("list")
@connection.over_http
def _list(
    *,
    tenant: connection.Tenant = None,
    dsn: connection.Dsn = None,
    data: connection.Data = None,
    as_json: connection.AsJson = False,
) -> None:
    """List queues, and how much of their work stands where.

    Nothing is counted past 10,000.
    """
    with connection.reached(dsn, data) as there:
        of = connection.tenant_to_read(there, tenant)
        sights = list(pages.every(there, partial(there.reads.queues, tenant=of)))
    if as_json:
        show.as_json({"queues": [shapes.queue(sight) for sight in sights]})
        return
    show.table(
        ("tenant", "queue", "open", *shapes.COUNTS),
        [
            (
                s.settings.tenant,
                s.settings.name,
                _open(s),
                *(str(getattr(s, n)) for n in shapes.COUNTS),
            )
            for s in sights
        ],
        ["yellow" if s.settings.paused or s.settings.closed else "" for s in sights],
    )


def _open(sight: QueueSummary) -> str:
    words = [word for word in ("paused", "closed") if getattr(sight.settings, word)]
    return ", ".join(words) or "yes"


@app.command("show")
@connection.over_http
def _show(
    queue: Name,
    *,
    tenant: connection.Tenant = None,
    dsn: connection.Dsn = None,
    data: connection.Data = None,
    as_json: connection.AsJson = False,
) -> None:
    """Show a queue's settings and how much stands where.

    Without a tenant, every tenant's queue of that name. Ends with 1 when there is none.
    """
    with connection.reached(dsn, data) as there:
        of = connection.tenant_to_read(there, tenant)
        sights = list(pages.every(there, partial(there.reads.queues, tenant=of, queue=queue)))
    if as_json:
        show.as_json({"queues": [shapes.queue(sight) for sight in sights]})
    elif not sights:
        show.progress(f"no queue is called {queue!a}, among those this role may see")
    else:
        for sight in sights:
            _tell(sight)
    raise typer.Exit(Exit.OK if sights else Exit.NO)


def _tell(sight: QueueSummary) -> None:
    facts = shapes.settings(sight.settings) | {
        name: str(getattr(sight, name)) for name in shapes.COUNTS
    }
    show.table(("what", "value"), [(name, _value(value)) for name, value in facts.items()])


def _value(value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return "" if value is None else str(value)


@app.command("set")
@connection.over_http
def _set(
    queue: Name,
    *,
    profile: Profile = None,
    lease: Lease = None,
    max_attempts: MaxAttempts = None,
    backoff: Backoff = None,
    backoff_max: BackoffMax = None,
    key_limit: KeyLimit = None,
    unknown: Unidentified = None,
    closed: Closed = None,
    requires: Requires = None,
    keep_completed: KeepCompleted = None,
    keep_failed: KeepFailed = None,
    keep_cancelled: KeepCancelled = None,
    keep_decisions: KeepDecisions = None,
    reason: connection.Reason,
    actor: connection.Actor = None,
    tenant: connection.Tenant = None,
    dsn: connection.Dsn = None,
    data: connection.Data = None,
    as_json: connection.AsJson = False,
) -> None:
    """Declare a queue, or change the settings that are named.

    The change is kept on record, with its reason.
    """
    if profile is not None and profile not in PROFILES:
        raise typer.BadParameter(f"--profile: expected one of {', '.join(PROFILES)}")
    if unknown not in {None, "refuse", "accept"}:
        raise typer.BadParameter(f"--unknown: expected refuse or accept, got {unknown!r}")
    settings = {
        "profile": profile,
        "lease_seconds": lease,
        "max_attempts": max_attempts,
        "backoff_seconds": backoff,
        "backoff_max_seconds": backoff_max,
        "key_limit": key_limit,
        "unknown": unknown,
        "closed": closed,
        "requires": None if requires is None else resources("requires", requires),
        "keep_completed_seconds": keep_completed,
        "keep_failed_seconds": keep_failed,
        "keep_cancelled_seconds": keep_cancelled,
        "keep_decisions_seconds": keep_decisions,
    }
    _change(
        queue, settings, reason=reason, actor=actor, tenant=tenant, dsn=dsn, data=data,
        as_json=as_json,
    )  # fmt: skip


@app.command("pause")
@connection.over_http
def _pause(
    queue: Name,
    *,
    reason: connection.Reason,
    actor: connection.Actor = None,
    tenant: connection.Tenant = None,
    dsn: connection.Dsn = None,
    data: connection.Data = None,
    as_json: connection.AsJson = False,
) -> None:
    """Hand out no more work of a queue; what is leased goes on."""
    _change(
        queue, {"paused": True}, reason=reason, actor=actor, tenant=tenant, dsn=dsn, data=data,
        as_json=as_json,
    )  # fmt: skip


@app.command("resume")
@connection.over_http
def _resume(
    queue: Name,
    *,
    reason: connection.Reason,
    actor: connection.Actor = None,
    tenant: connection.Tenant = None,
    dsn: connection.Dsn = None,
    data: connection.Data = None,
    as_json: connection.AsJson = False,
) -> None:
    """Hand out a paused queue's work again."""
    _change(
        queue, {"paused": False}, reason=reason, actor=actor, tenant=tenant, dsn=dsn, data=data,
        as_json=as_json,
    )  # fmt: skip


def _change(
    queue: str,
    settings: dict[str, Any],
    *,
    reason: str,
    actor: str | None,
    tenant: str | None,
    dsn: str | None,
    data: Path | None,
    as_json: bool,
) -> None:
    check_name("queue", queue)
    with connection.reached(dsn, data) as there:
        of = connection.tenant_to_change(there, tenant)
        # Pausing is of a queue that is there; `set` is what declares one.
        if "paused" in settings and there.run(there.calls.queue(tenant=of, queue=queue)) is None:
            show.progress(
                f"{f'tenant {of}' if of else 'the tenant'} has no queue {queue}; "
                f"declare it with `helixq queue set {queue} --reason ...`"
            )
            raise typer.Exit(Exit.NO)
        row = there.run(
            there.calls.set_queue(tenant=of, queue=queue, actor=actor, reason=reason, **settings)
        )
    if as_json:
        show.as_json(shapes.settings(row))
    else:
        changed = {
            name: getattr(row, name) for name, value in settings.items() if value is not None
        }
        show.line(
            f"queue {row.name} of tenant {row.tenant}: "
            + (
                ", ".join(f"{name} {_value(value)}" for name, value in changed.items())
                or "declared"
            )
        )
