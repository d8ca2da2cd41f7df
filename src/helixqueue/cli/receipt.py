"""`helixq receipt verify`."""

from __future__ import annotations

import json
import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from helixqueue.cli import connection, operation, options, show
from helixqueue.cli.command import command
from helixqueue.cli.exits import Exit
from helixqueue.cli.options import argument, option
from helixqueue.errors import NoSuchFence, Refused
from helixqueue.fence import key_file
from helixqueue.fence import operations as fences
from helixqueue.fence.receipt import Verification, verify
from helixqueue.fence.signing import HmacSigner

if TYPE_CHECKING:
    from collections.abc import Sequence

    from helixqueue.fence.signing import Signer

# Exit code of each answer.
_EXITS = {"yes": Exit.OK, "no": Exit.NO, "unsigned": Exit.UNSIGNED}

app = typer.Typer(no_args_is_help=True, help="Receipts: verify.")


def register(parent: typer.Typer) -> None:
    parent.add_typer(app, name="receipt")


@app.callback()
def _receipts() -> None:
    """Receipts: verify."""


AnswerOption = Annotated[
    Path | None, option("--answer FILE", "The sealed result, to verify its digest.")
]


@command(app, "verify", example="helixq receipt verify receipt.json")
def _verify(
    receipt: Annotated[
        str, argument("FILE", "JSON of a receipt or of `fence show`; - is standard input.")
    ],
    *,
    answer: AnswerOption = None,
    public_key: options.PublicKey = None,
    secret: Annotated[Path | None, option("--secret FILE", "HMAC secret, raw bytes.")] = None,
    key_id: Annotated[str, option("--key-id ID", "Id of the HMAC secret.")] = "1",
    recorded: Annotated[
        bool, option("--recorded", "Also compare with the record of --url, --dsn or --data.")
    ] = False,
    url: options.Url = None,
    token: options.Token = None,
    dsn: options.Dsn = None,
    data: options.Data = None,
    as_json: options.AsJson = False,
) -> None:
    """Verify a receipt: yes, no or unsigned.

    Works offline; with --recorded, also asks a service or database. *yes* proves the effect: a
    known key signed the whole receipt. Without a signature or a key the receipt is only consistent,
    which anyone can make. Exit code 1: no; 10: unsigned.
    """
    if public_key is not None and secret is not None:
        raise typer.BadParameter("expected --public-key or --secret, got both")
    if not recorded and (url or token or dsn or data):
        raise typer.BadParameter(
            "a receipt is verified offline; add --recorded to compare with --url, --dsn or --data"
        )
    document = _document(receipt)
    keys = _keys(public_key, secret, key_id)
    verified = verify(document, keys=keys, answer=None if answer is None else answer.read_bytes())
    if recorded and not verified.faults:
        service = connection.select_service(url, token, dsn, data)
        with connection.using(connection.Selected(service, dsn, data)):
            faults = _compare_with_record(document)
        verified = Verification("no", faults) if faults else verified
    if as_json:
        show.as_json(
            {
                "ok": verified.answer == "yes",
                "answer": verified.answer,
                "id": document.get("id"),
                "faults": verified.faults,
            }
        )
    else:
        _print(document, verified, has_keys=bool(keys))
    raise typer.Exit(_EXITS[verified.answer])


def _print(document: dict[str, Any], verified: Verification, *, has_keys: bool) -> None:
    if verified.answer == "yes":
        signature = document["signature"]
        show.line(
            f"yes: {document['id']} proves the effect of {document['name']}; signed by "
            f"{signature['algorithm']} key {signature['key_id']}",
            "green",
        )
    elif verified.answer == "no":
        for fault in verified.faults:
            show.line(f"no: {fault}", "bold red")
    else:
        lacks = "it has no signature" if has_keys else "no public key is known"
        show.line(f"unsigned: {document['id']} is consistent, but {lacks}", "yellow")


def _compare_with_record(document: dict[str, Any]) -> list[str]:
    """How the recorded fence differs from the receipt."""
    with connection.open_target() as target:
        show_fence = partial(fences.show_fence, fence=document["key"])
        try:
            row = operation.run(target, None, None, show_fence, every_tenant=True)
        except NoSuchFence:
            return [
                "no fence with this key is visible: it was deleted by retention, or never existed"
            ]
    if row.receipt is None:
        return [f"the recorded fence is {row.state} and has no receipt"]
    return [] if row.receipt == document["id"] else ["the recorded fence has another receipt"]


def _document(receipt: str) -> dict[str, Any]:
    try:
        text = sys.stdin.read() if receipt == "-" else _read(receipt)
        document = json.loads(text)
    except (OSError, ValueError) as error:
        raise Refused(f"expected a receipt as JSON in {receipt}, got {error}") from error
    if isinstance(document, dict) and isinstance(document.get("receipt_document"), dict):
        document = document["receipt_document"]  # what `fence show --json` prints
    if not isinstance(document, dict):
        raise Refused(f"expected a receipt as a JSON object, got {type(document).__name__}")
    return document


def _read(name: str) -> str:
    with open(name, encoding="utf-8") as file:  # noqa: PTH123 - the name as typed
        return file.read()


def _keys(public_key: Path | None, secret: Path | None, key_id: str) -> Sequence[Signer]:
    if secret is not None:
        return [HmacSigner(secret.read_bytes(), key_id)]
    if public_key is not None:
        return key_file.read_public(public_key)
    return [key.signer for key in key_file.find_keys()]
