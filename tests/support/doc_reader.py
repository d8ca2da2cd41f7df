"""Run the Python blocks of a document in order, in one namespace, as a reader would.

    python -m tests.support.doc_reader DOCUMENT

A block of language `text` right after a `python` block is its expected output. Errors have the line
numbers of the document. A document finds a database in HELIX_DSN, a service in HELIX_URL with
HELIX_TOKEN, and may start embedded servers in its working directory.
"""

from __future__ import annotations

import contextlib
import io
import re
import sys
from dataclasses import dataclass
from pathlib import Path

BLOCK = re.compile(
    r"^```python\n(?P<code>.*?)^```\n(?:\n*^```text\n(?P<output>.*?)^```$)?",
    re.MULTILINE | re.DOTALL,
)


@dataclass(frozen=True)
class Block:
    line: int
    code: str
    output: str | None


def blocks(text: str) -> list[Block]:
    return [
        Block(text.count("\n", 0, found.start("code")), found["code"], found["output"])
        for found in BLOCK.finditer(text)
    ]


def read(document: Path) -> None:
    names: dict[str, object] = {"__name__": "__main__"}
    for block in blocks(document.read_text(encoding="utf-8")):
        # Leading empty lines give the code the line numbers of the document.
        code = compile("\n" * block.line + block.code, str(document), "exec", dont_inherit=True)
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            exec(code, names)  # noqa: S102 - runs the document
        if block.output is not None and printed.getvalue() != block.output:
            sys.exit(
                f"{document}:{block.line + 1}: expected\n{block.output}\ngot\n{printed.getvalue()}"
            )


if __name__ == "__main__":
    read(Path(sys.argv[1]))
