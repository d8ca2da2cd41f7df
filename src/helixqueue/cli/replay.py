"""`helixq replay`."""

from __future__ import annotations

import time
from collections import Counter
from typing import TYPE_CHECKING, Annotated, Any

import typer

from helixqueue.cli import connection, show
from helixqueue.cli.exits import Exit
from helixqueue.ledger.replay import document, estimate, replay, sees_every_tenant
from helixqueue.operations.steps import Sleep, retried, run_steps
from helixqueue.transport.http import audits

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from helixqueue.client.http import HelixClient
    from helixqueue.operations.steps import Step

# For a service that has another check or replay under way, stretch by stretch.
PATIENCE_SECONDS = 60.0
FIRST_SECONDS = 3.0  # so that a URL where nobody is, is told soon
_COUNTS = ("events", "batches", "retired", "violated")


def register(app: typer.Typer) -> None:
    app.command("replay")(connection.over_http(_replay))


def _replay(
    *,
    dsn: connection.Dsn = None,
    data: connection.Data = None,
    limit: Annotated[int, typer.Option("--limit", min=1, help="Violations to show.")] = 100,
    as_json: connection.AsJson = False,
) -> None:
    """Prove that the ledger gives the current state.

    Folds the events of every batch outside of the database and compares with where the batch
    stands. Ends with 1 when they differ. Reads one snapshot; work may go on. A token with the scope
    operate replays the ledger of its own tenant, in stretches of a snapshot each.
    """
    began = time.monotonic()
    told = _replayed(dsn, data, limit)
    seconds = time.monotonic() - began
    if as_json:
        show.as_json(
            {
                "ok": not told["violated"],
                "every_tenant": told["every_tenant"],
                "events": told["events"],
                "batches": told["batches"],
                "retired": told["retired"],
                "seconds": round(seconds, 3),
                "violated": told["violated"],
                "violations": told["violations"],
            }
        )
    else:
        if told["violations"]:
            show.table(
                ("batch", "what", "how"),
                [(str(v["batch"]), v["kind"], v["message"]) for v in told["violations"]],
            )
        show.progress(
            f"{told['events']} events of {told['batches']} batches in {seconds:.1f} s, "
            f"{told['retired']} retired batches, {told['violated']} violations"
        )
        if not told["every_tenant"]:
            show.progress("this role or token sees its own tenants only; nothing else was replayed")
    raise typer.Exit(Exit.NO if told["violated"] else Exit.OK)


def _replayed(dsn: str | None, data: Path | None, limit: int) -> dict[str, Any]:
    chosen = connection.chosen_service()
    if chosen is not None:
        with connection.client_of(chosen) as client, show.bar("replaying", "events", None) as told:
            return _in_stretches(client, limit, told)
    with connection.opened(dsn, data, as_owner=True) as database:
        everything = sees_every_tenant(database.connection)
        with show.bar("replaying", "events", estimate(database.connection)) as told:
            found = replay(database.connection, progress=lambda done: told(done, done), limit=limit)
    counts = {name: getattr(found, name) for name in _COUNTS}
    violations = [document(one) for one in found.violations]
    return counts | {"every_tenant": everything, "violations": violations}


def _in_stretches(
    client: HelixClient, limit: int, told: Callable[[int, int], None]
) -> dict[str, Any]:
    def perform(step: Step) -> Any:  # noqa: ANN401 - the answer of any call
        return time.sleep(step.seconds) if isinstance(step, Sleep) else client.run(step.call)

    counts: Counter[str] = Counter(dict.fromkeys(_COUNTS, 0))
    violations: list[dict[str, Any]] = []
    behind: int | None = 0
    while behind is not None:
        call = audits.replay(behind=behind, limit=limit - len(violations))
        page = run_steps(
            retried(call, seconds=PATIENCE_SECONDS if behind else FIRST_SECONDS), perform
        )
        counts.update({name: page[name] for name in _COUNTS})
        violations += page["violations"]
        behind = page["next"]
        told(counts["events"], counts["events"])
    return {**counts, "every_tenant": False, "violations": violations}
