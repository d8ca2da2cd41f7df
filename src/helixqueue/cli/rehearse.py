"""`helixq fence rehearse`: what would happen if these calls came again. Nothing does."""

from __future__ import annotations

import hashlib
import sys
from collections import Counter
from contextlib import contextmanager
from pathlib import Path
from typing import IO, TYPE_CHECKING, Annotated, Final, NamedTuple

import typer

from helixqueue.cli import connection, show
from helixqueue.cli.exits import Exit
from helixqueue.cli.submission_files import MAX_LINE_BYTES
from helixqueue.errors import Refused
from helixqueue.fence.rehearsal import MEANS, WORDS, call_of
from helixqueue.identity import key_text, loads
from helixqueue.records.fence import FencePreview

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

SHOWN_MAX: Final = 1000
# Asked at a time; a request takes no more.
CHUNK_LINES: Final = 500
CHUNK_BYTES: Final = 256 * 1024


class Rehearsed(NamedTuple):
    line: int
    what: str
    name: str | None
    fence: str | None
    why: str


class Rehearsal:
    """Calls in the order of the file: what one would do counts for those behind it."""

    def __init__(self, there: connection.Reached, tenant: str) -> None:
        self._there = there
        self._tenant = tenant
        # Keys that would run, and what they would stand for then; digests, for files may be long.
        self._would_run: dict[bytes, bytes | None] = {}

    def of(self, lines: Iterable[tuple[int, bytes]]) -> Iterator[Rehearsed]:
        """Asks for many at a time; the answers come in the order of the lines."""
        chunk: list[tuple[int, FencePreview | Refused]] = []
        weight = 0
        for number, line in lines:
            try:
                one: FencePreview | Refused = _call(line)
            except Refused as error:
                one = error
            if chunk and (len(chunk) == CHUNK_LINES or weight + len(line) > CHUNK_BYTES):
                yield from self._told(chunk)
                chunk, weight = [], 0
            chunk.append((number, one))
            weight += len(line)
        yield from self._told(chunk)

    def _told(self, chunk: list[tuple[int, FencePreview | Refused]]) -> Iterator[Rehearsed]:
        asked = [one for _, one in chunk if isinstance(one, FencePreview)]
        told = iter(
            self._there.run(self._there.fences.preview(tenant=self._tenant, calls=asked))
            if asked
            else ()
        )
        for number, one in chunk:
            if isinstance(one, Refused):
                yield Rehearsed(number, "unreadable", None, None, str(one))
                continue
            key, decision = next(told)
            what = WORDS[decision]
            if what == "runs":
                what = self._after_those_before(key, one.request)
            yield Rehearsed(number, what, one.name, key_text(key), MEANS[what])

    def _after_those_before(self, key: bytes, request: str | None) -> str:
        asked = None if request is None else hashlib.sha256(request.encode()).digest()
        if key not in self._would_run:
            self._would_run[key] = asked
            return "runs"
        first = self._would_run[key]
        return "refused" if None not in {first, asked} and first != asked else "repeats"


def _call(line: bytes) -> FencePreview:
    if len(line) > MAX_LINE_BYTES:
        raise Refused(f"expected at most {MAX_LINE_BYTES} bytes a line, got more")
    return call_of(loads(line))


@contextmanager
def _opened(file: str) -> Iterator[IO[bytes]]:
    if file == "-":
        yield sys.stdin.buffer
        return
    try:
        with Path(file).open("rb") as opened:
            yield opened
    except OSError as error:
        raise Refused(f"expected a file of calls, got {error}") from error


@connection.over_http
def rehearse(
    file: Annotated[
        str,
        typer.Argument(
            metavar="FILE", help='JSON lines {"name", "key", "payload"}; - for standard input.'
        ),
    ],
    *,
    may_run: Annotated[
        bool, typer.Option("--may-run", help="Calls that nothing is known of are fine, too.")
    ] = False,
    tenant: connection.Tenant = None,
    dsn: connection.Dsn = None,
    data: connection.Data = None,
    as_json: connection.AsJson = False,
) -> None:
    """Say what would happen if these calls came again.

    To ask before a backlog is let loose. Nothing is claimed, run or written. `key` is a text, a
    number or a list of them; without `payload`, none is compared. Ends with 0 when nothing would
    take effect a second time or in doubt: every call was done (or, with --may-run, may be new).
    Ends with 1 otherwise, and shows the lines that are not safe.
    """
    safe = {"repeats", "done", *(["runs"] if may_run else [])}
    counts: Counter[str] = Counter()
    unsafe: list[Rehearsed] = []
    with connection.reached(dsn, data) as there, _opened(file) as stream:
        rehearsal = Rehearsal(there, connection.tenant_to_change(there, tenant))
        read = enumerate(iter(lambda: stream.readline(MAX_LINE_BYTES + 2), b""), 1)
        for told in rehearsal.of(line for line in read if line[1].strip()):
            counts[told.what] += 1
            if told.what not in safe and len(unsafe) < SHOWN_MAX:
                unsafe.append(told)
    ok = safe.issuperset(counts)
    if as_json:
        calls = [one._asdict() for one in unsafe]
        show.as_json({"safe": ok, "counts": dict(counts), "unsafe": calls})
    else:
        show.table(("calls", "would", "meaning"),
                   [(str(n), what, MEANS[what]) for what, n in sorted(counts.items())])  # fmt: skip
        rows = [(str(one.line), one.what, one.name or "", one.fence or "", one.why)
                for one in unsafe]  # fmt: skip
        if rows:
            show.table(("line", "would", "name", "fence", "why"), rows)
    raise typer.Exit(Exit.OK if ok else Exit.NO)
