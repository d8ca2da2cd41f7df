"""Writes docs/demo.svg from a real run of `make run`: `python -m tests.cli.picture`."""

from __future__ import annotations

import io
import os
import pty
import re
import subprocess
import tempfile
from pathlib import Path

from rich.console import Console
from rich.text import Text

from tests.support.cli import HELIXQ

COMMAND = "helixq up --demo"
SECONDS = 26  # time for a kill, a freeze, and a status line after each
FILE = Path(__file__).parents[2] / "docs" / "demo.svg"
COLUMNS = 142


def record() -> str:
    """The output of the run as a terminal shows it, with colours."""
    leader, follower = pty.openpty()
    environment = os.environ | {"COLUMNS": str(COLUMNS), "TERM": "xterm-256color", "TZ": "UTC"}
    with (
        tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as directory,
        subprocess.Popen(
            [
                HELIXQ,
                *COMMAND.split()[1:],
                "--data",
                f"{directory}/helix-demo",
                "--for",
                str(SECONDS),
            ],
            stdout=follower,
            stderr=follower,
            env=environment,
        ) as process,
    ):
        os.close(follower)
        pieces = []
        while True:
            try:
                pieces.append(os.read(leader, 65536))
            except OSError:  # the terminal's other end is closed
                break
        os.close(leader)
    if process.returncode:
        raise SystemExit(process.returncode)
    text = b"".join(pieces).decode().replace("\r\n", "\n").replace(directory, "/home/lab")
    # Replace the login code and paths of this machine.
    text = re.sub(r"hl_[\w-]{43}", "hl_...", text)
    text = re.sub(r"host=%2F\S+%2Fhelixqueue-\w+", "host=%2Frun%2Fhelixqueue", text)
    return re.sub(r"(unix://|(?<=-s ))/\S+/helixqueue-\w+(?=/valkey)", r"\1/run/helixqueue", text)


def main() -> None:
    console = Console(record=True, width=COLUMNS, file=io.StringIO(), force_terminal=True)
    console.print(Text.from_ansi(f"$ {COMMAND}\n{record()}"))
    picture = console.export_svg(title=COMMAND)
    # No external fonts: a page with the picture makes no requests.
    picture = re.sub(r"@font-face \{.*?\}\s*", "", picture, flags=re.DOTALL)
    picture = re.sub(r"<!--.*?-->", "", picture).replace("Fira Code", "monospace")
    FILE.write_text(re.sub(r"[ \t]+$", "", picture, flags=re.MULTILINE), encoding="utf-8")


if __name__ == "__main__":
    main()
