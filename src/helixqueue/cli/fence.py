"""`helixq fence list | show | explain | rehearse | resolve`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from helixqueue.cli import show, target, times
from helixqueue.cli.exits import Exit, NoSuchBatch
from helixqueue.cli.rehearse import rehearse
from helixqueue.errors import Refused
from helixqueue.fence.http.stored import FORM, Stored
from helixqueue.fence.receipt import fence_key, key_bytes, key_text, receipt_of
from helixqueue.identity import PART_SEPARATOR, canonical_text, canonicalize, loads
from helixqueue.states import FenceState
from helixqueue.store import fences
from helixqueue.store.fences import Answer, Times

if TYPE_CHECKING:
    from helixqueue.store.database import Database
    from helixqueue.store.fences import FenceRow, Told

app = typer.Typer(no_args_is_help=True, help="Fences: list, show, explain, rehearse, resolve.")

_STYLES = {
    FenceState.SEALED: "green",
    FenceState.IN_DOUBT: "bold red",
    FenceState.EFFECT_STARTED: "yellow",
    FenceState.CLAIMED: "blue",
    FenceState.RELEASED: "magenta",
}
# What the next call with the same key and the same request gets.
_NEXT = {
    FenceState.CLAIMED: "waits for its holder; when the lease runs out, it does it itself",
    FenceState.EFFECT_STARTED: "waits for its holder; when the lease runs out, it is in doubt",
    FenceState.SEALED: "gets the kept answer, and after its time a receipt",
    FenceState.RELEASED: "does it: it is certain that nothing happened",
    FenceState.IN_DOUBT: "is told that nobody knows, until a probe or `fence resolve` decides; "
    "what was declared replayable is driven again",
}

Fence = Annotated[
    str, typer.Argument(metavar="FENCE", help="Its key v1:..., or with --name its identity.")
]
Name = Annotated[str | None, typer.Option("--name", help="What is fenced.", show_default=False)]


class NoSuchFence(NoSuchBatch):
    """A question was answered: no fence goes by that key."""


def register(parent: typer.Typer) -> None:
    app.command("rehearse")(rehearse)
    parent.add_typer(app, name="fence")


@app.command("list")
@target.in_database
def _list(
    *,
    name: Name = None,
    state: Annotated[
        FenceState | None, typer.Option("--state", case_sensitive=False, show_default=False)
    ] = None,
    limit: Annotated[int, typer.Option("--limit", min=1, max=1000, help="At most so many.")] = 50,
    tenant: target.Tenant = None,
    dsn: target.Dsn = None,
    data: target.Data = None,
    as_json: target.AsJson = False,
) -> None:
    """List fences, newest first.

    `--state IN_DOUBT` shows what waits for a person.
    """
    with target.opened(dsn, data) as database:
        of = target.tenant_to_read(database, tenant)
        rows = database.run(fences.listed(tenant=of, name=name, state=state, limit=limit))
    if as_json:
        show.as_json({"fences": [_facts(row) for row in rows]})
        return
    show.table(
        ("fence", "name", "identity", "state", "try", "since", "by", "what"),
        [_row(row) for row in rows],
        [_STYLES[row.state] for row in rows],
    )


@app.command("show")
@target.in_database
def _show(
    fence: Fence,
    *,
    name: Name = None,
    tenant: target.Tenant = None,
    dsn: target.Dsn = None,
    data: target.Data = None,
    as_json: target.AsJson = False,
) -> None:
    """Tell everything on record about one fence, with its receipt when it is sealed.

    Ends with 1 when there is no such fence.
    """
    with target.opened(dsn, data) as database:
        row = _found(database, fence, name, tenant)
        story = database.run(fences.story(row.life))
    if as_json:
        show.as_json({**_facts(row), "story": [_step(told) for told in story]})
    else:
        _tell(row, story)


@app.command("explain")
@target.in_database
def _explain(
    fence: Fence,
    *,
    name: Name = None,
    tenant: target.Tenant = None,
    dsn: target.Dsn = None,
    data: target.Data = None,
    as_json: target.AsJson = False,
) -> None:
    """Say why a fence stands where it does, and what the next call will get."""
    with target.opened(dsn, data) as database:
        row = _found(database, fence, name, tenant)
    told = {
        "state": row.state,
        "because": f"{row.actor} ({row.reason}): {row.detail or row.reason}",
        "since": times.full(row.changed_at),
        "next_call": _NEXT[row.state],
        "another_request": "is refused with a difference: the key stands for its first request",
        "clocks": _clocks(row),
    }
    if as_json:
        show.as_json(told)
    else:
        show.table(("", ""), [(label.replace("_", " "), text) for label, text in told.items()])


@app.command("resolve")
@target.in_database
def _resolve(
    fence: Fence,
    *,
    applied: Annotated[
        bool,
        typer.Option("--applied/--not-applied", help="Did it happen?", show_default=False),
    ],
    reason: Annotated[str, typer.Option("--reason", help="How you know.", show_default=False)],
    actor: Annotated[str, typer.Option("--actor", help="Who decides.", show_default=False)],
    effect: Annotated[
        str | None, typer.Option("--effect", help="Its id where it happened.", show_default=False)
    ] = None,
    result: Annotated[
        str | None,
        typer.Option("--result", metavar="JSON", help="What repeats get.", show_default=False),
    ] = None,
    http_status: Annotated[
        int | None,
        typer.Option("--http-status", min=200, max=499, help="Of a request.", show_default=False),
    ] = None,
    name: Name = None,
    tenant: target.Tenant = None,
    dsn: target.Dsn = None,
    data: target.Data = None,
    as_json: target.AsJson = False,
) -> None:
    """Decide a doubt, by name and for a reason, which are kept.

    Look first where the effect would be. With --applied it is sealed, and repeats get --result (or
    are told that it happened); with --not-applied the next call does it. Needs an operator's role.
    Ends with 1 when the fence is not in doubt.
    """
    if not applied and (effect or result or http_status):
        raise typer.BadParameter("--effect, --result and --http-status go with --applied")
    if not reason.strip() or not actor.strip():
        raise typer.BadParameter("--reason and --actor must say something: they are kept")
    answer = _answer(effect, result, http_status) if applied else None
    with target.opened(dsn, data, as_owner=True) as database:
        row = _found(database, fence, name, tenant)
        told = database.run(
            fences.resolve(row.key, row.version, Times(), actor=actor, reason=reason, answer=answer)
        )
        now = _found(database, fence, name, tenant)
    if as_json:
        show.as_json({"resolved": told.decision != "stale", **_facts(now)})
    elif told.decision == "stale":
        show.line(f"not in doubt: it is {now.state}; nothing was changed")
    else:
        show.line(f"{now.state}; the next call {_NEXT[now.state]}")
    raise typer.Exit(Exit.NO if told.decision == "stale" else Exit.OK)


def _answer(effect: str | None, result: str | None, http_status: int | None) -> Answer:
    text = None if result is None else canonical_text(loads(result))
    if http_status is not None:
        headers = [(b"content-type", b"application/json")]
        stored = Stored.of(http_status, headers, None if text is None else text.encode())
        return Answer(FORM, stored.write(), effect=effect)
    if text is None:
        return Answer("omitted", b"", omitted=True, effect=effect)
    return Answer("json", text.encode(), effect=effect)


def _found(database: Database, ref: str, name: str | None, tenant: str | None) -> FenceRow:
    try:
        key = key_bytes(ref)
    except ValueError:
        if name is None:
            raise Refused(
                f"expected a key such as v1:..., or --name with an identity; got {ref!r}"
            ) from None
        of = target.tenant_to_change(database, tenant)
        key = fence_key(of, name, canonicalize(tuple(ref.split(PART_SEPARATOR))).canonical)
    rows = database.run(fences.listed(key=key, limit=1))
    if not rows:
        raise NoSuchFence(f"no fence has the key {key_text(key)}, among those this role may see")
    return rows[0]


def _identity(row: FenceRow) -> str:
    return "(unknown)" if row.identity is None else row.identity.replace(PART_SEPARATOR, " / ")


def _row(row: FenceRow) -> tuple[str, ...]:
    what = row.effect or "" if row.state is FenceState.SEALED else row.detail or row.reason
    return (
        key_text(row.key), row.name, _identity(row), row.state, str(row.attempt),
        times.seconds(row.changed_at), row.actor, what,
    )  # fmt: skip


def _facts(row: FenceRow) -> dict[str, Any]:
    sealed = row.state is FenceState.SEALED
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
        "receipt": receipt_of(row).document() if sealed else None,
    }


def _step(told: Told) -> dict[str, Any]:
    return {
        "at": told.at,
        "what": told.what,
        "from": told.from_state,
        "to": told.to_state,
        "attempt": told.attempt,
        "actor": told.actor,
        "detail": told.detail,
    }


def _clocks(row: FenceRow) -> str:
    if row.state is FenceState.SEALED:
        return f"answer until {times.full(row.answer_until)}, key until {times.full(row.until)}"
    if row.state is FenceState.RELEASED:
        return f"key until {times.full(row.until)}"
    return f"lease until {times.full(row.deadline)}, quiet {row.quiet_seconds:g} s more"


def _tell(row: FenceRow, story: list[Told]) -> None:
    show.line(f"{key_text(row.key)}  {row.name}  {_identity(row)}", _STYLES[row.state])
    receipt = f"; receipt {receipt_of(row).id}" if row.state is FenceState.SEALED else ""
    show.line(f"{row.state} since {times.shown(row.changed_at)}; {_clocks(row)}{receipt}")
    show.table(
        ("at", "what", "from", "to", "try", "who", "detail"),
        [
            (
                times.shown(told.at), told.what, told.from_state or "", told.to_state or "",
                "" if told.attempt is None else str(told.attempt), told.actor, told.detail or "",
            )
            for told in story
        ],
    )  # fmt: skip
