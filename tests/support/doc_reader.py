"""Does what a document says: runs its Python blocks in order, in one namespace, as a reader would.

    python -m tests.support.doc_reader DOCUMENT

Every block of language `python` is run. A block of language `text` right behind one is what it
prints. Errors point to the document's own lines. A document finds a database in HELIX_DSN (as
the HTTP service logs in, in HELIX_SERVICE_DSN), and may
start embedded servers in its working directory.
"""

from __future__ import annotations

import contextlib
import io
import re
import sys
from dataclasses import dataclass
from pathlib import Path

BLOCK = re.compile(
    r"^```python\n(?P<code>.*?)^```\n(?:\n*^```text\n(?P<said>.*?)^```$)?", re.MULTILINE | re.DOTALL
)


@dataclass(frozen=True)
class Block:
    line: int
    code: str
    said: str | None


def blocks(text: str) -> list[Block]:
    return [
        Block(text.count("\n", 0, found.start("code")), found["code"], found["said"])
        for found in BLOCK.finditer(text)
    ]


def read(document: Path) -> None:
    names: dict[str, object] = {"__name__": "__main__"}
    for block in blocks(document.read_text(encoding="utf-8")):
        # Empty lines in front give the code the numbers it has in the document.
        code = compile("\n" * block.line + block.code, str(document), "exec", dont_inherit=True)
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            exec(code, names)  # noqa: S102 - that is what it is for
        if block.said is not None and printed.getvalue() != block.said:
            sys.exit(
                f"{document}:{block.line + 1}: expected\n{block.said}\ngot\n{printed.getvalue()}"
            )


if __name__ == "__main__":
    read(Path(sys.argv[1]))
