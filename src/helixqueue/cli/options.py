"""Options that several commands share."""

from __future__ import annotations

import os
import shlex
from pathlib import Path
from typing import Annotated, Any

import typer

from helixqueue.errors import InvalidPayload, Refused
from helixqueue.identity import loads
from helixqueue.queues import checked_requires

DEFAULT_TENANT = "default"  # the default of the Python clients, too
LIMIT_MAX = 100_000


def _directory(path: str | Path) -> Path:
    """Path("") is the working directory, which `--data "$UNSET"` must not select."""
    if not os.fspath(path):
        raise typer.BadParameter("expected a directory, got an empty name")
    return Path(path)


def _reason(text: str) -> str:
    if not text.strip():
        raise typer.BadParameter("expected a reason for the ledger, got an empty text")
    return text


def shell_command(text: str) -> str:
    """A program and its arguments, quoted as in a shell."""
    try:
        words = shlex.split(text)
    except ValueError as error:
        raise typer.BadParameter(
            f"expected a command with balanced quotes, got {text!a} ({str(error).lower()})"
        ) from None
    if not words:
        raise typer.BadParameter("expected a command, got an empty text")
    return text


def parse_resources(option: str, text: str) -> dict[str, Any]:
    """The JSON object of --requires or --free."""
    return checked_requires(parse_object(option, text), option)


def parse_object(option: str, text: str) -> dict[str, Any]:
    """Read a JSON object, or a file that contains one."""
    try:
        is_file = not text.lstrip().startswith("{") and Path(text).is_file()
        value = loads(Path(text).read_bytes() if is_file else text)
    except InvalidPayload as error:
        raise typer.BadParameter(f"{option}: {error}") from None
    if not isinstance(value, dict):
        raise typer.BadParameter(f'{option}: expected an object such as {{"gpus": 1}}')
    return value


def _resubmit_rule(text: str) -> str:
    if text not in {"answer", "retry"}:
        raise typer.BadParameter(f"expected answer or retry, got {text!r}")
    return text


def redis_url(url: str) -> str:
    from helixqueue.intake.settings import check_redis_url  # noqa: PLC0415 - few commands need it

    try:
        return check_redis_url(url)
    except Refused as error:
        raise typer.BadParameter(str(error).removeprefix("redis: ")) from None


ResubmitFailed = Annotated[
    str | None,
    typer.Option(
        "--resubmit-failed",
        metavar="RULE",
        parser=_resubmit_rule,
        help="What a new source does to a FAILED batch: answer (nothing) or retry.",
    ),
]
Dsn = Annotated[
    str | None, typer.Option("--dsn", metavar="DSN", help="Use this PostgreSQL. [env: HELIX_DSN]")
]
Data = Annotated[
    Path | None,
    typer.Option(
        "--data",
        metavar="DIR",
        parser=_directory,
        help="Use the embedded servers in this directory. [env: HELIX_DATA, default: ./helix-data]",
    ),
]
Url = Annotated[
    str | None, typer.Option("--url", metavar="URL", help="Use this HTTP service. [env: HELIX_URL]")
]
Token = Annotated[
    str | None,
    typer.Option(
        "--token",
        metavar="TOKEN",
        help="Token for --url. Prefer the environment: process lists show arguments. "
        "[env: HELIX_TOKEN]",
    ),
]
Tenant = Annotated[
    str | None,
    typer.Option(
        "--tenant",
        metavar="NAME",
        envvar="HELIX_TENANT",
        show_envvar=False,
        help="Tenant. [env: HELIX_TENANT, default: the only tenant of the login]",
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Actor = Annotated[
    str | None,
    typer.Option(
        "--actor",
        metavar="NAME",
        help="Name to record as the author. [default: the database login]",
    ),
]
Reason = Annotated[
    str,
    typer.Option(
        "--reason",
        metavar="TEXT",
        parser=_reason,
        help="Reason to record in the ledger.",
        show_default=False,
    ),
]
Limit = Annotated[
    int,
    typer.Option("--limit", metavar="N", min=1, max=LIMIT_MAX, help="Maximum number of rows."),
]
ActionLimit = Annotated[
    int | None,
    typer.Option(
        "--limit",
        metavar="N",
        min=1,
        max=LIMIT_MAX,
        help="Maximum number of batches that filters select. [default: all]",
    ),
]
After = Annotated[
    str | None, typer.Option("--after", metavar="CURSOR", help="Continue after this cursor.")
]
Key = Annotated[
    Path | None,
    typer.Option(
        "--key", metavar="FILE", help="Key file. [env: HELIX_KEY, default: ~/.config/helixq.key]"
    ),
]
PublicKey = Annotated[
    Path | None,
    typer.Option(
        "--public-key",
        metavar="FILE",
        help="Public keys: the output of `key public`, or 32 bytes, raw or in hex. "
        "[default: those of the key file]",
    ),
]
TIME_HELP = "such as 2026-03-01T08:00 or 2h (2 hours ago)"
