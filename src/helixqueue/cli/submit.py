"""`helixq submit`: one batch from arguments, or many from a file or a pipe."""

from __future__ import annotations

import io
import sys
from collections import Counter
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from helixqueue.cli import connection, show, submission_files, times
from helixqueue.cli.exits import Exit
from helixqueue.client.sync import HelixQueue
from helixqueue.engine import calls
from helixqueue.errors import Conflict, HelixError, InvalidPayload, Refused
from helixqueue.identity import check_name, loads
from helixqueue.postgres.database import Database

if TYPE_CHECKING:
    from collections.abc import Iterator

    from helixqueue.client.http import HelixClient
    from helixqueue.records.submission import Accepted, SubmitOptions

CHUNK_ROWS = 2_000
PROBLEMS_SHOWN = 100  # on a terminal; `--json` has ten times as many
PROBLEMS_KEPT = 1_000
_PEEK_BYTES = 4096


QueueName = Annotated[str, typer.Argument(metavar="QUEUE", help="Where to.")]
Named = Annotated[str | None, typer.Argument(metavar="IDENTITY", help="What the work is known by.")]
Payload = Annotated[str | None, typer.Argument(metavar="PAYLOAD", help="JSON; {} unless given.")]
Source = Annotated[
    str | None,
    typer.Option("--from", metavar="FILE", help="Many, from a file; - is standard input."),
]
Form = Annotated[
    str | None, typer.Option("--format", help="json, jsonl or csv, else by name or look.")
]
Part = Annotated[list[str] | None, typer.Option("--part", help="A further part of the identity.")]
Revision = Annotated[str | None, typer.Option("--revision", help="Another revision is other work.")]
Priority = Annotated[
    int | None, typer.Option("--priority", min=0, max=9, help="0 goes first; 5 unless given.")
]
RunAt = Annotated[str | None, typer.Option("--run-at", metavar="TIME", help="Not before.")]
ExpiresAt = Annotated[
    str | None, typer.Option("--expires-at", metavar="TIME", help="Cancelled unless begun by then.")
]
LimitKey = Annotated[str | None, typer.Option("--limit-key", help="Shares the queue's key limit.")]
Requires = Annotated[
    str | None, typer.Option("--requires", metavar="JSON", help='Such as {"gpus": 1}.')
]
Create = Annotated[bool, typer.Option("--create", help="Declare the queue if there is none.")]


def register(app: typer.Typer) -> None:
    app.command("submit")(connection.over_http(_submit))


def _submit(
    queue: QueueName,
    identity: Named = None,
    payload: Payload = None,
    *,
    source: Source = None,
    form: Form = None,
    part: Part = None,
    revision: Revision = None,
    priority: Priority = None,
    run_at: RunAt = None,
    expires_at: ExpiresAt = None,
    limit_key: LimitKey = None,
    requires: Requires = None,
    create: Create = False,
    actor: connection.Actor = None,
    tenant: connection.Tenant = None,
    dsn: connection.Dsn = None,
    data: connection.Data = None,
    as_json: connection.AsJson = False,
) -> None:
    """Submit one batch, or many from JSON, JSONL or CSV.

    The same work submitted again makes no second batch: it answers duplicate. Rows of a file are
    objects with identity, payload, revision, priority, run_at, expires_at, limit_key, requires; in
    CSV these are columns, and columns called payload.NAME make up the payload. A bad row hinders no
    other: each is told with its line, and the command ends with 1.
    """
    check_name("queue", queue)
    needed = None if create else queue
    options: SubmitOptions = {
        "revision": revision,
        "priority": priority,
        "run_at": None if run_at is None else times.moment(run_at),
        "expires_at": None if expires_at is None else times.moment(expires_at),
        "limit_key": limit_key,
        "requires": None if requires is None else _json("--requires", requires),
    }
    if source is not None:
        typed = [
            value for value in (identity, payload, part, *options.values()) if value is not None
        ]
        if typed:
            raise typer.BadParameter(f"with --from the rows say everything; got also {typed[0]}")
        # The file first: to start servers only to say that it is not there would be unkind.
        with _opened(source) as stream, _helix(dsn, data, tenant, actor, needed) as helix:
            _many(helix, queue, (source, stream), form, create=create, as_json=as_json)
        return
    if identity is None:
        raise typer.BadParameter("expected an identity, or --from FILE")
    parts = identity if part is None else (identity, *part)
    given = {} if payload is None else _json("PAYLOAD", payload)
    with _helix(dsn, data, tenant, actor, needed) as helix:
        accepted = helix.submit(queue, identity=parts, payload=given, create=create, **options)
    _tell_one(accepted, as_json=as_json)


def _json(what: str, text: str) -> Any:  # noqa: ANN401 - any JSON
    try:
        return loads(text)
    except InvalidPayload as error:
        raise typer.BadParameter(f"{what}: {error}") from None


@contextmanager
def _helix(
    dsn: str | None, data: Path | None, tenant: str | None, actor: str | None, needed: str | None
) -> Iterator[HelixQueue | HelixClient]:
    """A client of the target; where the queue that is `needed` is missing, this says so first."""
    service = connection.chosen_service()
    if service is not None:
        from helixqueue.transport.http import calls as http_calls  # noqa: PLC0415 - one of the two

        with connection.client_of(service) as client:
            if needed and client.run(http_calls.queue(tenant="", queue=needed)) is None:
                raise _no_queue("the token's tenant", needed)
            yield client
        return
    with connection.target(dsn, data) as found:
        with Database.connect(found.dsn) as database:
            of = connection.tenant_to_change(database, tenant)
            if needed and database.run(calls.queue(tenant=of, queue=needed)) is None:
                raise _no_queue(f"tenant {of}", needed)
        with HelixQueue(found.dsn, of, actor=actor) as helix:
            yield helix


def _no_queue(whose: str, queue: str) -> Refused:
    return Refused(
        f"{whose} has no queue {queue!r}: declare it with "
        f"`helixq queue set {queue} --reason ...`, or add --create"
    )


def _tell_one(one: Accepted[Any], *, as_json: bool) -> None:
    if as_json:
        show.as_json(
            {
                "decision": one.decision,
                "batch_id": one.receipt.batch_id,
                "key": one.receipt.key,
                "fingerprint": one.receipt.fingerprint,
                "state": one.state,
                "differs": list(one.differs),
            }
        )
        return
    show.table(
        ("decision", "batch", "state"),
        [(one.decision, str(one.receipt.batch_id), one.state)],
        [show.STYLES[one.state]],
    )
    if one.differs:
        show.progress(f"the first submission had other options, and wins: {', '.join(one.differs)}")


@dataclass
class _Tally:
    """What became of the rows so far."""

    rows: int = 0
    counts: Counter[str] = field(default_factory=Counter)
    problems: list[dict[str, Any]] = field(default_factory=list)

    def problem(self, kind: str, line: int, reason: str, **more: object) -> None:
        self.counts[kind] += 1
        if len(self.problems) < PROBLEMS_KEPT:
            self.problems.append({"line": line, "kind": kind, "reason": reason, **more})

    @property
    def failed(self) -> int:
        return self.counts["conflict"] + self.counts["refused"] + self.counts["bad"]


def _many(
    helix: HelixQueue | HelixClient,
    queue: str,
    given: tuple[str, io.BufferedReader],
    form: str | None,
    *,
    create: bool,
    as_json: bool,
) -> None:
    source, stream = given
    tally = _Tally()
    rows = submission_files.read(stream, _format(source, form, stream.peek(_PEEK_BYTES)))
    with show.bar("submitting", "rows", _size(source)) as told:
        try:
            while chunk := list(islice(rows, CHUNK_ROWS)):
                _send(helix, queue, chunk, tally, create=create)
                told(stream.tell() if stream.seekable() else tally.rows, tally.rows)
        except submission_files.BadSheet as error:
            tally.problem("bad", 1, str(error))
        except (HelixError, KeyboardInterrupt):
            show.progress(
                f"{tally.rows} rows were answered before this; submit the whole file again, "
                "what is there answers duplicate"
            )
            raise
    if not tally.rows and not tally.failed:
        show.progress(f"--from {source}: no rows")
    _tell_many(tally, as_json=as_json)
    raise typer.Exit(Exit.NO if tally.failed else Exit.OK)


def _format(source: str, form: str | None, start: bytes) -> submission_files.Format:
    for known in submission_files.FORMATS:
        if form == known:
            return known
    if form is not None:
        raise typer.BadParameter(f"--format: expected json, jsonl or csv, got {form[:80]!r}")
    return submission_files.guess(source, start)


@contextmanager
def _opened(source: str) -> Iterator[io.BufferedReader]:
    if source == "-":
        given = getattr(sys.stdin, "buffer", None)
        if not isinstance(given, io.BufferedReader):
            raise typer.BadParameter("--from -: expected rows on standard input, and it is closed")
        yield given
        return
    with ExitStack() as stack:
        try:
            stream = stack.enter_context(Path(source).open("rb"))
        except OSError as error:
            raise typer.BadParameter(f"--from {source}: {error.strerror}") from None
        yield stream


def _size(source: str) -> int | None:
    path = Path(source)
    return path.stat().st_size if source != "-" and path.is_file() else None


def _send(
    helix: HelixQueue | HelixClient,
    queue: str,
    chunk: list[submission_files.Read],
    tally: _Tally,
    *,
    create: bool,
) -> None:
    good = [row.submission for row in chunk if row.submission is not None]
    answers = iter(helix.submit_many(queue, good, create=create))
    for row in chunk:
        if row.submission is None:
            tally.problem("bad", row.line, row.reason)
            continue
        answer = next(answers)
        if answer.error is None:
            tally.counts[answer.decision] += 1
        elif isinstance(answer.error, Conflict):
            tally.problem("conflict", row.line, str(answer.error), diff=answer.error.diff)
        else:
            tally.problem("refused", row.line, str(answer.error))
    tally.rows += len(chunk)


def _tell_many(tally: _Tally, *, as_json: bool) -> None:
    words = ("new", "duplicate", "conflict", "refused", "bad")
    counts = {word: tally.counts[word] for word in words}
    if as_json:
        show.as_json({"rows": tally.rows, **counts, "problems": tally.problems})
        return
    for problem in tally.problems[:PROBLEMS_SHOWN]:
        show.progress(f"line {problem['line']}: {problem['kind']}: {problem['reason']}")
    if tally.failed > PROBLEMS_SHOWN:
        show.progress(f"and {tally.failed - PROBLEMS_SHOWN} more")
    styles = ["green", "", "bold red", "bold red", "bold red"]
    show.table(
        ("what", "rows"),
        [(word, str(count)) for word, count in counts.items()],
        [style if counts[word] else "" for word, style in zip(words, styles, strict=True)],
    )
