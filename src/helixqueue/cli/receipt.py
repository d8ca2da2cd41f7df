"""`helixq receipt verify`."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from helixqueue.cli import connection, options, show
from helixqueue.cli.command import command
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


AnswerOption = Annotated[
    Path | None,
    typer.Option(
        "--answer",
        metavar="FILE",
        help="The sealed result, to verify its digest.",
        show_default=False,
    ),
]


@command(app, "verify", example="helixq receipt verify receipt.json")
def _verify(
    receipt: Annotated[
        str,
        typer.Argument(
            metavar="FILE", help="JSON of a receipt or of `fence show`; - is standard input."
        ),
    ],
    *,
    answer: AnswerOption = None,
    public_key: Annotated[
        Path | None,
        typer.Option(
            "--public-key",
            metavar="FILE",
            help="Ed25519 public key: 32 bytes, raw or in hex.",
            show_default=False,
        ),
    ] = None,
    secret: Annotated[
        Path | None,
        typer.Option(
            "--secret", metavar="FILE", help="HMAC secret, raw bytes.", show_default=False
        ),
    ] = None,
    key_id: Annotated[
        str, typer.Option("--key-id", metavar="ID", help="Id of the signing key.")
    ] = "1",
    recorded: Annotated[
        bool,
        typer.Option(
            "--recorded",
            help="Also compare with the record of --url, --dsn or --data.",
        ),
    ] = False,
    url: options.Url = None,
    token: options.Token = None,
    dsn: options.Dsn = None,
    data: options.Data = None,
    as_json: options.AsJson = False,
) -> None:
    """Verify a receipt.

    Works offline; with --recorded, also asks a service or database. Exit code 1: not valid.
    """
    if public_key is not None and secret is not None:
        raise typer.BadParameter("expected --public-key or --secret, got both")
    if not recorded and (url or token or dsn or data):
        raise typer.BadParameter(
            "a receipt is verified offline; add --recorded to compare with --url, --dsn or --data"
        )
    document = _document(receipt)
    faults = verify(
        document,
        signer=_signer(public_key, secret, key_id),
        answer=None if answer is None else answer.read_bytes(),
    )
    if recorded and not faults:
        with connection.using_service(connection.select_service(url, token, dsn, data)):
            faults = _compare_with_record(document, dsn, data)
    if as_json:
        show.as_json({"ok": not faults, "id": document.get("id"), "faults": faults})
    elif faults:
        for fault in faults:
            show.line(fault, "bold red")
    else:
        show.line(f"{document['id']} proves the effect of {document['name']}", "green")
    raise typer.Exit(Exit.NO if faults else Exit.OK)


def _compare_with_record(document: dict[str, Any], dsn: str | None, data: Path | None) -> list[str]:
    """How the recorded fence differs from the receipt."""
    with connection.open_target(dsn, data) as target:
        row = target.run(target.fences.find_fence(key_bytes(document["key"])))
    if row is None:
        return ["no fence with this key is visible: it was deleted by retention, or never existed"]
    if row.state is not FenceState.SEALED or row.receipt is None:
        return [f"the recorded fence is {row.state} and has no receipt"]
    if f"r1:{row.receipt.hex()}" != document["id"]:
        return ["the recorded fence has another receipt"]
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
    with open(name, encoding="utf-8") as file:  # noqa: PTH123 - the name as typed
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
