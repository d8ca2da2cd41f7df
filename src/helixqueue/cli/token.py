"""`helixq token create | list | rotate | revoke | link`."""

from __future__ import annotations

from dataclasses import asdict
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer

from helixqueue.cli import connection, options, pages, show, times
from helixqueue.cli.command import command
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

Name = Annotated[str, typer.Argument(metavar="NAME", help="Name of the token, also in the ledger.")]
Days = Annotated[
    int,
    typer.Option("--days", metavar="N", help="Days until it expires.", min=1, max=tokens.DAYS_MAX),
]


def register(parent: typer.Typer) -> None:
    parent.add_typer(app, name="token")


@command(app, "create", example="helixq token create uploader --scope submit --queue basecall")
@connection.service_or_database
def _create(
    name: Name,
    *,
    scope: Annotated[
        list[str],
        typer.Option(
            "--scope",
            metavar="SCOPE",
            help=f"{', '.join(tokens.SCOPES)}; repeat for several.",
        ),
    ],
    queue: Annotated[
        list[str] | None,
        typer.Option(
            "--queue",
            metavar="NAME",
            help="Restrict submit and work to this queue; repeat for several.",
        ),
    ] = None,
    days: Days = tokens.DAYS,
    actor: options.Actor = None,
    tenant: options.Tenant = None,
    as_json: options.AsJson = False,
) -> None:
    """Create a token and print it once.

    Exit code 1: the name was used before. The ledger identifies token holders by name, so a name is
    never reused.
    """
    with connection.open_target() as target:
        owner = connection.tenant_to_change(target, tenant)
        created = _create_token(
            target,
            owner,
            check_name("token", name),
            scopes=scope,
            queues=queue,
            days=days,
            actor=actor,
        )
    if created is None:
        show.progress(
            f"{_tenant_text(owner)} already used the token name {name}; rotate it, or choose "
            "another name"
        )
        raise typer.Exit(Exit.NO)
    _print_token(created, as_json=as_json)


def _create_token(
    target: connection.Target,
    tenant: str,
    name: str,
    *,
    scopes: list[str],
    queues: list[str] | None,
    days: int,
    actor: str | None,
) -> CreatedToken | None:
    if target.is_service:
        call = http_tokens.create(name=name, scopes=scopes, queues=queues, days=days)
        return cast("CreatedToken | None", target.run(call))
    new = tokens.new_token()
    is_new = target.run(
        tokens.create(
            tenant=tenant,
            name=name,
            token_hash=new.hash,
            scopes=scopes,
            queues=queues,
            expires_at=_days_from_now(days),
            actor=actor,
        )
    )
    if not is_new:
        return None
    return CreatedToken(new.token, target.run(tokens.list_tokens(tenant=tenant, name=name))[-1])


@command(app, "list", example="helixq token list")
@connection.service_or_database
def _list(
    *,
    tenant: options.Tenant = None,
    as_json: options.AsJson = False,
) -> None:
    """List tokens with scopes, expiry and last use."""
    with connection.open_target() as target:
        rows = list(_read_all(target, connection.tenant_to_read(target, tenant)))
    if as_json:
        show.as_json({"tokens": [asdict(row) for row in rows]})
        return
    show.table(
        ("tenant", "name", "generation", "scopes", "queues", "status", "expires", "last used"),
        [_row(row) for row in rows],
        ["" if row.good else "dim" for row in rows],
        empty="no tokens",
    )


def _read_all(target: connection.Target, tenant: str | None) -> Iterator[TokenRow]:
    listed: Any = http_tokens.list_tokens if target.is_service else tokens.list_tokens
    after = None
    while True:
        page = target.run(listed(tenant=tenant, after=after, limit=pages.PAGE_ROWS))
        yield from page
        if len(page) < pages.PAGE_ROWS:
            return
        last = page[-1]
        after = (last.tenant, last.name, last.generation)


@command(app, "rotate", example="helixq token rotate uploader --overlap 3600")
@connection.service_or_database
def _rotate(
    name: Name,
    *,
    overlap: Annotated[
        float,
        typer.Option(
            "--overlap",
            metavar="SECONDS",
            help="How long the previous token stays valid.",
            min=0,
            max=tokens.OVERLAP_SECONDS_MAX,
        ),
    ] = 86_400.0,
    days: Days = tokens.DAYS,
    actor: options.Actor = None,
    tenant: options.Tenant = None,
    as_json: options.AsJson = False,
) -> None:
    """Replace a token with a new one and print it once.

    Name, scopes and queues stay the same. Exit code 1: there is no valid token of that name.
    """
    with connection.open_target() as target:
        owner = connection.tenant_to_change(target, tenant)
        rotated = _rotate_token(
            target, owner, check_name("token", name), overlap=overlap, days=days, actor=actor
        )
    if rotated is None:
        show.progress(
            f"{_tenant_text(owner)} has no valid token {name}, or another call has just rotated it"
        )
        raise typer.Exit(Exit.NO)
    _print_token(rotated, as_json=as_json)


def _rotate_token(
    target: connection.Target,
    tenant: str,
    name: str,
    *,
    overlap: float,
    days: int,
    actor: str | None,
) -> CreatedToken | None:
    if target.is_service:
        call = http_tokens.rotate(name=name, days=days, overlap_seconds=overlap)
        return cast("CreatedToken | None", target.run(call))
    new = tokens.new_token()
    generation = target.run(
        tokens.rotate(
            tenant=tenant,
            name=name,
            token_hash=new.hash,
            expires_at=_days_from_now(days),
            overlap_seconds=overlap,
            actor=actor,
        )
    )
    if generation is None:
        return None
    rows = target.run(tokens.list_tokens(tenant=tenant, name=name))
    return CreatedToken(new.token, next(row for row in rows if row.generation == generation))


@command(app, "revoke", example='helixq token revoke uploader --reason "laptop lost"')
@connection.service_or_database
def _revoke(
    name: Name,
    *,
    reason: options.Reason,
    actor: options.Actor = None,
    tenant: options.Tenant = None,
    as_json: options.AsJson = False,
) -> None:
    """Revoke every token of a name at once.

    Exit code 1: no token of that name was valid.
    """
    with connection.open_target() as target:
        owner = connection.tenant_name(target, tenant)
        revoked = target.run(
            http_tokens.revoke(name=name, reason=reason)
            if target.is_service
            else tokens.revoke(tenant=owner, name=name, reason=reason, actor=actor)
        )
    if as_json:
        show.as_json({"tenant": owner, "name": name, "revoked": revoked})
    else:
        show.line(f"revoked {revoked} token{'' if revoked == 1 else 's'} named {name}")
    raise typer.Exit(Exit.OK if revoked else Exit.NO)


@command(app, "link", example="helixq token link")
@connection.service_or_database
def _link(
    *,
    at: Annotated[
        str | None,
        typer.Option(
            "--at",
            metavar="URL",
            help="Public URL of the service. [default: --url, or the URL of `helixq up`]",
        ),
    ] = None,
    actor: options.Actor = None,
    tenant: options.Tenant = None,
    as_json: options.AsJson = False,
) -> None:
    """Create a login link that is valid once, for 15 minutes.

    The session has every scope of the tenant and lasts 12 hours.
    """
    service, dsn, data = connection.selected()
    if at is None and service is not None:
        at = service.url
    elif at is None and dsn is None:
        at = url_of(connection.data_directory(data))
    if at is None:
        raise typer.BadParameter(
            "--at: expected the URL of the service; no `helixq up` runs in this directory"
        )
    with connection.open_target() as target:
        if target.is_service:
            login = target.run(http_tokens.offer_login())
        else:
            code = tokens.new_token("hl_")
            owner = connection.tenant_to_change(target, tenant)
            until = target.run(tokens.offer_login(tenant=owner, code_hash=code.hash, actor=actor))
            login = Login(code.token, owner, until)
    link = f"{at.rstrip('/')}/login?code={login.code}"
    if as_json:
        show.as_json({"login": link, "tenant": login.tenant, "login_until": login.until})
        return
    show.progress(f"tenant {login.tenant}; valid once, until {times.to_seconds(login.until)}")
    show.line(link)


def _days_from_now(days: int) -> datetime:
    return datetime.now(UTC) + timedelta(days=days)


def _tenant_text(tenant: str) -> str:
    return f"tenant {tenant}" if tenant else "the tenant"


def _print_token(created: CreatedToken, *, as_json: bool) -> None:
    if as_json:
        show.as_json({"token": created.token, **asdict(created.row)})
        return
    show.progress("this token is shown only once; store it as a secret")
    show.line(created.token)


def _row(row: TokenRow) -> tuple[Any, ...]:
    return (
        row.tenant,
        row.name,
        str(row.generation),
        " ".join(row.scopes),
        "any" if row.queues is None else " ".join(row.queues),
        "valid" if row.good else "revoked" if row.revoked_at else "expired",
        times.to_seconds(row.expires_at),
        times.to_seconds(row.last_used_at),
    )
