"""`helixq key`: the file that signs receipts and seals."""

from __future__ import annotations

from typing import TYPE_CHECKING

import typer

from helixqueue.cli import connection, options, show
from helixqueue.cli.command import command
from helixqueue.fence import key_file

if TYPE_CHECKING:
    from helixqueue.fence.key_file import SigningKey

app = typer.Typer(no_args_is_help=True, help="Signing keys: create, list, public, rotate.")
NO_SERVICE = "a signing key is a file on this machine; a service has its own"


def register(parent: typer.Typer) -> None:
    parent.add_typer(app, name="key")


@command(app, "create", example="helixq key create")
@connection.without_service(NO_SERVICE)
def _create(*, key: options.Key = None, as_json: options.AsJson = False) -> None:
    """Create the key file: one Ed25519 key, readable by you alone.

    From then on `fence show` signs receipts and `seal` writes seals. Start the service with the
    same file, so that it signs as well. An existing file is not overwritten.
    """
    keys = key_file.create(key)
    if as_json:
        show.as_json(key_file.public_document(keys))
    else:
        show.line(f"key {keys[-1].signer.key_id} in {key_file.key_path(key)}", "green")
        show.progress("publish it: helixq key public; keep a copy of the file offline")


@command(app, "list", example="helixq key list")
@connection.without_service(NO_SERVICE)
def _list(*, key: options.Key = None, as_json: options.AsJson = False) -> None:
    """List the keys of the file, the one that signs last."""
    keys = key_file.read_keys(key)
    if as_json:
        show.as_json(key_file.public_document(keys))
    else:
        show.table(("key", "algorithm", "created", "retired", "signs"), [_row(k) for k in keys])


def _row(key: SigningKey) -> tuple[str, ...]:
    signs = "yes" if key.retired_at is None else "no"
    retired = key.retired_at or ""
    return (key.signer.key_id, key.signer.algorithm, key.created_at, retired, signs)


@command(app, "public", example="helixq key public > lab.pub")
@connection.without_service(NO_SERVICE)
def _public(*, key: options.Key = None, as_json: options.AsJson = False) -> None:  # noqa: ARG001
    """Print the public keys as JSON, for everyone who verifies.

    `receipt verify --public-key` and `check --against` read this output. Retired keys are included:
    they verify what they signed.
    """
    show.as_json(key_file.public_document(key_file.read_keys(key)))


@command(app, "rotate", example="helixq key rotate")
@connection.without_service(NO_SERVICE)
def _rotate(*, key: options.Key = None, as_json: options.AsJson = False) -> None:
    """Replace the signing key.

    The private part of the former key is deleted; its signatures stay valid. Restart the service,
    then publish the public keys again.
    """
    keys = key_file.rotate(key)
    if as_json:
        show.as_json(key_file.public_document(keys))
    else:
        retired, current = keys[-2].signer.key_id, keys[-1].signer.key_id
        show.line(f"key {current} signs from now on; {retired} only verifies", "green")
