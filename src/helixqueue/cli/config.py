"""What a file says where neither the command line nor the environment does.

HELIX_CONFIG, else ~/.config/helixq.toml, in TOML: url and token, or dsn, or data; and nothing else,
so that a misspelt name does not send a command to another database.
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
    named = os.environ.get("HELIX_CONFIG")
    path = Path(named) if named else Path.home() / ".config" / "helixq.toml"
    try:
        found = tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        if named:
            raise Refused(f"HELIX_CONFIG: expected a file, and {path} is none") from None
        return {}
    except (OSError, ValueError) as error:
        raise Refused(f"{path}: expected TOML, got {error}") from None
    wrong = [key for key, given in found.items() if key not in NAMES or not isinstance(given, str)]
    if wrong:
        raise Refused(f"{path}: expected texts called {', '.join(NAMES)}; got {wrong[0]!r}")
    if len({"url", "dsn", "data"} & found.keys()) > 1:
        raise Refused(f"{path}: expected url, dsn or data, one of them")
    return found
