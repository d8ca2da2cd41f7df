"""Writes docs/demo.svg from a real run of the demo: `python -m tests.cli.picture`."""

from __future__ import annotations

import io
import os
import pty
import re
import subprocess
from pathlib import Path

from rich.console import Console
from rich.text import Text

from tests.cli.conftest import HELIXQ

FILE = Path(__file__).parents[2] / "docs" / "demo.svg"
COLUMNS = 132


def taken() -> str:
    """The run as a terminal shows it, with its colours."""
    leader, follower = pty.openpty()
    environment = os.environ | {"COLUMNS": str(COLUMNS), "TERM": "xterm-256color", "TZ": "UTC"}
    with subprocess.Popen(
        [HELIXQ, "demo"], stdout=follower, stderr=follower, env=environment
    ) as process:
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
    return b"".join(pieces).decode().replace("\r\n", "\n")


def main() -> None:
    console = Console(record=True, width=COLUMNS, file=io.StringIO(), force_terminal=True)
    console.print(Text.from_ansi(f"$ helixq demo\n{taken()}"))
    picture = console.export_svg(title="helixq demo")
    # No fonts from elsewhere: a page that shows it fetches nothing.
    picture = re.sub(r"@font-face \{.*?\}\s*", "", picture, flags=re.DOTALL)
    picture = re.sub(r"<!--.*?-->", "", picture).replace("Fira Code", "monospace")
    FILE.write_text(re.sub(r"[ \t]+$", "", picture, flags=re.MULTILINE), encoding="utf-8")


if __name__ == "__main__":
    main()
