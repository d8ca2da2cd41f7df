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

from helixqueue.cli import connection, options, show, submission_files, submit_dry_run, times
from helixqueue.cli.command import command
from helixqueue.cli.exits import Exit
from helixqueue.cli.options import argument, option
from helixqueue.cli.sheets import InvalidFile
from helixqueue.client.backend import backend_of
from helixqueue.client.sync import HelixQueue
from helixqueue.engine import calls
from helixqueue.errors import Conflict, HelixError, InvalidPayload, NoSuchQueue, Refused
from helixqueue.identity import PROFILES, check_name, loads
from helixqueue.operations import queues
from helixqueue.postgres.database import Database

if TYPE_CHECKING:
    from collections.abc import Iterator

    from helixqueue.client.http import HelixClient
    from helixqueue.records.submission import Accepted, SubmitOptions

CHUNK_ROWS = 2_000
PROBLEMS_PRINTED = 100  # on a terminal; `--json` shows up to PROBLEMS_KEPT
PROBLEMS_KEPT = 1_000
_PEEK_BYTES = 4096

QueueName = Annotated[str, argument("QUEUE", "Name of the queue.")]
Identity = Annotated[str | None, argument("IDENTITY", "Business identifier of the work.")]
Payload = Annotated[str | None, argument("PAYLOAD", "Payload as JSON. [default: {}]")]
Source = Annotated[
    str | None, option("--from FILE", "Submit the rows of this file; - is standard input.")
]
Format = Annotated[
    str | None,
    option(
        "--format FORMAT",
        "json, jsonl, csv, illumina, nf-core or ont. [default: by name or content]",
    ),
]
Members = Annotated[
    list[str] | None,
    option(
        "--map MEMBER=COLUMN",
        "Member of the payload from a column, with --identity-column; repeatable. "
        "[default: all other columns]",
    ),
]
DryRun = Annotated[
    bool, option("--dry-run", "Show what each row of --from would do; submit nothing.")
]
IdentityColumn = Annotated[
    list[str] | None,
    option(
        "--identity-column NAME",
        "Column of --from with (a part of) the identity; the others form the payload.",
    ),
]
Part = Annotated[list[str] | None, option("--part TEXT", "Further part of the identity.")]
Revision = Annotated[
    str | None, option("--revision TEXT", "Revision of the identity; a new revision is new work.")
]
Priority = Annotated[
    int | None, option("--priority N", "0 (first) to 9 (last). [default: 5]", min=0, max=9)
]
RunAt = Annotated[
    str | None, option("--run-at TIME", "Do not start before, such as 2026-03-01T08:00 or +2h.")
]
ExpiresAt = Annotated[str | None, option("--expires-at TIME", "Cancel if not started by then.")]
LimitKey = Annotated[
    str | None, option("--limit-key TEXT", "Batches with the same key share the queue's key limit.")
]
Requires = Annotated[
    str | None, option("--requires JSON", 'Resources that a worker must have, such as {"gpus": 1}.')
]
Create = Annotated[bool, option("--create", "Create the queue if it does not exist.")]


def register(app: typer.Typer) -> None:
    add = command(app, "submit", example='helixq submit basecall Sample-1 \'{"pod5": "a.pod5"}\'')
    add(connection.service_or_database(_submit))


def _submit(
    queue: QueueName,
    identity: Identity = None,
    payload: Payload = None,
    *,
    source: Source = None,
    file_format: Format = None,
    identity_column: IdentityColumn = None,
    members: Members = None,
    dry_run: DryRun = False,
    part: Part = None,
    revision: Revision = None,
    priority: Priority = None,
    run_at: RunAt = None,
    expires_at: ExpiresAt = None,
    limit_key: LimitKey = None,
    requires: Requires = None,
    create: Create = False,
    actor: options.Actor = None,
    tenant: options.Tenant = None,
    as_json: options.AsJson = False,
) -> None:
    """Submit one batch, or many from JSON, JSONL or CSV.

    A repeated submission creates no second batch and is reported as duplicate. Rows of a file are
    objects with identity, payload, revision, priority, run_at, expires_at, limit_key and requires.
    In CSV these are columns, and columns named payload.NAME form the payload. Sample sheets of
    Illumina (v2), nf-core and MinKNOW (ont) need no mapping. An invalid row does not affect the
    others: it is reported with its line. Exit code 1: some rows were not accepted.
    """
    check_name("queue", queue)
    required = None if create else queue
    submit_options: SubmitOptions = {
        "revision": revision,
        "priority": priority,
        "run_at": None if run_at is None else times.moment(run_at),
        "expires_at": None if expires_at is None else times.moment(expires_at),
        "limit_key": limit_key,
        "requires": None if requires is None else _json("--requires", requires),
    }
    if source is not None:
        named = (identity, payload, part, *submit_options.values())
        if extra := [value for value in named if value is not None]:
            raise typer.BadParameter(
                f"with --from, the rows contain everything; got {extra[0]} in addition"
            )
        columns = _mapping(members, identity_column)
        # The file first: no server should start for a file that does not exist.
        with ExitStack() as stack:
            stream = stack.enter_context(_open_source(source))
            rows = _parse(source, stream, file_format, identity_column, columns)
            if dry_run:
                submit_dry_run.show_dry_run(queue, rows, tenant, as_json=as_json, create=create)
            helix = stack.enter_context(_open_client(tenant, actor, required))
            _submit_file(helix, queue, (source, stream, rows), create=create, as_json=as_json)
        return
    if identity_column or members or dry_run:
        flag = "--identity-column" if identity_column else "--map" if members else "--dry-run"
        raise typer.BadParameter(f"{flag}: expected --from FILE")
    if identity is None:
        raise typer.BadParameter("expected an identity, or --from FILE")
    parts = identity if part is None else (identity, *part)
    value = {} if payload is None else _json("PAYLOAD", payload)
    with _open_client(tenant, actor, required) as helix:
        accepted = helix.submit(
            queue, identity=parts, payload=value, create=create, **submit_options
        )
    _print_accepted(accepted, as_json=as_json)


def _mapping(members: list[str] | None, identity: list[str] | None) -> dict[str, str]:
    """Columns by member of the payload."""
    pairs = [text.partition("=") for text in members or ()]
    if not all(name and column for name, _, column in pairs) or (pairs and not identity):
        raise typer.BadParameter("--map: expected MEMBER=COLUMN, with --identity-column NAME")
    return {name: column for name, _, column in pairs}


def _json(name: str, text: str) -> Any:  # noqa: ANN401 - any JSON
    try:
        return loads(text)
    except InvalidPayload as error:
        raise typer.BadParameter(f"{name}: {error}") from None


@contextmanager
def _open_client(
    tenant: str | None, actor: str | None, required: str | None
) -> Iterator[HelixQueue | HelixClient]:
    """A client of the service or database; raises if the queue `required` does not exist."""
    service = connection.selected().service
    if service is not None:
        from helixqueue.transport.http.derived_calls import request_of  # noqa: PLC0415 - one of two

        with connection.open_client(service) as client:
            if required:
                try:
                    backend_of(client).run(request_of(queues.show_settings, {"queue": required}))
                except NoSuchQueue:
                    raise _no_queue("the token's tenant", required) from None
            yield client
        return
    with connection.database_target() as target:
        with Database.connect(target.dsn) as database:
            owner = connection.tenant_to_change(database, tenant)
            if required and database.run(calls.queue(tenant=owner, queue=required)) is None:
                raise _no_queue(f"tenant {owner}", required)
        with HelixQueue(target.dsn, owner, actor=actor) as helix:
            yield helix


def _no_queue(tenant: str, queue: str) -> Refused:
    return Refused(
        f"{tenant} has no queue {queue!r}; create it with `helixq queue set {queue} --profile "
        f"PROFILE --reason ...` ({' or '.join(PROFILES)}), or add --create"
    )


def _print_accepted(accepted: Accepted[Any], *, as_json: bool) -> None:
    if as_json:
        show.as_json(
            {
                "decision": accepted.decision,
                "batch_id": accepted.receipt.batch_id,
                "key": accepted.receipt.key,
                "fingerprint": accepted.receipt.fingerprint,
                "state": accepted.state,
                "differs": list(accepted.differs),
            }
        )
        return
    show.table(
        ("decision", "batch", "state"),
        [(accepted.decision, accepted.receipt.batch_id, accepted.state)],
        [show.STYLES[accepted.state]],
    )
    if accepted.differs:
        differing = ", ".join(accepted.differs)
        show.progress(f"the options of the first submission apply; these differ: {differing}")
    if accepted.advice is not None:
        show.progress(accepted.advice)


@dataclass
class SubmitCounts:
    """Rows submitted so far, by outcome."""

    rows: int = 0
    by_outcome: Counter[str] = field(default_factory=Counter)
    problems: list[dict[str, Any]] = field(default_factory=list)

    def add_problem(self, kind: str, line: int, reason: str, **more: object) -> None:
        self.by_outcome[kind] += 1
        if len(self.problems) < PROBLEMS_KEPT:
            self.problems.append({"line": line, "kind": kind, "reason": reason, **more})

    @property
    def failed(self) -> int:
        return self.by_outcome["conflict"] + self.by_outcome["refused"] + self.by_outcome["bad"]


def _submit_file(
    helix: HelixQueue | HelixClient,
    queue: str,
    file: tuple[str, io.BufferedReader, Iterator[submission_files.ParsedRow]],
    *,
    create: bool,
    as_json: bool,
) -> None:
    source, stream, rows = file
    counts = SubmitCounts()
    with show.bar("submitting", "rows", _size(source)) as update:
        try:
            while chunk := list(islice(rows, CHUNK_ROWS)):
                _send(helix, queue, chunk, counts, create=create)
                update(stream.tell() if stream.seekable() else counts.rows, counts.rows)
        except InvalidFile as error:
            counts.add_problem("bad", 1, str(error))
        except (HelixError, KeyboardInterrupt):
            show.progress(
                f"{counts.rows} rows were submitted before this error; submit the whole file "
                "again: accepted rows are reported as duplicates"
            )
            raise
    if not counts.rows and not counts.failed:
        show.progress(f"--from {source}: the file has no rows")
    _print_counts(counts, as_json=as_json)
    raise typer.Exit(Exit.NO if counts.failed else Exit.OK)


def _parse(
    source: str,
    stream: io.BufferedReader,
    file_format: str | None,
    identity: list[str] | None,
    members: dict[str, str],
) -> Iterator[submission_files.ParsedRow]:
    known = _format(source, file_format, stream.peek(_PEEK_BYTES))
    if members and known != "csv":
        raise typer.BadParameter(f"--map: expected CSV, got {known}")
    return submission_files.parse(stream, known, identity or (), members)


def _format(source: str, file_format: str | None, start: bytes) -> submission_files.Format:
    for known in submission_files.FORMATS:
        if file_format == known:
            return known
    if file_format is not None:
        raise typer.BadParameter(
            "--format: expected json, jsonl or csv, or a sheet of illumina, nf-core or ont, got "
            f"{file_format[:80]!r}"
        )
    return submission_files.guess_format(source, start)


@contextmanager
def _open_source(source: str) -> Iterator[io.BufferedReader]:
    if source == "-":
        stdin = getattr(sys.stdin, "buffer", None)
        if not isinstance(stdin, io.BufferedReader):
            raise typer.BadParameter("--from -: expected rows on standard input, but it is closed")
        yield stdin
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
    chunk: list[submission_files.ParsedRow],
    counts: SubmitCounts,
    *,
    create: bool,
) -> None:
    submissions = [row.submission for row in chunk if row.submission is not None]
    answers = iter(helix.submit_many(queue, submissions, create=create))
    for row in chunk:
        if row.submission is None:
            counts.add_problem("bad", row.line, row.reason)
            continue
        answer = next(answers)
        if answer.error is None:
            counts.by_outcome[answer.decision] += 1
        elif isinstance(answer.error, Conflict):
            counts.add_problem("conflict", row.line, str(answer.error), diff=answer.error.diff)
        else:
            counts.add_problem("refused", row.line, str(answer.error))
    counts.rows += len(chunk)


def _print_counts(counts: SubmitCounts, *, as_json: bool) -> None:
    outcomes = ("new", "duplicate", "conflict", "refused", "bad")
    numbers = {outcome: counts.by_outcome[outcome] for outcome in outcomes}
    if as_json:
        show.as_json({"rows": counts.rows, **numbers, "problems": counts.problems})
        return
    for problem in counts.problems[:PROBLEMS_PRINTED]:
        show.progress(f"line {problem['line']}: {problem['kind']}: {problem['reason']}")
        for change in submit_dry_run.changes(problem.get("diff", ())):
            show.progress(f"  {change}")
    if counts.failed > PROBLEMS_PRINTED:
        show.progress(f"and {counts.failed - PROBLEMS_PRINTED} more")
    styles = ["green", "", "bold red", "bold red", "bold red"]
    show.table(
        ("outcome", "rows"),
        [(outcome, str(number)) for outcome, number in numbers.items()],
        [
            style if numbers[outcome] else ""
            for outcome, style in zip(outcomes, styles, strict=True)
        ],
    )
