"""The configuration file: HELIX_CONFIG, else ~/.config/helixq.toml.

TOML with url and token, or dsn, or data. Options and environment take precedence. Unknown names are
rejected: ignoring a misspelled name would send a command to another database.
"""

from __future__ import annotations

import os
import tomllib
from pathlib import Path

from helixqueue.errors import Refused

NAMES = ("url", "token", "dsn", "data")


def value(name: str) -> str | None:
    return _read().get(name)


def _read() -> dict[str, str]:
    configured = os.environ.get("HELIX_CONFIG")
    path = Path(configured) if configured else Path.home() / ".config" / "helixq.toml"
    try:
        values = tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        if configured:
            raise Refused(
                f"HELIX_CONFIG: expected a file, got {path}, which does not exist"
            ) from None
        return {}
    except (OSError, ValueError) as error:
        raise Refused(f"{path}: expected TOML, got {error}") from None
    wrong = [
        name for name, value in values.items() if name not in NAMES or not isinstance(value, str)
    ]
    if wrong:
        raise Refused(f"{path}: expected strings named {', '.join(NAMES)}, got {wrong[0]!r}")
    if len({"url", "dsn", "data"} & values.keys()) > 1:
        raise Refused(f"{path}: expected one of url, dsn and data, got several")
    return values
