"""WAL bytes of an operation, without full-page images."""

from __future__ import annotations

import re
import subprocess
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from benchmarks.arena import Arena

# The last line: number, bytes of records [share], bytes of images [share], and both.
_TOTAL = re.compile(r"^Total\s+(\d+)\s+(\d+)\s+\[[^]]*]\s+(\d+)", re.MULTILINE)


@dataclass(frozen=True)
class Written:
    records: int
    bytes: int
    image_bytes: int

    def __add__(self, other: Written) -> Written:
        return Written(
            self.records + other.records,
            self.bytes + other.bytes,
            self.image_bytes + other.image_bytes,
        )


def position(arena: Arena) -> str:
    with arena.admin("postgres") as connection:
        row = connection.execute("select pg_current_wal_insert_lsn()").fetchone()
    return str(row[0]) if row else ""


def written(arena: Arena, begin: str, end: str) -> Written:
    """WAL of the whole server between two positions; nothing else may run meanwhile.

    Read from the WAL files. A record with a full-page image may omit its data, so the figure is
    correct only where images are rare: no checkpoint shortly before.
    """
    done = subprocess.run(
        [
            str(arena.server.program("pg_waldump")),
            *("--stats=record", "--path", str(arena.server.data / "pg_wal")),
            *("--start", begin, "--end", end),
        ],
        capture_output=True,
        text=True,
        check=False,
    )
    found = _TOTAL.search(done.stdout)
    if found is None:
        raise RuntimeError(f"pg_waldump failed:\n{done.stdout[-500:]}{done.stderr}")
    return Written(int(found[1]), int(found[2]), int(found[3]))
