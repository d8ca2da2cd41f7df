"""`helixq fence rehearse`: previews repeated calls without executing them."""

from __future__ import annotations

import hashlib
import sys
from collections import Counter
from contextlib import contextmanager
from dataclasses import astuple
from functools import partial
from pathlib import Path
from typing import IO, TYPE_CHECKING, Annotated, Any, Final, NamedTuple

import typer

from helixqueue.cli import connection, operation, options, show
from helixqueue.cli.exits import Exit
from helixqueue.cli.options import argument, option
from helixqueue.cli.submission_files import MAX_LINE_BYTES
from helixqueue.errors import Refused
from helixqueue.fence import operations
from helixqueue.fence.rehearsal import MEANS, WORDS, call_of
from helixqueue.identity import loads
from helixqueue.operations.chunks import chunks

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from helixqueue.records.fence import FenceCall, PredictedCall
    from helixqueue.records.page import Page

UNSAFE_MAX: Final = 1000
# Limits of one request.
CHUNK_LINES: Final = 500
CHUNK_BYTES: Final = 256 * 1024


class CallPreview(NamedTuple):
    line: int
    what: str
    name: str | None
    fence: str | None
    why: str


class Rehearsal:
    """Previews calls in file order: a call that would run affects later calls with its key."""

    def __init__(self, predict: Callable[[list[FenceCall]], Page[PredictedCall]]) -> None:
        self._predict = predict
        # Keys of calls that would run, with digests of their payloads to bound memory.
        self._would_run: dict[str, bytes | None] = {}

    def preview(self, lines: Iterable[tuple[int, bytes]]) -> Iterator[CallPreview]:
        """Preview the calls in chunks; results come in the order of the lines."""
        for chunk in chunks(lines, _size, size=CHUNK_BYTES, length=CHUNK_LINES):
            yield from self._preview_chunk([(number, _parse(line)) for number, line in chunk])

    def _preview_chunk(self, chunk: list[tuple[int, FenceCall | Refused]]) -> Iterator[CallPreview]:
        calls = [call for _, call in chunk if not isinstance(call, Refused)]
        predicted = iter(self._predict(calls).rows if calls else ())
        for number, call in chunk:
            if isinstance(call, Refused):
                yield CallPreview(number, "unreadable", None, None, str(call))
                continue
            fence, decision, _ = astuple(next(predicted))
            what = WORDS[decision]
            if what == "runs":
                what = self._after_earlier_lines(fence, call_of(call).request)
            yield CallPreview(number, what, call["name"], fence, MEANS[what])

    def _after_earlier_lines(self, fence: str, request: str | None) -> str:
        digest = None if request is None else hashlib.sha256(request.encode()).digest()
        if fence not in self._would_run:
            self._would_run[fence] = digest
            return "runs"
        first = self._would_run[fence]
        return "refused" if None not in {first, digest} and first != digest else "repeats"


def _size(line: tuple[int, bytes]) -> int:
    return len(line[1])


def _parse(line: bytes) -> FenceCall | Refused:
    try:
        if len(line) > MAX_LINE_BYTES:
            raise Refused(f"expected at most {MAX_LINE_BYTES:,} bytes per line, got more")
        document: Any = loads(line)
        call_of(document)  # refuses what is not a call
    except Refused as error:
        return error
    call: FenceCall = document
    return call


@contextmanager
def _open(file: str) -> Iterator[IO[bytes]]:
    if file == "-":
        yield sys.stdin.buffer
        return
    try:
        with Path(file).open("rb") as stream:
            yield stream
    except OSError as error:
        raise Refused(f"expected a file of calls, got {error}") from error


@connection.service_or_database
def rehearse(
    file: Annotated[
        str, argument("FILE", 'JSON lines {"name", "key", "payload"}; - is standard input.')
    ],
    *,
    may_run: Annotated[
        bool, option("--may-run", "Accept calls that would run for the first time.")
    ] = False,
    tenant: options.Tenant = None,
    as_json: options.AsJson = False,
) -> None:
    """Preview what repeated calls would do, without executing them.

    Use it before you send a backlog again: nothing is claimed, run or written. `key` is a string, a
    number or a list of them; without `payload`, payloads are not compared. Exit code 0: every call
    has already taken effect (with --may-run: or would run for the first time); 1: some calls are
    not safe, and their lines are shown.
    """
    safe = {"repeats", "done", *(["runs"] if may_run else [])}
    counts: Counter[str] = Counter()
    unsafe: list[CallPreview] = []
    with connection.open_target() as target, _open(file) as stream:
        rehearsal = Rehearsal(
            lambda calls: operation.run(
                target, tenant, None, partial(operations.rehearse, calls=calls)
            )
        )
        lines = enumerate(iter(lambda: stream.readline(MAX_LINE_BYTES + 2), b""), 1)
        for call in rehearsal.preview(line for line in lines if line[1].strip()):
            counts[call.what] += 1
            if call.what not in safe and len(unsafe) < UNSAFE_MAX:
                unsafe.append(call)
    ok = safe.issuperset(counts)
    if as_json:
        calls = [call._asdict() for call in unsafe]
        show.as_json({"safe": ok, "counts": dict(counts), "unsafe": calls})
    else:
        show.table(("calls", "outcome", "meaning"),
                   [(str(n), what, MEANS[what]) for what, n in sorted(counts.items())])  # fmt: skip
        rows = [(str(call.line), call.what, call.name or "", call.fence or "", call.why)
                for call in unsafe]  # fmt: skip
        if rows:
            show.table(("line", "outcome", "name", "fence", "reason"), rows)
    raise typer.Exit(Exit.OK if ok else Exit.NO)
