"""The secrets of a worker, by name, from a file that only its user can read.

```yaml
s3:                         # the name of a secret
  AWS_ACCESS_KEY_ID: "..."  # its keys and their texts
```

Or a directory with a directory per secret and a file per key, as Kubernetes mounts them. It is
read for each attempt, so that a change needs no restart. No message has a value.
"""

from __future__ import annotations

import stat
from typing import TYPE_CHECKING, Any, NamedTuple

import yaml

from helixqueue.errors import Refused

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from helixqueue.runs.spec import SecretUse

MASKED_CHARS_MIN = 4
MASK = "[secret]"


class Secrets(NamedTuple):
    """What a command gets: variables, and files by directory and name."""

    variables: dict[str, str]
    files: dict[str, dict[str, str]]

    def mask(self, text: str) -> str:
        """A text without the secrets, also those that appear line by line."""
        values = [*self.variables.values(), *(v for d in self.files.values() for v in d.values())]
        lines = {line.strip() for value in values for line in (value, *value.splitlines())}
        for line in sorted(lines, key=len, reverse=True):
            if len(line) >= MASKED_CHARS_MIN:
                text = text.replace(line, MASK)
        return text


def resolve(uses: Sequence[SecretUse], path: Path | None) -> Secrets:
    """The secrets that a spec names; `Refused` if one is missing and not optional."""
    found = Secrets({}, {})
    if not uses:
        return found
    if path is None and all(use.optional for use in uses):
        return found
    if path is None:
        raise Refused("the run uses secrets: start the worker with --secrets FILE")
    known = _read(path)
    for use in uses:
        keys = known.get(use.name, {})
        if use.mount_path is not None and keys:
            found.files[use.mount_path] = keys
        elif use.env_var is not None and use.key in keys:
            found.variables[use.env_var] = keys[use.key]
        elif not use.optional:
            what = use.name if use.key is None else f"{use.name} with the key {use.key}"
            raise Refused(f"expected the secret {what} in {path}, got none")
    return found


def _read(path: Path) -> dict[str, dict[str, str]]:
    try:
        if path.is_dir():
            return {place.name: _read_files(place) for place in path.iterdir() if place.is_dir()}
        if path.stat().st_mode & (stat.S_IRWXG | stat.S_IRWXO):
            raise Refused(f"expected a file that only its user can read: chmod 600 {path}")
        document: Any = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise Refused(f"{path}: {type(error).__name__}: the secrets cannot be read") from None
    is_valid = isinstance(document, dict) and all(
        isinstance(name, str)
        and isinstance(keys, dict)
        and all(_is_key(key) and isinstance(value, str) for key, value in keys.items())
        for name, keys in document.items()
    )
    if not is_valid:
        raise Refused(f"{path}: expected texts by key, below the name of each secret")
    known: dict[str, dict[str, str]] = document
    return known


def _read_files(directory: Path) -> dict[str, str]:
    """One file per key, as Kubernetes mounts a secret; its own entries begin with two dots."""
    files = [file for file in directory.iterdir() if not file.name.startswith("..")]
    exposed = [file for file in files if file.stat().st_mode & stat.S_IRWXO]
    if exposed:
        raise Refused(f"expected files that others cannot read: chmod o= {exposed[0]}")
    return {file.name: file.read_text(encoding="utf-8") for file in files if file.is_file()}


def _is_key(key: object) -> bool:
    """Keys are names of files."""
    return isinstance(key, str) and "/" not in key and key not in {"", ".", ".."}
