"""`helixq fence rehearse`: what would happen if these calls came again. Nothing does."""

from __future__ import annotations

import hashlib
import sys
from collections import Counter
from contextlib import contextmanager
from pathlib import Path
from typing import IO, TYPE_CHECKING, Annotated, Any, Final, NamedTuple

import typer

from helixqueue.cli import show, target
from helixqueue.cli.exits import Exit
from helixqueue.cli.sheet import MAX_LINE_BYTES
from helixqueue.errors import InvalidIdentity, InvalidPayload, Refused
from helixqueue.fence.call import identity_text
from helixqueue.fence.receipt import key_text
from helixqueue.identity import canonical_text, loads
from helixqueue.store import fences

if TYPE_CHECKING:
    from collections.abc import Iterator

    from helixqueue.store.database import Database

MEANS: Final = {
    "repeats": "it was done, and its kept answer is given again",
    "done": "it was done; its answer is no longer kept, its receipt is",
    "runs": "nothing is known of it: it takes effect",
    "in progress": "somebody is at it",
    "in doubt": "nobody knows whether it was done: a probe or a person decides",
    "refused": "the key stands for another request",
    "unreadable": "the line is no call",
}
_BY_DECISION: Final = {
    "granted": "runs", "repeated": "repeats", "expired": "done", "in_progress": "in progress",
    "mismatch": "refused", "in_doubt": "in doubt",
}  # fmt: skip
_MEMBERS: Final = {"name", "key", "payload"}
SHOWN_MAX: Final = 1000


class Rehearsed(NamedTuple):
    line: int
    what: str
    name: str | None
    fence: str | None
    why: str


class Rehearsal:
    """Calls in the order of the file: what one would do counts for those behind it."""

    def __init__(self, database: Database, tenant: str) -> None:
        self._database = database
        self._tenant = tenant
        # Keys that would run, and what they would stand for then; digests, for files may be long.
        self._would_run: dict[bytes, bytes | None] = {}

    def of(self, number: int, line: bytes) -> Rehearsed:
        try:
            name, identity, request = _call(line)
        except Refused as error:
            return Rehearsed(number, "unreadable", None, None, str(error))
        told = self._database.run(
            fences.foresee(tenant=self._tenant, name=name, identity=identity, request=request)
        )
        what = _BY_DECISION[told.decision]
        if what == "runs":
            what = self._after_those_before(told.key, request)
        return Rehearsed(number, what, name, key_text(told.key), MEANS[what])

    def _after_those_before(self, key: bytes, request: str | None) -> str:
        asked = None if request is None else hashlib.sha256(request.encode()).digest()
        if key not in self._would_run:
            self._would_run[key] = asked
            return "runs"
        first = self._would_run[key]
        return "refused" if None not in {first, asked} and first != asked else "repeats"


def _call(line: bytes) -> tuple[str, str, str | None]:
    """Name, identity and, if it is given, the canonical payload of one line."""
    if len(line) > MAX_LINE_BYTES:
        raise Refused(f"expected at most {MAX_LINE_BYTES} bytes a line, got more")
    told: Any = loads(line)
    if not isinstance(told, dict) or not isinstance(told.get("name"), str) or "key" not in told:
        raise Refused('expected {"name": "refund", "key": "order-7", "payload": ...}')
    if told.keys() - _MEMBERS:
        unknown = ", ".join(sorted(told.keys() - _MEMBERS))
        raise Refused(f"expected the members name, key and payload, got {unknown}")
    key = tuple(told["key"]) if isinstance(told["key"], list) else told["key"]
    try:
        identity = identity_text(key, told["name"], "refuse")
    except (InvalidIdentity, InvalidPayload) as error:
        raise Refused(str(error)) from error
    assert identity is not None  # noqa: S101 - refused above
    return told["name"], identity, canonical_text(told["payload"]) if "payload" in told else None


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
    tenant: target.Tenant = None,
    dsn: target.Dsn = None,
    data: target.Data = None,
    as_json: target.AsJson = False,
) -> None:
    """Say what would happen if these calls came again, before a backlog is let loose.

    Nothing is claimed, run or written. `key` is a text, a number or a list of them; without
    `payload`, none is compared. Ends with 0 when nothing would take effect a second time or in
    doubt: every call was done (or, with --may-run, may be new). Ends with 1 otherwise, and shows
    the lines that are not safe.
    """
    safe = {"repeats", "done", *(["runs"] if may_run else [])}
    counts: Counter[str] = Counter()
    unsafe: list[Rehearsed] = []
    with target.opened(dsn, data) as database, _opened(file) as lines:
        rehearsal = Rehearsal(database, target.tenant_to_change(database, tenant))
        for number, line in enumerate(iter(lambda: lines.readline(MAX_LINE_BYTES + 2), b""), 1):
            if not line.strip():
                continue
            told = rehearsal.of(number, line)
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
