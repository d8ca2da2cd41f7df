"""`helixq batch export`: batches with receipt, payload and result, as CSV or JSON lines.

Rows are written as they are read, so the memory of an export does not depend on its length.
"""

from __future__ import annotations

import csv
import inspect
import json
import sys
from contextlib import contextmanager, suppress
from dataclasses import fields
from functools import partial
from itertools import islice
from pathlib import Path
from typing import IO, TYPE_CHECKING, Annotated, Any, Final

import typer

from helixqueue.cli import connection, options, pages, shapes, show
from helixqueue.cli.command import command
from helixqueue.cli.derived_commands import current, parameters_of
from helixqueue.cli.operation import Runner
from helixqueue.cli.options import option
from helixqueue.engine import reads
from helixqueue.errors import NoSuchBatch
from helixqueue.fence import key_file
from helixqueue.operations.batch_reads import list_batches, show_batch
from helixqueue.records.batch import BatchContent
from helixqueue.transport.http import checks

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from helixqueue.cli.connection import Target
    from helixqueue.records.batch import BatchRow

# Payloads and results have at most 1 MiB each, so this many batches stay below 50 MiB.
CHUNK_ROWS: Final = 24
FORMATS: Final = ("csv", "jsonl")
# Spreadsheets evaluate cells that begin with these characters.
_FORMULA: Final = ("=", "+", "-", "@", "\t", "\r")
COLUMNS: Final = tuple(field.name for field in fields(BatchContent))

Format = Annotated[
    str | None,
    option("--format FORMAT", "csv or jsonl. [default: by the name of --out, else jsonl]"),
]
Out = Annotated[
    Path | None,
    option("--out FILE", "Write to this file instead of standard output.", dir_okay=False),
]


def register(app: typer.Typer) -> None:
    own = inspect.signature(_export, eval_str=True)
    *options_of_export, _ = own.parameters.values()  # without **filters
    filters = [item for item in parameters_of(list_batches) if item.name not in {"after", "limit"}]
    _export.__signature__ = own.replace(  # type: ignore[attr-defined]
        parameters=[*filters, *options_of_export]
    )
    add = command(app, "export", example="helixq batch export --queue basecall --out basecall.csv")
    add(connection.service_or_database(_export))


def _export(
    *,
    out: Out = None,
    file_format: Format = None,
    tenant: options.Tenant = None,
    as_json: options.AsJson = False,
    **filters: Any,  # noqa: ANN401 - of a list
) -> None:
    """Export batches with payload and result as CSV or JSON lines.

    Each row has the receipt (batch_id, key, fingerprint), both spellings of the identity, state,
    times and failure. In CSV an identity of several parts, the payload and the result are JSON, and
    a cell that a spreadsheet would evaluate begins with an apostrophe; JSON lines are exact. With
    --out, --json prints the number of rows, and the public keys of the key file or of the service,
    if there are any, are written beside the file, as FILE.keys.json.
    """
    kind = _format(file_format, out)
    if as_json and out is None:
        raise typer.BadParameter("--json: expected --out FILE; the rows go to standard output")
    with connection.open_target() as target:
        keys = None if out is None else public_keys(target)
        ask = Runner(target, tenant, every_tenant=True)
        filters = current(filters)
        rows = pages.read_all(
            lambda **page: ask(lambda operations: list_batches(operations, **filters, **page))
        )
        with _open(out) as file, show.bar("exporting", "batches", None) as update:
            write = _csv_writer(file) if kind == "csv" else partial(_write_json, file)
            number = 0
            for number, content in enumerate(contents(target, ask, rows), start=1):
                write(shapes.plain(content))
                update(number, number)
    beside = None if out is None or keys is None else key_file.publish_beside(out, keys)
    if as_json:
        published = None if beside is None else str(beside)
        show.as_json({"rows": number, "out": str(out), "keys": published})
    else:
        show.progress(f"exported {number:,} batches" + ("" if out is None else f" to {out}"))
        if beside is not None:
            show.progress(f"public keys in {beside}")


def public_keys(target: Target) -> dict[str, Any]:
    """The public keys of the service, or of the key file of this machine."""
    if target.is_service:
        document: dict[str, Any] = target.run(checks.keys())
        return document
    return key_file.public_document(key_file.find_keys())


def contents(target: Target, ask: Runner, rows: Iterator[BatchRow]) -> Iterator[BatchContent]:
    """Batches with their payloads and results, in the order of the rows."""
    while chunk := [row.batch_id for row in islice(rows, CHUNK_ROWS)]:
        if not target.is_service:
            yield from target.run(reads.contents(ids=chunk))
            continue
        for batch_id in chunk:  # a service returns one batch per request
            with suppress(NoSuchBatch):  # retired meanwhile
                detail = ask(partial(show_batch, batch_id=batch_id, payload=True))
                if detail.queue is not None:
                    yield BatchContent(**{name: getattr(detail, name) for name in COLUMNS})


def _format(file_format: str | None, out: Path | None) -> str:
    name = file_format or ("csv" if out is not None and out.suffix.lower() == ".csv" else "jsonl")
    if name not in FORMATS:
        raise typer.BadParameter(f"--format: expected csv or jsonl, got {name[:80]!a}")
    return name


@contextmanager
def _open(out: Path | None) -> Iterator[IO[str]]:
    """The output; a file appears under its name when it is complete."""
    if out is None:
        yield sys.stdout
        return
    partial_file = out.with_name(f"{out.name}.partial")
    try:
        # Payloads may be confidential: readable by this user only.
        partial_file.unlink(missing_ok=True)
        partial_file.touch(mode=0o600)
        with partial_file.open("w", encoding="utf-8", newline="") as file:
            yield file
        partial_file.rename(out)
    except BaseException:
        partial_file.unlink(missing_ok=True)
        raise


def _csv_writer(file: IO[str]) -> Callable[[dict[str, Any]], None]:
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(COLUMNS)
    return lambda row: writer.writerow([_cell(name, row[name]) for name in COLUMNS])


def _cell(name: str, value: Any) -> str:  # noqa: ANN401 - any member of a row
    if value is None and name not in {"payload", "result"}:
        return ""
    if name in {"payload", "result"} or isinstance(value, list):
        text = "" if value is None else json.dumps(value, ensure_ascii=False)
    else:
        text = str(value)
    return f"'{text}" if text.startswith(_FORMULA) else text


def _write_json(file: IO[str], row: dict[str, Any]) -> None:
    text = json.dumps(row, ensure_ascii=False, default=str)
    # Some readers of lines take these two for ends of lines.
    file.write(text.replace("\u2028", "\\u2028").replace("\u2029", "\\u2029") + "\n")
