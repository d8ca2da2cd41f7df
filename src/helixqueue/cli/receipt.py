"""`helixq receipt verify`."""

from __future__ import annotations

import json
import sys
from pathlib import Path  # noqa: TC003 - Typer reads it
from typing import TYPE_CHECKING, Annotated, Any

import typer

from helixqueue.cli import connection, show
from helixqueue.cli.exits import Exit
from helixqueue.errors import NotInstalled, Refused
from helixqueue.fence.receipt import HmacSigner, verify
from helixqueue.identity import key_bytes
from helixqueue.states import FenceState

if TYPE_CHECKING:
    from helixqueue.fence.receipt import Signer

app = typer.Typer(no_args_is_help=True, help="Receipts: verify.")


def register(parent: typer.Typer) -> None:
    parent.add_typer(app, name="receipt")


@app.callback()
def _receipts() -> None:
    """Receipts: verify."""


@app.command("verify")
def _verify(
    receipt: Annotated[
        str,
        typer.Argument(metavar="FILE", help="JSON of a receipt or of `fence show`; - for stdin."),
    ],
    *,
    answer: Annotated[
        Path | None,
        typer.Option("--answer", metavar="FILE", help="The sealed bytes.", show_default=False),
    ] = None,
    public_key: Annotated[
        Path | None,
        typer.Option(
            "--public-key", metavar="FILE", help="Ed25519, 32 bytes or hex.", show_default=False
        ),
    ] = None,
    secret: Annotated[
        Path | None,
        typer.Option("--secret", metavar="FILE", help="HMAC secret, bytes.", show_default=False),
    ] = None,
    key_id: Annotated[str, typer.Option("--key-id", help="Of the signature's key.")] = "1",
    recorded: Annotated[
        bool,
        typer.Option("--recorded", help="Also look whether it is on record, at --url or another."),
    ] = False,
    url: connection.Url = None,
    token: connection.Token = None,
    dsn: connection.Dsn = None,
    data: connection.Data = None,
    as_json: connection.AsJson = False,
) -> None:
    """Verify that a receipt proves what it says.

    Offline, unless --recorded. Ends with 1 when it does not.
    """
    if public_key is not None and secret is not None:
        raise typer.BadParameter("give --public-key or --secret, not both")
    if not recorded and (url or token or dsn or data):
        raise typer.BadParameter(
            "a receipt is verified offline; add --recorded to look at --url, --dsn or --data, too"
        )
    document = _document(receipt)
    faults = verify(
        document,
        signer=_signer(public_key, secret, key_id),
        answer=None if answer is None else answer.read_bytes(),
    )
    if recorded and not faults:
        with connection.use(connection.service(url, token, dsn, data)):
            faults = _not_on_record(document, dsn, data)
    if as_json:
        show.as_json({"ok": not faults, "id": document.get("id"), "faults": faults})
    elif faults:
        for fault in faults:
            show.line(fault, "bold red")
    else:
        show.line(f"{document['id']} proves the effect of {document['name']}", "green")
    raise typer.Exit(Exit.NO if faults else Exit.OK)


def _not_on_record(document: dict[str, Any], dsn: str | None, data: Path | None) -> list[str]:
    """What a database or a service says of the fence that the receipt is about."""
    with connection.reached(dsn, data) as there:
        row = there.run(there.fences.find_fence(key_bytes(document["key"])))
    if row is None:
        return ["no fence has this key, among those that may be seen there: forgotten, or never"]
    if row.state is not FenceState.SEALED or row.receipt is None:
        return [f"on record the fence is {row.state}, and has no receipt"]
    if f"r1:{row.receipt.hex()}" != document["id"]:
        return ["on record the fence has another receipt"]
    return []


def _document(receipt: str) -> dict[str, Any]:
    try:
        text = sys.stdin.read() if receipt == "-" else _read(receipt)
        document = json.loads(text)
    except (OSError, ValueError) as error:
        raise Refused(f"expected a receipt as JSON in {receipt}, got {error}") from error
    if isinstance(document, dict) and isinstance(document.get("receipt"), dict):
        document = document["receipt"]  # what `fence show --json` prints
    if not isinstance(document, dict):
        raise Refused(f"expected a receipt as a JSON object, got {type(document).__name__}")
    return document


def _read(name: str) -> str:
    with open(name, encoding="utf-8") as file:  # noqa: PTH123 - as it was typed
        return file.read()


def _signer(public_key: Path | None, secret: Path | None, key_id: str) -> Signer | None:
    if secret is not None:
        return HmacSigner(secret.read_bytes(), key_id)
    if public_key is None:
        return None
    try:
        from helixqueue.fence.ed25519 import Ed25519Signer  # noqa: PLC0415 - an extra
    except ImportError as error:
        raise NotInstalled(error.name, "sign") from error
    data = public_key.read_bytes()
    return Ed25519Signer.from_public(
        data if len(data) == 32 else bytes.fromhex(data.decode().strip()), key_id
    )
