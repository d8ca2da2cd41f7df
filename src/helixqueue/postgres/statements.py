"""Named SQL statements, read from a `.sql` file.

```sql
-- name: heads
-- promise: G4
-- The reason the statement exists, in any number of comment lines.
select ...;
```

`-- word: text` lines directly below the name are notes for the program; an indented line continues
a note. Other comments are for readers and stay in the statement.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache
from importlib.resources import files

_NAME = re.compile(r"^-- name: (\w+)\n", re.MULTILINE)
_NOTE = re.compile(r"-- (\w+): (.*\n(?:--   +.*\n)*)")


@dataclass(frozen=True, slots=True)
class Statement:
    name: str
    sql: str
    notes: dict[str, str]


@cache
def statements(package: str, file: str) -> dict[str, Statement]:
    """Return the statements of `file` by name, in the order of the file."""
    head, *parts = _NAME.split((files(package) / file).read_text(encoding="utf-8"))
    if any(line and not line.startswith("--") for line in head.splitlines()):
        raise ValueError(f"{file}: expected a '-- name:' line before the first statement")
    by_name: dict[str, Statement] = {}
    for name, text in zip(parts[::2], parts[1::2], strict=True):
        if name in by_name:
            raise ValueError(f"{file}: two statements are named {name}")
        notes, start = parse_notes(text)
        by_name[name] = Statement(name, text[start:].strip().rstrip(";"), notes)
    return by_name


@cache
def sql_texts(package: str, file: str) -> dict[str, str]:
    """Return only the SQL text of each statement, by name."""
    return {name: statement.sql for name, statement in statements(package, file).items()}


def parse_notes(text: str) -> tuple[dict[str, str], int]:
    """Return the notes at the beginning of a text and the offset where they end."""
    notes, start = {}, 0
    while note := _NOTE.match(text, start):
        notes[note[1]] = " ".join(note[2].replace("\n--", "\n").split())
        start = note.end()
    return notes, start
