"""pgqueuer, the peer of the bulk submit, in a virtual environment of its own."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

VERSION = "1.6.0"
_HERE = Path(__file__).parent
_HOME = _HERE.parent / ".bench" / "pgqueuer"


class PeerError(Exception):
    """The peer could not be installed; its row is left out, the others are measured."""


def install(say: Callable[[str], None]) -> Path:
    """The interpreter of the peer's environment, which is made on demand."""
    python = _HOME / "bin" / "python"
    if not python.exists():
        say(f"installing pgqueuer {VERSION} into {_HOME.parent.name}/{_HOME.name}")
        _run(sys.executable, "-m", "venv", str(_HOME))
    told = subprocess.run(
        [python, "-c", "import importlib.metadata as m; print(m.version('pgqueuer'))"],
        capture_output=True,
        text=True,
        check=False,
    )
    if told.stdout.strip() != VERSION:
        _run(str(python), "-m", "pip", "install", "--quiet", f"pgqueuer[asyncpg]=={VERSION}")
    return python


def enqueue_in_bulk(python: Path, dsn: str, *, calls_made: int, rows: int = 1_000) -> float:
    """Rows a second; makes its own schema in the (empty) database of `dsn`."""
    told = _run(str(python), str(_HERE / "pgqueuer_bulk.py"), dsn, str(calls_made), str(rows))
    return float(json.loads(told)["rows_per_second"])


def _run(*command: str) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise PeerError(f"{Path(command[0]).name} failed: {done.stderr.strip()[-500:]}")
    return done.stdout
