"""`helixq replay`."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Annotated, Any

import typer

from helixqueue.cli import show, target
from helixqueue.cli.exits import Exit
from helixqueue.ledger.replay import estimate, replay, sees_every_tenant

if TYPE_CHECKING:
    from helixqueue.ledger.chain import Event


def register(app: typer.Typer) -> None:
    app.command("replay")(target.without_service("run it with --dsn or --data")(_replay))


def _replay(
    *,
    dsn: target.Dsn = None,
    data: target.Data = None,
    limit: Annotated[int, typer.Option("--limit", min=1, help="Violations to show.")] = 100,
    as_json: target.AsJson = False,
) -> None:
    """Prove that the ledger gives the current state.

    Folds the events of every batch outside of the database and compares with where the batch
    stands. Ends with 1 when they differ. Reads one snapshot; work may go on.
    """
    with target.opened(dsn, data, as_owner=True) as database:
        connection = database.connection
        everything = sees_every_tenant(connection)
        with show.bar("replaying", "events", estimate(connection)) as told:
            began = time.monotonic()
            replayed = replay(connection, progress=lambda done: told(done, done), limit=limit)
            seconds = time.monotonic() - began
    if as_json:
        show.as_json(
            {
                "ok": replayed.clean,
                "every_tenant": everything,
                "events": replayed.events,
                "batches": replayed.batches,
                "retired": replayed.retired,
                "seconds": round(seconds, 3),
                "violated": replayed.violated,
                "violations": [
                    {
                        "kind": violation.kind,
                        "batch": violation.batch,
                        "message": violation.message,
                        "witnesses": [_as_dict(event) for event in violation.witnesses],
                    }
                    for violation in replayed.violations
                ],
            }
        )
    else:
        if replayed.violations:
            show.table(
                ("batch", "what", "how"),
                [(str(v.batch), v.kind, v.message) for v in replayed.violations],
            )
        show.progress(
            f"{replayed.events} events of {replayed.batches} batches in {seconds:.1f} s, "
            f"{replayed.retired} retired batches, {replayed.violated} violations"
        )
        if not everything:
            show.progress("this role sees its own tenants only; nothing else was replayed")
    raise typer.Exit(Exit.OK if replayed.clean else Exit.NO)


def _as_dict(event: Event) -> dict[str, Any]:
    try:
        when = event.when.isoformat()
    except OverflowError:  # infinity, or a year beyond the calendar: a forger's work
        when = f"{event.at} microseconds after 2000-01-01"
    return event._asdict() | {"at": when, "hash": event.hash.hex()}
