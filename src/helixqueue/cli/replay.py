"""`helixq replay`."""

from __future__ import annotations

import time
from collections import Counter
from typing import TYPE_CHECKING, Annotated, Any

import typer

from helixqueue.cli import connection, options, show
from helixqueue.cli.command import command
from helixqueue.cli.exits import Exit
from helixqueue.cli.options import option
from helixqueue.ledger.replay import COUNTS, estimate, replay, sees_every_tenant
from helixqueue.operations.instructions import Sleep, retried, run_instructions
from helixqueue.transport.http import checks

if TYPE_CHECKING:
    from collections.abc import Callable

    from helixqueue.operations.instructions import Instruction

# How long to retry a request while the service runs another check or replay.
RETRY_SECONDS = 60.0
FIRST_RETRY_SECONDS = 3.0  # for the first request, so that a wrong URL fails soon


def register(app: typer.Typer) -> None:
    add = command(app, "replay", example='helixq replay --dsn "$OWNER_DSN"')
    add(connection.service_or_database(_replay))


def _replay(
    *,
    limit: Annotated[
        int, option("--limit N", "Maximum number of violations to show.", min=1)
    ] = 100,
    as_json: options.AsJson = False,
) -> None:
    """Prove that the ledger replays to the current state.

    Folds the events of every batch outside of the database and compares the result with the stored
    state. Reads one snapshot; work may continue meanwhile. A token with the scope operate replays
    the ledger of its own tenant, one snapshot per request. Exit code 1: they differ.
    """
    started = time.monotonic()
    result = _run_replay(limit)
    seconds = time.monotonic() - started
    if as_json:
        show.as_json({"ok": not result["violated"], **result, "seconds": round(seconds, 3)})
    else:
        if result["violations"]:
            show.table(
                ("batch", "violation", "detail"),
                [(str(v["batch"]), v["kind"], v["message"]) for v in result["violations"]],
            )
        show.progress(
            f"{result['events']} events of {result['batches']} batches in {seconds:.1f} s, "
            f"{result['retired']} retired batches, {result['violated']} violations"
        )
        if not result["every_tenant"]:
            show.progress("this login or token sees its own tenants only; no others were replayed")
    raise typer.Exit(Exit.NO if result["violated"] else Exit.OK)


def _run_replay(limit: int) -> dict[str, Any]:
    if connection.selected().service is not None:
        with (
            connection.open_target() as target,
            show.bar("replaying", "events", None) as update,
        ):
            return _replay_over_http(target, limit, update)
    with connection.open_database(as_owner=True) as database:
        every_tenant = sees_every_tenant(database.connection)
        with show.bar("replaying", "events", estimate(database.connection)) as update:
            replayed = replay(
                database.connection, progress=lambda done: update(done, done), limit=limit
            )
    return {"every_tenant": every_tenant, **replayed.document()}


def _replay_over_http(
    target: connection.Target, limit: int, update: Callable[[int, int], None]
) -> dict[str, Any]:
    def perform(instruction: Instruction) -> Any:  # noqa: ANN401 - the result of any call
        return (
            time.sleep(instruction.seconds)
            if isinstance(instruction, Sleep)
            else target.run(instruction.call)
        )

    counts: Counter[str] = Counter(dict.fromkeys(COUNTS, 0))
    violations: list[dict[str, Any]] = []
    after: str | None = None
    while True:
        call = checks.replay(after=after, limit=limit - len(violations))
        page = run_instructions(
            retried(call, seconds=RETRY_SECONDS if after else FIRST_RETRY_SECONDS), perform
        )
        counts.update({name: page[name] for name in COUNTS})
        violations += page["violations"]
        after = page["next"]
        update(counts["events"], counts["events"])
        if after is None:
            break
    return {"every_tenant": False, **counts, "violations": violations}
