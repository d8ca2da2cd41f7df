"""`helixq token create | list | rotate | revoke | link`."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

import typer

from helixqueue.cli import connection, operation, options, show, times
from helixqueue.cli.command import command
from helixqueue.cli.derived_commands import verb
from helixqueue.cli.options import option
from helixqueue.cli.up_options import DEMO_DATA
from helixqueue.operations import tokens
from helixqueue.up.directory_lock import running_up

if TYPE_CHECKING:
    from helixqueue.records.page import Page
    from helixqueue.records.token import CreatedToken, RevokedTokens, TokenRow

app = typer.Typer(
    no_args_is_help=True, help="Tokens of a service: create, list, rotate, revoke, link."
)


def register(parent: typer.Typer) -> None:
    parent.add_typer(app, name="token")


@verb(
    app,
    "create",
    tokens.create_token,
    example="helixq token create uploader --scope submit --queue basecall",
)
def _create(created: CreatedToken) -> None:
    _print_token(created)


@verb(app, "list", tokens.list_tokens, example="helixq token list", every_tenant=True)
def _list(page: Page[TokenRow]) -> None:
    show.table(
        ("tenant", "name", "generation", "scopes", "queues", "status", "expires", "last used"),
        [_row(row) for row in page.rows],
        ["" if row.good else "dim" for row in page.rows],
        empty="no tokens",
        first="name",
        optional=("tenant", "last used", "generation"),
    )


@verb(app, "rotate", tokens.rotate_token, example="helixq token rotate uploader --overlap 3600")
def _rotate(created: CreatedToken) -> None:
    _print_token(created)


@verb(
    app,
    "revoke",
    tokens.revoke_token,
    example='helixq token revoke uploader --reason "laptop lost"',
)
def _revoke(answer: RevokedTokens) -> None:
    plural = "" if answer.revoked == 1 else "s"
    show.line(f"revoked {answer.revoked} token{plural} named {answer.name}")


@command(app, "link", example="helixq token link --name ada")
@connection.service_or_database
def _link(
    *,
    at: Annotated[
        str | None,
        option(
            "--at URL", "Public URL of the service. [default: --url, or the URL of `helixq up`]"
        ),
    ] = None,
    name: Annotated[
        str | None, option("--name NAME", "Person who logs in; recorded with actions.")
    ] = None,
    scope: Annotated[
        list[str] | None, option("--scope SCOPE", "What the person may do; repeatable.")
    ] = None,
    actor: options.Actor = None,
    tenant: options.Tenant = None,
    as_json: options.AsJson = False,
) -> None:
    """Create a login link for the dashboard.

    It is valid once, for 15 minutes. The session lasts 12 hours and has every scope of the tenant
    unless --scope is given.
    """
    service, dsn, data = connection.selected()
    if at is None and service is not None:
        at = service.url
    elif at is None and dsn is None:
        directory = connection.data_directory(data)
        running = running_up(directory)
        if running.url is None and data is None:  # `make run` has a directory of its own
            directory, running = DEMO_DATA, running_up(DEMO_DATA)
        at, tenant, data = running.url, tenant or running.tenant, directory
    if at is None:
        raise typer.BadParameter(
            "--at: expected the URL of the service; no `helixq up` runs in this directory"
        )
    scopes: Any = scope or None
    offer = partial(tokens.offer_login, name=name, scopes=scopes)
    with (
        connection.using(connection.Selected(service, dsn, data)),
        connection.open_target() as target,
    ):
        login = operation.run(target, tenant, actor, offer)
    link = f"{at.rstrip('/')}/login?code={login.code}"
    if as_json:
        show.as_json({"login": link, "tenant": login.tenant, "login_until": login.until})
        return
    show.progress(f"tenant {login.tenant}; valid once, until {times.to_seconds(login.until)}")
    show.line(link)


def _print_token(created: CreatedToken) -> None:
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
