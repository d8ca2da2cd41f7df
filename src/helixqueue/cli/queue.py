"""`helixq queue list | show | set | pause | resume | delete`."""

from __future__ import annotations

from dataclasses import dataclass, fields
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

import typer

from helixqueue.cli import shapes, show
from helixqueue.cli.derived_commands import verb
from helixqueue.cli.options import option
from helixqueue.operations import overview, queues
from helixqueue.outputs.stores import open_store, probe
from helixqueue.records.queue import QueueCounts, QueueRow

if TYPE_CHECKING:
    from helixqueue.cli.operation import Runner
    from helixqueue.operations.batches import Operations
    from helixqueue.operations.instructions import Instructions
    from helixqueue.records.page import Page
    from helixqueue.records.queue import QueueDeleted, QueueSummary

app = typer.Typer(no_args_is_help=True, help="Queues: list, show, set, pause, resume, delete.")
COUNTS = tuple(field.name for field in fields(QueueCounts))


def register(parent: typer.Typer) -> None:
    parent.add_typer(app, name="queue")


@verb(app, "list", queues.list_queues, example="helixq queue list", every_tenant=True)
def _list(page: Page[QueueSummary]) -> None:
    show.table(
        ("tenant", "queue", "status", *COUNTS),
        [
            (row.tenant, row.name, _status(row), *(str(getattr(row.counts, n)) for n in COUNTS))
            for row in page.rows
        ],
        ["yellow" if row.paused or row.closed else "" for row in page.rows],
        empty="no queues",
        first="queue",
        optional=("tenant", "assigned", "waiting", "cancelled"),
    )


def _status(row: QueueRow) -> str:
    return ", ".join(flag for flag in ("paused", "closed") if getattr(row, flag)) or "open"


@verb(app, "show", queues.show_queue, example="helixq queue show basecall", every_tenant=True)
def _show(row: QueueSummary, *, ask: Runner) -> None:
    facts = shapes.plain(row)
    facts |= {name: str(getattr(row.counts, name)) for name in COUNTS}
    del facts["counts"]
    show.table(("setting", "value"), [(n, shapes.setting_text(n, v)) for n, v in facts.items()])
    waiting = ask(partial(overview.reasons_to_wait, queue=row.name))
    for missing in sorted({batch.missing for batch in waiting if batch.missing}):
        show.warning(f"no_worker_matches: work waits and no worker has {missing}")


@dataclass(frozen=True, slots=True)
class _Created(QueueRow):
    """A queue that did not exist before."""


def _set_and_compare(
    operations: Operations,
    queue: str,
    *,
    unprobed: bool | None = None,
    **settings: Any,  # noqa: ANN401 - options of `set`
) -> Instructions[QueueRow]:
    if settings.get("outputs") and not unprobed:
        # Here, because a service may have neither the credentials nor the directory.
        probe(open_store(settings["outputs"]))
    before = yield from operations.find_queue(queue)
    row = yield from queues.set_queue(operations, queue, **settings)
    members = {field.name: getattr(row, field.name) for field in fields(row)}
    return row if before is not None else _Created(**members)


@verb(
    app,
    "set",
    queues.set_queue,
    example='helixq queue set basecall --lease 120 --reason "a new assay"',
    instead=_set_and_compare,
    more={
        "unprobed": Annotated[
            bool | None,
            option("--unprobed", "Do not try --outputs: this machine does not reach it."),
        ]
    },
)
def _set(row: QueueRow, **values: object) -> None:
    others = {"queue", "reason", "unprobed"}
    changed = {name: getattr(row, name) for name in values if name not in others}
    words = [f"{name} {shapes.setting_text(name, value)}" for name, value in changed.items()]
    if isinstance(row, _Created):
        words.insert(0, "created")
    text = ", ".join(words) or "nothing to change"
    show.line(f"queue {row.name} of tenant {row.tenant}: {text}")


@verb(
    app,
    "pause",
    queues.pause_queue,
    example='helixq queue pause basecall --reason "flow cells are late"',
)
def _pause(row: QueueRow) -> None:
    _set(row, paused=True)


@verb(
    app,
    "resume",
    queues.resume_queue,
    example='helixq queue resume basecall --reason "flow cells arrived"',
)
def _resume(row: QueueRow) -> None:
    _set(row, paused=False)


@verb(
    app,
    "delete",
    queues.delete_queue,
    example='helixq queue delete basecal --reason "a typing error"',
)
def _delete(deleted: QueueDeleted) -> None:
    show.line(f"queue {deleted.queue} of tenant {deleted.tenant} was deleted")
