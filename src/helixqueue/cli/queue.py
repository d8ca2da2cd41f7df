"""`helixq queue list | show | set | pause | resume | delete`."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

import typer

from helixqueue.cli import connection, options, pages, shapes, show, times
from helixqueue.cli.command import command
from helixqueue.cli.exits import Exit
from helixqueue.identity import PROFILES, check_name

if TYPE_CHECKING:
    from helixqueue.records.queue import QueueSummary

app = typer.Typer(no_args_is_help=True, help="Queues: list, show, set, pause, resume, delete.")

Name = Annotated[str, typer.Argument(metavar="QUEUE", help="Name of the queue.")]
Profile = Annotated[
    str | None,
    typer.Option("--profile", metavar="NAME", help=f"Identity rules: {' or '.join(PROFILES)}."),
]
Lease = Annotated[
    float | None,
    typer.Option("--lease", metavar="SECONDS", help="Length of a lease.", min=0.05, max=86400),
]
MaxAttempts = Annotated[
    int | None,
    typer.Option(
        "--max-attempts", metavar="N", help="Maximum number of attempts per batch.", min=1, max=1000
    ),
]
Backoff = Annotated[
    float | None,
    typer.Option(
        "--backoff",
        metavar="SECONDS",
        help="Wait after the first failed attempt; doubles after each further one.",
        min=0,
        max=86400,
    ),
]
BackoffMax = Annotated[
    float | None,
    typer.Option(
        "--backoff-max", metavar="SECONDS", help="Maximum wait between attempts.", min=0, max=604800
    ),
]
KeyLimit = Annotated[
    int | None,
    typer.Option(
        "--key-limit",
        metavar="N",
        help="Maximum number of concurrent leases per limit key.",
        min=1,
        max=100000,
    ),
]
Unidentified = Annotated[
    str | None,
    typer.Option("--unknown", metavar="POLICY", help="Work without identity: refuse or accept."),
]
Closed = Annotated[
    bool | None, typer.Option("--closed/--open", help="Refuse or accept new submissions.")
]
Requires = Annotated[
    str | None,
    typer.Option(
        "--requires", metavar="JSON", help='Resources that a worker must have, such as {"gpus": 1}.'
    ),
]


def _retention(state: str, rows: str) -> Any:  # noqa: ANN401 - an option
    return typer.Option(
        f"--keep-{state}",
        metavar="DURATION",
        parser=times.span,
        help=f"How long to keep {rows}: 30d, or forever.",
        show_default=False,
    )


KeepCompleted = Annotated[float | None, _retention("completed", "completed batches")]
KeepFailed = Annotated[float | None, _retention("failed", "failed batches")]
KeepCancelled = Annotated[float | None, _retention("cancelled", "cancelled batches")]
KeepDecisions = Annotated[
    float | None, _retention("decisions", "records of duplicates, conflicts and refusals")
]

StalledAfter = Annotated[
    float | None,
    typer.Option(
        "--stalled-after",
        metavar="DURATION",
        parser=times.span,
        help="Report claimable batches that wait for longer: 15m by default.",
    ),
]


def register(parent: typer.Typer) -> None:
    parent.add_typer(app, name="queue")


@command(app, "list", example="helixq queue list")
@connection.service_or_database
def _list(
    *,
    tenant: options.Tenant = None,
    as_json: options.AsJson = False,
) -> None:
    """List queues with the number of batches in each state.

    Counts stop at 10,000.
    """
    with connection.open_target() as target:
        read = partial(target.reads.queues, tenant=connection.tenant_to_read(target, tenant))
        queues = list(pages.read_all(target, read))
    if as_json:
        show.as_json({"queues": [shapes.queue(summary) for summary in queues]})
        return
    show.table(
        ("tenant", "queue", "status", *shapes.COUNTS),
        [
            (
                s.settings.tenant,
                s.settings.name,
                _status(s),
                *(str(getattr(s, n)) for n in shapes.COUNTS),
            )
            for s in queues
        ],
        ["yellow" if s.settings.paused or s.settings.closed else "" for s in queues],
        empty="no queues",
        first="queue",
        optional=("status", "tenant", "assigned", "waiting", "cancelled"),
    )


def _status(summary: QueueSummary) -> str:
    flags = [flag for flag in ("paused", "closed") if getattr(summary.settings, flag)]
    return ", ".join(flags) or "open"


@command(app, "show", example="helixq queue show basecall")
@connection.service_or_database
def _show(
    queue: Name,
    *,
    tenant: options.Tenant = None,
    as_json: options.AsJson = False,
) -> None:
    """Show the settings and counts of a queue.

    Without a tenant: the queues of that name of all tenants that the login may see. Exit code 1: no
    such queue.
    """
    with connection.open_target() as target:
        read = partial(
            target.reads.queues, tenant=connection.tenant_to_read(target, tenant), queue=queue
        )
        queues = list(pages.read_all(target, read))
    if as_json:
        show.as_json({"queues": [shapes.queue(summary) for summary in queues]})
    elif not queues:
        show.progress(f"no queue that this login may see has the name {queue!a}")
    else:
        for summary in queues:
            _print(summary)
    raise typer.Exit(Exit.OK if queues else Exit.NO)


def _print(summary: QueueSummary) -> None:
    facts = shapes.settings(summary.settings) | {
        name: str(getattr(summary, name)) for name in shapes.COUNTS
    }
    rows = [(name, shapes.setting_text(name, value)) for name, value in facts.items()]
    show.table(("setting", "value"), rows)


@command(app, "set", example='helixq queue set basecall --lease 120 --reason "a new assay"')
@connection.service_or_database
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
    stalled_after: StalledAfter = None,
    resubmit_failed: options.ResubmitFailed = None,
    reason: options.Reason,
    actor: options.Actor = None,
    tenant: options.Tenant = None,
    as_json: options.AsJson = False,
) -> None:
    """Create a queue, or change the given settings.

    The change is recorded with its reason.
    """
    if profile is not None and profile not in PROFILES:
        raise typer.BadParameter(f"--profile: expected {' or '.join(PROFILES)}, got {profile!r}")
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
        "requires": None if requires is None else options.parse_resources("requires", requires),
        "keep_completed_seconds": keep_completed,
        "keep_failed_seconds": keep_failed,
        "keep_cancelled_seconds": keep_cancelled,
        "keep_decisions_seconds": keep_decisions,
        "stalled_after_seconds": stalled_after,
        "resubmit_failed": resubmit_failed,
    }
    _change(
        queue, settings, reason=reason, actor=actor, tenant=tenant,
        as_json=as_json,
    )  # fmt: skip


@command(app, "pause", example='helixq queue pause basecall --reason "flow cells are late"')
@connection.service_or_database
def _pause(
    queue: Name,
    *,
    reason: options.Reason,
    actor: options.Actor = None,
    tenant: options.Tenant = None,
    as_json: options.AsJson = False,
) -> None:
    """Stop assigning batches of a queue; running batches continue."""
    _change(
        queue, {"paused": True}, reason=reason, actor=actor, tenant=tenant,
        as_json=as_json,
    )  # fmt: skip


@command(app, "resume", example='helixq queue resume basecall --reason "flow cells arrived"')
@connection.service_or_database
def _resume(
    queue: Name,
    *,
    reason: options.Reason,
    actor: options.Actor = None,
    tenant: options.Tenant = None,
    as_json: options.AsJson = False,
) -> None:
    """Assign batches of a paused queue again."""
    _change(
        queue, {"paused": False}, reason=reason, actor=actor, tenant=tenant,
        as_json=as_json,
    )  # fmt: skip


@command(app, "delete", example='helixq queue delete basecal --reason "a typing error"')
@connection.service_or_database
def _delete(
    queue: Name,
    *,
    reason: options.Reason,
    actor: options.Actor = None,
    tenant: options.Tenant = None,
    as_json: options.AsJson = False,
) -> None:
    """Delete a queue that never had a batch.

    A queue with batches, even deleted ones, stays: their keys contain its name. Close it with
    `helixq queue set NAME --closed`. Exit code 1: the queue does not exist or is not empty.
    """
    check_name("queue", queue)
    with connection.open_target() as target:
        owner = connection.tenant_name(target, tenant)
        call = target.calls.delete_queue(tenant=owner, queue=queue, reason=reason, actor=actor)
        answer = target.run(call)
    texts = {
        "deleted": f"queue {queue} of tenant {owner} was deleted",
        "absent": f"tenant {owner} has no queue {queue}",
        "not_empty": f"queue {queue} has or had batches and stays; close it with `helixq queue "
        f"set {queue} --closed --reason ...`",
    }
    if as_json:
        show.as_json({"tenant": owner, "queue": queue, "answer": answer})
    elif answer == "deleted":
        show.line(texts[answer])
    else:
        show.progress(texts[answer])
    raise typer.Exit(Exit.OK if answer == "deleted" else Exit.NO)


def _change(
    queue: str,
    settings: dict[str, Any],
    *,
    reason: str,
    actor: str | None,
    tenant: str | None,
    as_json: bool,
) -> None:
    check_name("queue", queue)
    with connection.open_target() as target:
        owner = connection.tenant_to_change(target, tenant)
        # Only `set` creates a queue.
        if (
            "paused" in settings
            and target.run(target.calls.queue(tenant=owner, queue=queue)) is None
        ):
            show.progress(
                f"{f'tenant {owner}' if owner else 'the tenant'} has no queue {queue}; "
                f"create it with `helixq queue set {queue} --reason ...`"
            )
            raise typer.Exit(Exit.NO)
        row = target.run(
            target.calls.set_queue(
                tenant=owner, queue=queue, actor=actor, reason=reason, **settings
            )
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
                ", ".join(
                    f"{name} {shapes.setting_text(name, value)}" for name, value in changed.items()
                )
                or "created"
            )
        )
