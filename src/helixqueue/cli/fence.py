"""`helixq fence list | show | explain | rehearse | resolve`."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

import typer

from helixqueue.cli import connection, pages, show, times
from helixqueue.cli.exits import Exit, NoSuchBatch
from helixqueue.cli.rehearse import rehearse
from helixqueue.engine.fences import Times
from helixqueue.errors import Refused
from helixqueue.fence.receipt import fence_key, receipt_of
from helixqueue.fence.resolution import answer_of
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
@connection.over_http
def _list(
    *,
    name: Name = None,
    state: Annotated[
        FenceState | None, typer.Option("--state", case_sensitive=False, show_default=False)
    ] = None,
    limit: Annotated[
        int, typer.Option("--limit", min=1, max=pages.LIMIT_MAX, help="So many rows.")
    ] = 50,
    after: Annotated[
        str | None,
        typer.Option("--after", metavar="CURSOR", help="Go on behind a page.", show_default=False),
    ] = None,
    tenant: connection.Tenant = None,
    dsn: connection.Dsn = None,
    data: connection.Data = None,
    as_json: connection.AsJson = False,
) -> None:
    """List fences, newest first.

    `--state IN_DOUBT` shows what waits for a person. A page ends with the cursor of the next; it
    may be short, or empty, and have one.
    """
    with connection.reached(dsn, data) as there:
        of = connection.tenant_to_read(there, tenant)
        read = partial(there.fences.list_fences, tenant=of, name=name, state=state)
        rows, onward = pages.as_many(there, read, limit, after)
    if as_json:
        show.as_json({"fences": [_facts(row) for row in rows], "next": onward})
        return
    show.table(
        ("fence", "name", "identity", "state", "try", "since", "by", "what"),
        [_row(row) for row in rows],
        [_STYLES[row.state] for row in rows],
    )
    pages.tell_more(onward)


@app.command("show")
@connection.over_http
def _show(
    fence: Fence,
    *,
    name: Name = None,
    tenant: connection.Tenant = None,
    dsn: connection.Dsn = None,
    data: connection.Data = None,
    as_json: connection.AsJson = False,
) -> None:
    """Tell everything on record about one fence, with its receipt.

    Ends with 1 when there is no such fence.
    """
    with connection.reached(dsn, data) as there:
        row = _found(there, fence, name, tenant)
        story = there.run(there.fences.fence_history(row.key))
    if as_json:
        show.as_json({**_facts(row), "story": [_step(told) for told in story]})
    else:
        _tell(row, story)


@app.command("explain")
@connection.over_http
def _explain(
    fence: Fence,
    *,
    name: Name = None,
    tenant: connection.Tenant = None,
    dsn: connection.Dsn = None,
    data: connection.Data = None,
    as_json: connection.AsJson = False,
) -> None:
    """Say why a fence stands where it does, and what comes next."""
    with connection.reached(dsn, data) as there:
        row = _found(there, fence, name, tenant)
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
@connection.over_http
def _resolve(
    fence: Fence,
    *,
    applied: Annotated[
        bool,
        typer.Option("--applied/--not-applied", help="Did it happen?", show_default=False),
    ],
    reason: Annotated[str, typer.Option("--reason", help="How you know.", show_default=False)],
    actor: Annotated[
        str | None,
        typer.Option("--actor", help="Who decides; over HTTP it is the token.", show_default=False),
    ] = None,
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
    tenant: connection.Tenant = None,
    dsn: connection.Dsn = None,
    data: connection.Data = None,
    as_json: connection.AsJson = False,
) -> None:
    """Decide a doubt, by name and for a reason, which are kept.

    Look first where the effect would be. With --applied it is sealed, and repeats get --result (or
    are told that it happened); with --not-applied the next call does it. Needs an operator's role,
    or a token with the scope operate. Ends with 1 when the fence is not in doubt.
    """
    if not applied and (effect or result or http_status):
        raise typer.BadParameter("--effect, --result and --http-status go with --applied")
    if not reason.strip() or (actor is not None and not actor.strip()):
        raise typer.BadParameter("--reason and --actor must say something: they are kept")
    if actor is None and connection.chosen_service() is None:
        raise typer.BadParameter("--actor: expected who decides; it is kept")
    text = None if result is None else canonical_text(loads(result))
    said: dict[str, Any] = {"effect": effect, "result": text, "http_status": http_status}
    with connection.reached(dsn, data, as_owner=True) as there:
        row = _found(there, fence, name, tenant)
        if there.is_service:
            asked = there.fences.resolve(
                row.key, row.version, reason=reason, applied=applied, **said
            )
            resolved = there.run(asked)
        else:
            answer = answer_of(**said) if applied else None
            asked = there.fences.resolve(
                row.key, row.version, Times(), actor=actor, reason=reason, answer=answer
            )
            resolved = there.run(asked).decision != "stale"
        now = _found(there, fence, name, tenant)
    if as_json:
        show.as_json({"resolved": resolved, **_facts(now)})
    elif resolved:
        show.line(f"{now.state}; the next call {_NEXT[now.state]}")
    else:
        show.line(f"not in doubt: it is {now.state}; nothing was changed")
    raise typer.Exit(Exit.OK if resolved else Exit.NO)


def _found(there: connection.Reached, ref: str, name: str | None, tenant: str | None) -> FenceRow:
    try:
        key = key_bytes(ref)
    except ValueError:
        if name is None:
            raise Refused(
                f"expected a key such as v1:..., or --name with an identity; got {ref!r}"
            ) from None
        of = connection.tenant_named(there, tenant)
        key = fence_key(of, name, canonicalize(tuple(ref.split(PART_SEPARATOR))).canonical)
    found: FenceRow | None = there.run(there.fences.find_fence(key))
    if found is None:
        raise NoSuchFence(f"no fence has the key {key_text(key)}, among those this role may see")
    return found


def _identity(row: FenceRow) -> str:
    return "(unknown)" if row.identity is None else row.identity.replace(PART_SEPARATOR, " / ")


def _row(row: FenceRow) -> tuple[str, ...]:
    what = row.effect or "" if row.state is FenceState.SEALED else row.detail or row.reason
    return (
        key_text(row.key), row.name, _identity(row), row.state, str(row.attempt),
        times.seconds(row.changed_at), row.actor, what,
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
    if row.state is not FenceState.SEALED:
        return None
    if row.digest is None:
        show.progress("the receipt is for tokens with the scope payloads")
        return None
    return receipt_of(row).document()


def _step(told: FenceEventRow) -> dict[str, Any]:
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


def _tell(row: FenceRow, story: list[FenceEventRow]) -> None:
    show.line(f"{key_text(row.key)}  {row.name}  {_identity(row)}", _STYLES[row.state])
    receipt = "" if row.receipt is None else f"; receipt r1:{row.receipt.hex()}"
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
