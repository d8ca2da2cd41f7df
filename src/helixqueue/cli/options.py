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


def option(flag: str, text: str, *, env: str | None = None, **more: Any) -> Any:  # noqa: ANN401
    """An option, such as `--limit N`, with its help; `env` is the variable that also sets it."""
    name, _, metavar = flag.partition(" ")
    if env is not None:
        more |= {"envvar": env, "show_envvar": False}
        text = text if "[env: " in text else f"{text} [env: {env}]"
    return typer.Option(name, metavar=metavar or None, help=text, **more)


def argument(metavar: str, text: str) -> Any:  # noqa: ANN401 - as Typer declares it
    """An argument with its help."""
    return typer.Argument(metavar=metavar, help=text)


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


def redis_url(url: str) -> str:
    from helixqueue.intake.settings import check_redis_url  # noqa: PLC0415 - few commands need it

    try:
        return check_redis_url(url)
    except Refused as error:
        raise typer.BadParameter(str(error).removeprefix("redis: ")) from None


Dsn = Annotated[str | None, option("--dsn DSN", "Use this PostgreSQL. [env: HELIX_DSN]")]
Data = Annotated[
    Path | None,
    option(
        "--data DIR",
        "Use the embedded servers in this directory. [env: HELIX_DATA, default: ./helix-data]",
        parser=_directory,
    ),
]
Url = Annotated[str | None, option("--url URL", "Use this HTTP service. [env: HELIX_URL]")]
Token = Annotated[
    str | None,
    option(
        "--token TOKEN",
        "Token for --url. Prefer the environment: process lists show arguments. [env: HELIX_TOKEN]",
    ),
]
Tenant = Annotated[
    str | None,
    option(
        "--tenant NAME",
        "Tenant. [env: HELIX_TENANT, default: the only tenant of the login]",
        env="HELIX_TENANT",
    ),
]
BatchRef = Annotated[str, argument("BATCH", "Batch: id, key or identity.")]
AsJson = Annotated[bool, option("--json", "Print JSON.")]
Actor = Annotated[
    str | None,
    option("--actor NAME", "Name to record as the author. [default: the database login]"),
]
Reason = Annotated[
    str,
    option("--reason TEXT", "Reason to record in the ledger.", parser=_reason, show_default=False),
]
Limit = Annotated[int, option("--limit N", "Maximum number of rows.", min=1, max=LIMIT_MAX)]
ActionLimit = Annotated[
    int | None,
    option(
        "--limit N",
        "Maximum number of batches that filters select. [default: all]",
        min=1,
        max=LIMIT_MAX,
    ),
]
After = Annotated[str | None, option("--after CURSOR", "Continue after this cursor.")]
Key = Annotated[
    Path | None, option("--key FILE", "Key file. [env: HELIX_KEY, default: ~/.config/helixq.key]")
]
PublicKey = Annotated[
    Path | None,
    option(
        "--public-key FILE",
        "Public keys: the output of `key public`, or 32 bytes, raw or in hex. "
        "[default: those of the key file]",
    ),
]
TIME_HELP = "such as 2026-03-01T08:00 or 2h (2 hours ago)"
