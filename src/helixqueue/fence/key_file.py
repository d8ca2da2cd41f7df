"""The file that holds the signing keys of an operator or a service.

HELIX_KEY names it, else it is ~/.config/helixq.key. JSON, mode 0600, never in the database: a
person who can edit every row must not be able to sign. One key signs; earlier keys keep their
public part only, so that old signatures verify and a stolen old file signs nothing new.
"""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from helixqueue.errors import NotInstalled, Refused

if TYPE_CHECKING:
    from helixqueue.fence.ed25519 import Ed25519Signer

DEFAULT = Path("~/.config/helixq.key")


@dataclass(frozen=True, slots=True)
class SigningKey:
    """One key of a file; `retired_at` is None for the key that signs."""

    signer: Ed25519Signer
    created_at: str
    retired_at: str | None

    def public(self) -> dict[str, Any]:
        """The members that everyone may read."""
        return {
            "id": self.signer.key_id,
            "algorithm": self.signer.algorithm,
            "public": self.signer.public_bytes.hex(),
            "created_at": self.created_at,
            "retired_at": self.retired_at,
        }


def key_path(path: Path | None = None) -> Path:
    """The selected key file, which need not exist."""
    return (path or Path(os.environ.get("HELIX_KEY") or DEFAULT)).expanduser()


def find_keys(path: Path | None = None) -> tuple[SigningKey, ...]:
    """The keys of the file; none if there is no file and none was asked for."""
    if path is None and not os.environ.get("HELIX_KEY") and not key_path().exists():
        return ()
    return tuple(read_keys(path))


def find_signer(path: Path | None = None) -> Ed25519Signer | None:
    """The key that signs; None if there is no file and none was asked for."""
    keys = find_keys(path)
    return keys[-1].signer if keys else None


def read_keys(path: Path | None = None) -> list[SigningKey]:
    """The keys of a file, the one that signs last."""
    file = key_path(path)
    try:
        mode = stat.S_IMODE(file.stat().st_mode)
        if mode & 0o077:
            raise Refused(
                f"{file}: expected mode 0600, got {mode:04o}; other users could read the key: "
                f"chmod 600 {file}, then helixq key rotate"
            )
        return [_key(key) for key in json.loads(file.read_text(encoding="utf-8"))["keys"]]
    except FileNotFoundError:
        raise Refused(
            f"expected a key file, got {file}, which does not exist; make one with "
            "`helixq key create`"
        ) from None
    except (KeyError, TypeError, ValueError, OSError) as error:
        raise Refused(f"{file}: expected a key file of helixq key create, got {error!r}") from error


def create(path: Path | None = None) -> list[SigningKey]:
    """Make a new file with one key; an existing file is never overwritten."""
    keys = [SigningKey(_ed25519().generate(), _now(), None)]
    file = key_path(path)
    file.parent.mkdir(parents=True, exist_ok=True)
    try:
        descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        raise Refused(
            f"{file}: expected no file, got one; `helixq key rotate` replaces its key"
        ) from None
    _write(descriptor, keys)
    return keys


def rotate(path: Path | None = None) -> list[SigningKey]:
    """Add a new key that signs from now on; the private part of the former key is deleted."""
    file = key_path(path)
    now = _now()
    former = [
        SigningKey(_ed25519().from_public(key.signer.public_bytes), key.created_at, key.retired_at)
        for key in read_keys(path)
    ]
    former[-1] = SigningKey(former[-1].signer, former[-1].created_at, now)
    keys = [*former, SigningKey(_ed25519().generate(), now, None)]
    beside = file.with_name(f".{file.name}.{os.getpid()}")
    _write(os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), keys)
    beside.replace(file)
    return keys


def public_document(keys: Sequence[SigningKey]) -> dict[str, Any]:
    """The public parts, as `helixq key public` prints and the service publishes them."""
    return {"keys": [key.public() for key in keys]}


def publish_beside(file: Path, document: dict[str, Any]) -> Path | None:
    """Write a public document beside an export, as FILE.keys.json; None if it has no keys.

    It shows which keys verify the seals and receipts of that export. An edited export can come with
    other keys, so an auditor compares them with keys that were received another way.
    """
    if not document["keys"]:
        return None
    beside = file.with_name(f"{file.name}.keys.json")
    beside.write_text(json.dumps(document, indent=2) + "\n", encoding="utf-8")
    return beside


def read_public(path: Path) -> list[Ed25519Signer]:
    """Public keys from a file: the JSON of `helixq key public`, or 32 bytes, raw or in hex."""
    data = path.read_bytes()
    if len(data) == 32:
        return [_ed25519().from_public(data)]
    try:
        text = data.decode().strip()
        if not text.startswith("{"):
            return [_ed25519().from_public(bytes.fromhex(text))]
        return [
            _ed25519().from_public(bytes.fromhex(key["public"])) for key in json.loads(text)["keys"]
        ]
    except (KeyError, TypeError, ValueError) as error:
        raise Refused(f"{path}: expected public keys, got {error!r}") from error


def _key(document: dict[str, Any]) -> SigningKey:
    public = _ed25519().from_public(bytes.fromhex(document["public"]))
    signer = public
    if document["retired_at"] is None:
        signer = _ed25519().from_private(bytes.fromhex(document["private"]))
    if signer.key_id != public.key_id or document["id"] != public.key_id:
        raise ValueError("a private key that does not belong to its public key")
    return SigningKey(signer, document["created_at"], document["retired_at"])


def _write(descriptor: int, keys: Sequence[SigningKey]) -> None:
    document = public_document(keys)
    document["keys"][-1]["private"] = keys[-1].signer.private_bytes.hex()
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        file.write(json.dumps(document, indent=2) + "\n")
        file.flush()
        os.fsync(file.fileno())


def _ed25519() -> type[Ed25519Signer]:
    try:
        from helixqueue.fence.ed25519 import Ed25519Signer  # noqa: PLC0415 - an extra
    except ImportError as error:
        raise NotInstalled(error.name, "sign") from error
    return Ed25519Signer


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")
