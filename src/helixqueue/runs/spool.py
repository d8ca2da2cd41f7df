"""The datums of a run in a file, from the listing of the inputs to the last submission.

The file is an SQLite database: a million names are sorted and compared outside of memory. A start
that was interrupted writes it again, or continues from it if it was complete.
"""

from __future__ import annotations

import hashlib
import json
import re
import sqlite3
from contextlib import closing
from dataclasses import dataclass
from itertools import islice, pairwise
from typing import TYPE_CHECKING, Final, NamedTuple
from unicodedata import normalize

import orjson

from helixqueue.errors import InvalidIdentity, Refused
from helixqueue.identity import identity_texts
from helixqueue.runs.expansion import Input, datum_name, expand, matches
from helixqueue.runs.listing import list_names
from helixqueue.runs.spec import InvalidRun

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping
    from pathlib import Path

    from helixqueue.runs.expansion import GlobMatch, Parts
    from helixqueue.runs.spec import Atom, RunSpec

    Progress = Callable[[str, int], object]

PROFILE: Final = "text-v1"  # of the identities of datums
CHUNK: Final = 10_000  # rows between two reports of progress
MAX_DATUMS: Final = 10_000_000
MAX_NAME_BYTES: Final = 255  # of a file, on the worker
MAX_PATH_BYTES: Final = 3_000
SHOWN: Final = 50  # problems in one message
_ENCODE: Final = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode
_CONTROL: Final = re.compile("[\x00-\x1f\x7f]")

_SCHEMA: Final = """
pragma journal_mode = off;
pragma synchronous = off;
create table object (base text, name text, primary key (base, name)) without rowid;
create table datum (number integer primary key, name text, inputs text);
create unique index datum_name on datum (name);
create table spool (origin text, digest text, datums integer);
"""


class Datum(NamedTuple):
    name: str
    inputs: tuple[Input, ...]


@dataclass(frozen=True)
class Spool:
    """A complete file of datums; the digest is the SHA-256 of names and inputs, in hex."""

    path: Path
    digest: str
    datums: int

    def read(self, start: int = 0) -> Iterator[Datum]:
        """The datums in order, from number `start` on."""
        with closing(sqlite3.connect(self.path)) as file:
            rows = file.execute(
                "select name, inputs from datum where number >= ? order by number", (start,)
            )
            for name, inputs in rows:
                yield Datum(name, tuple(Input(*each) for each in orjson.loads(inputs)))


def stored_uri(uri: str, roots: Mapping[str, str]) -> str:
    """Where a URI is stored, by the longest root it is at or below; else `Refused`."""
    for root in sorted(roots, key=len, reverse=True):
        prefix = root.rstrip("/")
        if uri.rstrip("/") == prefix or uri.startswith(prefix + "/"):
            return roots[root].rstrip("/") + uri[len(prefix) :]
    known = ", ".join(sorted(roots)) or "none"
    raise Refused(f"{uri}: expected a URI at or below a root of the operator; roots: {known}")


def write_spool(
    spec: RunSpec,
    roots: Mapping[str, str],
    path: Path,
    progress: Progress | None = None,
) -> Spool:
    """List the inputs, check them and write the datums; raises `InvalidRun` with all problems."""
    origin = json.dumps([spec.input.model_dump(mode="json"), sorted(roots.items())])
    if (complete := _complete(path, origin)) is not None:
        return complete
    path.unlink(missing_ok=True)
    path.touch(mode=0o600)
    with closing(sqlite3.connect(path, isolation_level=None)) as file:
        file.executescript(_SCHEMA)
        file.execute("begin")
        writer = _Writer(file, roots, progress or (lambda _phase, _count: None))
        writer.list_all({atom.uri for atom in spec.input.atoms()})
        digest, datums = writer.expand(spec)
        file.execute("insert into spool values (?, ?, ?)", (origin, digest, datums))
        file.execute("drop table object")
        file.execute("commit")
    return Spool(path, digest, datums)


def _complete(path: Path, origin: str) -> Spool | None:
    """The spool at `path`, if it was written to its end for the same inputs."""
    if not path.exists():
        return None
    try:
        with closing(sqlite3.connect(path)) as file:
            row = file.execute("select origin, digest, datums from spool").fetchone()
    except sqlite3.DatabaseError:
        return None
    return None if row is None or row[0] != origin else Spool(path, row[1], row[2])


class _Problems:
    def __init__(self) -> None:
        self._lines: list[str] = []
        self._count = 0

    def add(self, line: str) -> None:
        self._count += 1
        if len(self._lines) < SHOWN:
            self._lines.append(line)

    def demand_none(self) -> None:
        if self._count:
            rest = self._count - len(self._lines)
            more = [f"and {rest} more"] if rest else []
            count = "1 problem" if self._count == 1 else f"{self._count} problems"
            raise InvalidRun("\n".join([f"the inputs have {count}", *self._lines, *more]))


class _Writer:
    def __init__(
        self, file: sqlite3.Connection, roots: Mapping[str, str], progress: Progress
    ) -> None:
        self._file, self._roots, self._progress = file, roots, progress
        self._problems = _Problems()
        self._bases: dict[str, str] = {}  # where each URI is stored

    def list_all(self, uris: Iterable[str]) -> None:
        """The names of all files below the URIs, checked."""
        count = 0
        for uri in sorted(uris):
            try:
                base = self._bases[uri] = stored_uri(uri, self._roots).rstrip("/")
                names = ((base, name) for name in list_names(base) if self._is_usable(uri, name))
                while chunk := list(islice(names, CHUNK)):
                    self._file.executemany("insert or ignore into object values (?, ?)", chunk)
                    count += len(chunk)
                    self._progress("listing", count)
            except Refused as error:
                self._problems.add(str(error))
            else:
                self._check_names(uri, base)
        self._problems.demand_none()

    def _is_usable(self, uri: str, name: str) -> bool:
        """Whether a worker can have a file of this name."""
        try:
            size = len(name.encode())
        except UnicodeEncodeError:
            size = -1
        if size < 0 or _CONTROL.search(name):
            self._problems.add(f"{uri}: {name!a}: expected UTF-8 without control characters")
            return False
        if size > MAX_NAME_BYTES and (
            size > MAX_PATH_BYTES
            or max(len(part.encode()) for part in name.split("/")) > MAX_NAME_BYTES
        ):
            expected = f"expected parts of at most {MAX_NAME_BYTES} bytes"
            self._problems.add(f"{uri}: {name!a}: {expected}, and {MAX_PATH_BYTES} in all")
            return False
        return True

    def _check_names(self, uri: str, base: str) -> None:
        """Spellings of one name in NFC and NFD, and files with the name of a directory."""
        self._file.create_function(
            "nfc", 1, lambda text: normalize("NFC", text), deterministic=True
        )
        twins = self._file.execute(
            "select group_concat(quote(name), ' and ') from object where base = ? "
            "group by nfc(name) having count(*) > 1",
            (base,),
        )
        for (names,) in twins:
            self._problems.add(f"{uri}: {names!a}: one name in two Unicode forms; rename one")
        shadowed = self._file.execute(
            "select o.name from object o where o.base = ?1 and exists (select 1 from object i "
            "where i.base = ?1 and i.name > o.name || '/' and i.name < o.name || '0')",
            (base,),
        )
        for (name,) in shadowed:
            self._problems.add(f"{uri}: {name!a}: a file and a directory of the same name")

    def _matches(self, atom: Atom) -> Iterator[GlobMatch]:
        rows = self._file.execute(
            "select name from object where base = ? order by name", (self._bases[atom.uri],)
        )
        return matches(atom.glob, (name for (name,) in rows))

    def expand(self, spec: RunSpec) -> tuple[str, int]:
        """Write the datums; returns their digest and number."""
        hashed, count = hashlib.sha256(), 0
        for parts in expand(spec.input, self._matches):
            inputs = self._inputs(parts)
            if len(inputs) > 1:
                self._check_paths(parts, inputs)
            text = _ENCODE(inputs)
            name = self._insert(count, parts, text)
            hashed.update(f"{name}\0{text}\n".encode())
            count += 1
            if count % CHUNK == 0:
                self._progress("datums", count)
            if count > MAX_DATUMS:
                raise InvalidRun(f"expected at most {MAX_DATUMS} datums, got more")
        self._progress("datums", count)
        self._problems.demand_none()
        return hashed.hexdigest(), count

    def _inputs(self, parts: Parts) -> list[Input]:
        return [
            Input(f"{self._bases[atom.uri]}/{match.path}", f"{atom.repo}/{match.path}")
            for atom, match in parts
        ]

    def _check_paths(self, parts: Parts, inputs: list[Input]) -> None:
        """Two inputs of a datum must not meet in one path, unless they are the same files."""
        ordered = sorted(inputs, key=lambda each: each.path)
        for first, second in pairwise(ordered):
            folder = first.path.rstrip("/")
            meets = second.path.rstrip("/") == folder or second.path.startswith(folder + "/")
            rest = second.path[len(first.path) :]
            if meets and (first.uri + rest != second.uri or first == second):
                self._problems.add(
                    f"datum {datum_name(parts)!a}: {first.uri} and {second.uri} would both be "
                    f"/pfs/{second.path}"
                )

    def _insert(self, number: int, parts: Parts, text: str) -> str:
        """Insert under a name that is an identity; a name that repeats gets a number."""
        raw = datum_name(parts)
        try:
            name, changed_from = identity_texts(raw, PROFILE)
        except InvalidIdentity as error:
            self._problems.add(f"datum {raw!a}: {error}")
            return raw
        if changed_from is not None:
            self._problems.add(f"datum {raw!a}: expected a name like {name!a}")
            return raw
        repeat = 1
        while True:
            numbered = name if repeat == 1 else f"{name}#{repeat}"
            inserted = self._file.execute(
                "insert or ignore into datum values (?, ?, ?)", (number, numbered, text)
            )
            if inserted.rowcount:
                return numbered
            repeat += 1
