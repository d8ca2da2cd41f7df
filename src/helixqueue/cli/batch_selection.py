"""Batches that `batch retry` and `batch cancel` act on: by name, or all that match some filters."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NoReturn

import typer

from helixqueue.cli import batch_ref, connection, pages, shapes, show, times, unicode_diff
from helixqueue.cli.exits import Exit
from helixqueue.operations.batch_actions import action_state

if TYPE_CHECKING:
    import uuid
    from collections.abc import Iterator, Mapping, Sequence

    from helixqueue.records.batch import ActionResult


@dataclass(frozen=True)
class Selection:
    """Batches by name or by filter; exactly one of the two."""

    refs: list[str] | None
    queue: str | None  # with refs, the queue of identities
    filters: dict[str, Any]
    limit: int | None
    after: str | None

    def __post_init__(self) -> None:
        named = [f"--{name}" for name, value in self.filters.items() if value is not None]
        if self.refs:
            named += [f"--{name}" for name in ("limit", "after") if getattr(self, name) is not None]
            if named:
                raise typer.BadParameter(f"expected BATCH... or filters, got both: {named[0]}")
        elif self.queue is None and not named:
            raise typer.BadParameter("expected BATCH... or a filter such as --queue, got neither")


def act(
    target: connection.Target,
    verb: str,
    selection: Selection,
    *,
    tenant: str | None,
    reason: str,
    actor: str | None,
    dry_run: bool,
    as_json: bool,
) -> NoReturn:
    """Retry or cancel the batches of a selection, in pages, and show the answer of each."""
    build = getattr(target.calls, verb)
    results: list[ActionResult] = []
    cursor: str | None = None
    tenant = connection.tenant_to_read(target, tenant)
    for ids, following in _pages(target, verb, selection, tenant):
        cursor = following
        if ids:
            results += target.run(build(ids=ids, reason=reason, actor=actor, dry_run=dry_run))
    if dry_run:
        show.progress("dry run: nothing was changed")
    if not as_json:
        pages.print_next(cursor)
    show_results(results, as_json=as_json, more={"next": cursor, "dry_run": dry_run})


def _pages(
    target: connection.Target, verb: str, selection: Selection, tenant: str | None
) -> Iterator[tuple[list[uuid.UUID], str | None]]:
    """Batch ids of each page, and the cursor of the next page."""
    queue = selection.queue
    if selection.refs:
        ids = [batch_ref.find(target, ref, tenant=tenant, queue=queue) for ref in selection.refs]
        ids = list(dict.fromkeys(ids))
        for start in range(0, len(ids), pages.PAGE_ROWS):
            yield ids[start : start + pages.PAGE_ROWS], None
        return
    filters = {name: value for name, value in selection.filters.items() if value is not None}
    for name in ("since", "until"):
        if name in filters:
            filters[name] = times.moment(filters[name])
    filters["state"] = action_state(verb, filters.get("state"))
    left, after = selection.limit, selection.after
    while left is None or left > 0:
        limit = pages.PAGE_ROWS if left is None else min(left, pages.PAGE_ROWS)
        page = target.run(
            target.reads.batches(tenant=tenant, queue=queue, after=after, limit=limit, **filters)
        )
        after = page.next
        yield [row.batch_id for row in page.rows], after
        left = None if left is None else left - len(page.rows)
        if after is None:
            return


def act_on_each(
    target: connection.Target, call: str, ids: list[uuid.UUID], **arguments: object
) -> list[ActionResult]:
    """Change batches by id: one per request of a service, all at once in a database."""
    build = getattr(target.calls, call)
    chunks = [[batch_id] for batch_id in ids] if target.is_service else [ids]
    return [result for chunk in chunks for result in target.run(build(ids=chunk, **arguments))]


def show_results(
    results: Sequence[ActionResult], *, as_json: bool, more: Mapping[str, Any] | None = None
) -> NoReturn:
    """Print the answers and exit with their code; `more` is added to the JSON document."""
    if as_json:
        show.as_json(
            {"verdicts": [shapes.action_result(result) for result in results], **(more or {})}
        )
    else:
        show.table(
            ("batch", "identity", "answer", "state", "note"),
            [
                (
                    result.batch_id,
                    unicode_diff.identity_text(result.identity, result.revision or ""),
                    result.answer,
                    result.state or "",
                    _note(result),
                )
                for result in results
            ],
            ["green" if result.answer in {"ok", "repeat"} else "bold red" for result in results],
            empty="no batches",
            first="identity",
        )
    raise typer.Exit(_code({result.answer for result in results}))


def _note(result: ActionResult) -> str:
    if result.answer == "illegal" and result.note is None:
        return f"not possible for a batch that is {result.state}"
    return result.note or ""


def _code(answers: set[str]) -> Exit:
    if answers <= {"ok", "repeat"}:
        return Exit.OK
    return Exit.BUSY if answers <= {"ok", "repeat", "busy"} else Exit.NO
