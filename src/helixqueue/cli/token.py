"""`helixq token create | list | rotate | revoke | link`."""

from __future__ import annotations

from dataclasses import asdict
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer

from helixqueue.cli import connection, pages, show, times
from helixqueue.cli.exits import Exit
from helixqueue.engine import tokens
from helixqueue.identity import check_name
from helixqueue.transport.http import tokens as http_tokens
from helixqueue.transport.http.tokens import CreatedToken, Login
from helixqueue.up.directory_lock import url_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from helixqueue.records.token import TokenRow

app = typer.Typer(
    no_args_is_help=True, help="Tokens of a service: create, list, rotate, revoke, link."
)

Name = Annotated[str, typer.Argument(metavar="NAME", help="The token's name, in the ledger too.")]
Days = Annotated[
    int, typer.Option("--days", help="How long it is good for.", min=1, max=tokens.DAYS_MAX)
]


def register(parent: typer.Typer) -> None:
    parent.add_typer(app, name="token")


@app.command("create")
@connection.over_http
def _create(
    name: Name,
    *,
    scope: Annotated[
        list[str],
        typer.Option("--scope", help=f"Any of {', '.join(tokens.SCOPES)}; again for more."),
    ],
    queue: Annotated[
        list[str] | None,
        typer.Option(
            "--queue",
            help="Submit and work on this queue only; again for more.",
            show_default=False,
        ),
    ] = None,
    days: Days = tokens.DAYS,
    actor: connection.Actor = None,
    tenant: connection.Tenant = None,
    dsn: connection.Dsn = None,
    data: connection.Data = None,
    as_json: connection.AsJson = False,
) -> None:
    """Make a token and show it, this once.

    Ends with 1 when the name was ever used: it stands for somebody in the ledger.
    """
    with connection.reached(dsn, data) as there:
        of = connection.tenant_to_change(there, tenant)
        made = _created(
            there, of, check_name("token", name), scopes=scope, queues=queue, days=days, actor=actor
        )
    if made is None:
        show.progress(f"{_whose(of)} has had a token {name}; rotate it, or take another name")
        raise typer.Exit(Exit.NO)
    _tell(made, as_json=as_json)


def _created(
    there: connection.Reached,
    of: str,
    name: str,
    *,
    scopes: list[str],
    queues: list[str] | None,
    days: int,
    actor: str | None,
) -> CreatedToken | None:
    if there.is_service:
        asked = http_tokens.create(name=name, scopes=scopes, queues=queues, days=days)
        return cast("CreatedToken | None", there.run(asked))
    made = tokens.new_token()
    created = there.run(
        tokens.create(
            tenant=of,
            name=name,
            token_hash=made.hash,
            scopes=scopes,
            queues=queues,
            expires_at=_in(days),
            actor=actor,
        )
    )
    if not created:
        return None
    return CreatedToken(made.token, there.run(tokens.list_tokens(tenant=of, name=name))[-1])


@app.command("list")
@connection.over_http
def _list(
    *,
    tenant: connection.Tenant = None,
    dsn: connection.Dsn = None,
    data: connection.Data = None,
    as_json: connection.AsJson = False,
) -> None:
    """List tokens: what they allow, until when, when last used."""
    with connection.reached(dsn, data) as there:
        of = connection.tenant_to_read(there, tenant)
        rows = list(_all(there, of))
    if as_json:
        show.as_json({"tokens": [asdict(row) for row in rows]})
        return
    show.table(
        ("tenant", "name", "generation", "scopes", "queues", "good", "until", "used"),
        [_row(row) for row in rows],
        ["" if row.good else "dim" for row in rows],
    )


def _all(there: connection.Reached, of: str | None) -> Iterator[TokenRow]:
    """Page by page."""
    listed: Any = http_tokens.list_tokens if there.is_service else tokens.list_tokens
    after = None
    while True:
        page = there.run(listed(tenant=of, after=after, limit=pages.PAGE_ROWS))
        yield from page
        if len(page) < pages.PAGE_ROWS:
            return
        last = page[-1]
        after = (last.tenant, last.name, last.generation)


@app.command("rotate")
@connection.over_http
def _rotate(
    name: Name,
    *,
    overlap: Annotated[
        float,
        typer.Option(
            "--overlap",
            help="Seconds that the old one goes on.",
            min=0,
            max=tokens.OVERLAP_SECONDS_MAX,
        ),
    ] = 86_400.0,
    days: Days = tokens.DAYS,
    actor: connection.Actor = None,
    tenant: connection.Tenant = None,
    dsn: connection.Dsn = None,
    data: connection.Data = None,
    as_json: connection.AsJson = False,
) -> None:
    """Make the next token of a name, and show it, this once.

    It has the same rights. Ends with 1 when there is none to rotate.
    """
    with connection.reached(dsn, data) as there:
        of = connection.tenant_to_change(there, tenant)
        made = _rotated(
            there, of, check_name("token", name), overlap=overlap, days=days, actor=actor
        )
    if made is None:
        show.progress(f"{_whose(of)} has no token {name} to rotate, or it was rotated just now")
        raise typer.Exit(Exit.NO)
    _tell(made, as_json=as_json)


def _rotated(
    there: connection.Reached, of: str, name: str, *, overlap: float, days: int, actor: str | None
) -> CreatedToken | None:
    if there.is_service:
        asked = http_tokens.rotate(name=name, days=days, overlap_seconds=overlap)
        return cast("CreatedToken | None", there.run(asked))
    made = tokens.new_token()
    generation = there.run(
        tokens.rotate(
            tenant=of,
            name=name,
            token_hash=made.hash,
            expires_at=_in(days),
            overlap_seconds=overlap,
            actor=actor,
        )
    )
    if generation is None:
        return None
    rows = there.run(tokens.list_tokens(tenant=of, name=name))
    return CreatedToken(made.token, next(row for row in rows if row.generation == generation))


@app.command("revoke")
@connection.over_http
def _revoke(
    name: Name,
    *,
    reason: connection.Reason,
    actor: connection.Actor = None,
    tenant: connection.Tenant = None,
    dsn: connection.Dsn = None,
    data: connection.Data = None,
    as_json: connection.AsJson = False,
) -> None:
    """End every token of a name, at once.

    Ends with 1 when none was good.
    """
    with connection.reached(dsn, data) as there:
        of = connection.tenant_named(there, tenant)
        ended = there.run(
            http_tokens.revoke(name=name, reason=reason)
            if there.is_service
            else tokens.revoke(tenant=of, name=name, reason=reason, actor=actor)
        )
    if as_json:
        show.as_json({"tenant": of, "name": name, "revoked": ended})
    else:
        show.line(f"{ended} tokens of the name {name} revoked")
    raise typer.Exit(Exit.OK if ended else Exit.NO)


@app.command("link")
@connection.over_http
def _link(
    *,
    at: Annotated[
        str | None,
        typer.Option(
            "--at",
            metavar="URL",
            help="Where people reach the service, else --url, else that of `helixq up`.",
            show_default=False,
        ),
    ] = None,
    actor: connection.Actor = None,
    tenant: connection.Tenant = None,
    dsn: connection.Dsn = None,
    data: connection.Data = None,
    as_json: connection.AsJson = False,
) -> None:
    """Make a link that logs a person in, once, within 15 minutes.

    Its token has every scope of the tenant and is good for 12 hours.
    """
    chosen = connection.chosen_service()
    if at is None and chosen is not None:
        at = chosen.url
    elif at is None and dsn is None:
        at = url_of(connection.data_directory(data))
    if at is None:
        raise typer.BadParameter("--at: expected the service's URL; no `helixq up` serves here")
    with connection.reached(dsn, data) as there:
        if there.is_service:
            login = there.run(http_tokens.offer_login())
        else:
            code = tokens.new_token("hl_")
            of = connection.tenant_to_change(there, tenant)
            until = there.run(tokens.offer_login(tenant=of, code_hash=code.hash, actor=actor))
            login = Login(code.token, of, until)
    link = f"{at.rstrip('/')}/login?code={login.code}"
    if as_json:
        show.as_json({"login": link, "tenant": login.tenant, "login_until": login.until})
        return
    show.progress(f"for tenant {login.tenant}; once, until {times.seconds(login.until)}")
    show.line(link)


def _in(days: int) -> datetime:
    return datetime.now(UTC) + timedelta(days=days)


def _whose(tenant: str) -> str:
    return f"tenant {tenant}" if tenant else "the tenant"


def _tell(made: CreatedToken, *, as_json: bool) -> None:
    if as_json:
        show.as_json({"token": made.token, **asdict(made.row)})
        return
    show.progress("shown this once: keep it where secrets are kept")
    show.line(made.token)


def _row(row: TokenRow) -> tuple[Any, ...]:
    return (
        row.tenant,
        row.name,
        str(row.generation),
        " ".join(row.scopes),
        "any" if row.queues is None else " ".join(row.queues),
        "yes" if row.good else "revoked" if row.revoked_at else "expired",
        times.seconds(row.expires_at),
        times.seconds(row.last_used_at),
    )
