"""Reads rows to submit from JSON, JSONL or CSV.

A row is a `Submission`, or a line number and the reason why it is invalid. Reading continues after
an invalid row, and keeps one line in memory (for JSON: one file).
"""

from __future__ import annotations

import csv
import json
import re
from datetime import datetime
from itertools import chain
from typing import IO, TYPE_CHECKING, Any, Literal, NamedTuple

from helixqueue.cli.sheets import SHEETS, InvalidFile, Sheet, mapped, sheet_of
from helixqueue.errors import InvalidPayload, Refused
from helixqueue.identity import loads
from helixqueue.records.submission import Submission

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

Format = Literal["json", "jsonl", "csv", "illumina", "nf-core", "ont"]
FORMATS: tuple[Format, ...] = ("json", "jsonl", "csv", "illumina", "nf-core", "ont")
_ILLUMINA = b"[Header]"

MAX_LINE_BYTES = 2 * 1024 * 1024  # twice the largest payload
MAX_JSON_BYTES = 64 * 1024 * 1024  # a JSON file is read whole; larger files need JSONL
PAYLOAD_PREFIX = "payload."  # CSV columns that become members of the payload

_COLUMNS = Submission._fields
_BOM = b"\xef\xbb\xbf"
_UTF_16 = (b"\xff\xfe", b"\xfe\xff")
# Spreadsheets choose the delimiter by locale or clipboard.
_DELIMITERS = (",", ";", "\t")
_SPACE = re.compile(r"[ \t\r\n]*")


class ParsedRow(NamedTuple):
    """A submission, or the reason why the row is invalid."""

    line: int
    submission: Submission | None
    reason: str = ""


def guess_format(name: str, start: bytes) -> Format:
    """The format by file name, else by the first bytes."""
    if start.removeprefix(_BOM).startswith(_ILLUMINA):
        return "illumina"
    for known in FORMATS:
        if name.lower().endswith(f".{known}"):
            return known
    text = start.removeprefix(_BOM).lstrip()
    if text.startswith(b"{"):
        # One object per line, or one object over several lines.
        first = text.partition(b"\n")[0].rstrip()
        return "jsonl" if first.endswith(b"}") or b"\n" not in text else "json"
    return "json" if text.startswith(b"[") else "csv"


def parse(
    stream: IO[bytes],
    file_format: Format,
    identity: Sequence[str] = (),
    members: Mapping[str, str] | None = None,
) -> Iterator[ParsedRow]:
    """The rows of a file. With `identity`, its columns or members form the identity.

    All other columns or members then form the payload, or the columns that `members` names.
    """
    if file_format in SHEETS:
        return _parse_csv(stream, (), sheet_of(file_format))
    if members:
        return _parse_csv(stream, (), mapped(identity, members))
    if file_format == "json":
        return _parse_json(stream, identity)
    if file_format == "jsonl":
        return _parse_jsonl(stream, identity)
    return _parse_csv(stream, identity)


class TextLine(NamedTuple):
    number: int
    text: str
    reason: str = ""  # why the line cannot be decoded


def _lines(stream: IO[bytes]) -> Iterator[TextLine]:
    """Decoded lines."""
    number = 0
    while line := stream.readline(MAX_LINE_BYTES):
        number += 1
        if number == 1:
            _require_text(line)
            line = line.removeprefix(_BOM)
        if len(line) == MAX_LINE_BYTES and not line.endswith(b"\n"):
            while (rest := stream.readline(MAX_LINE_BYTES)) and not rest.endswith(b"\n"):
                pass
            yield TextLine(
                number, "\n", f"expected at most {MAX_LINE_BYTES:,} bytes per line, got more"
            )
        else:
            yield _decoded(number, line)


def _decoded(number: int, line: bytes) -> TextLine:
    try:
        return TextLine(number, line.decode())
    except UnicodeDecodeError as error:
        # Keep its quotes: they decide where a cell of several lines ends.
        return TextLine(number, line.decode("ascii", "replace"), _not_utf_8(error))


def _not_utf_8(error: UnicodeDecodeError) -> str:
    byte, before = error.object[error.start], error.object[max(0, error.start - 20) : error.start]
    near = before.decode("ascii", "replace").rpartition("\n")[2]
    return f"expected UTF-8, got the byte 0x{byte:02X} after {near!a}; save the file as UTF-8"


def _require_text(start: bytes) -> None:
    if start.startswith(_UTF_16):
        raise InvalidFile("expected UTF-8, got UTF-16; save the file as UTF-8, with or without BOM")
    if b"\0" in start:
        raise InvalidFile("expected text, got a binary file; save a workbook as CSV in UTF-8")


def _parse_jsonl(stream: IO[bytes], identity: Sequence[str]) -> Iterator[ParsedRow]:
    for line in _lines(stream):
        if line.reason:
            yield ParsedRow(line.number, None, line.reason)
        elif line.text.strip():
            yield _row_of_json(line.number, line.text, identity)


def _parse_json(stream: IO[bytes], identity: Sequence[str]) -> Iterator[ParsedRow]:
    """An array of objects, or one object."""
    data = stream.read(MAX_JSON_BYTES + 1)
    _require_text(data)
    if len(data) > MAX_JSON_BYTES:
        raise InvalidFile(
            f"expected at most {MAX_JSON_BYTES:,} bytes of JSON, got more; use JSONL (one object "
            "per line), which has no limit"
        )
    try:
        text = data.removeprefix(_BOM).decode()
    except UnicodeDecodeError as error:
        raise InvalidFile(_not_utf_8(error)) from None
    at = _after_space(text, 0)
    if at == len(text):
        return
    if text[at] != "[":
        yield _row_of_json(_line_of(text, at), text[at:], identity)
        return
    yield from _elements(text, at, identity)


def _elements(text: str, at: int, identity: Sequence[str]) -> Iterator[ParsedRow]:
    decoder = json.JSONDecoder()
    at = _after_space(text, at + 1)
    while text[at : at + 1] != "]":
        line = _line_of(text, at)
        try:
            _, end = decoder.raw_decode(text, at)
        except (ValueError, RecursionError) as error:
            # The start of the next element is unknown.
            where = getattr(error, "lineno", line)
            yield ParsedRow(
                where, None, f"invalid JSON: {error}; the rest of the file was not read"
            )
            return
        yield _row_of_json(line, text[at:end], identity)
        at = _after_space(text, end)
        if text[at : at + 1] == ",":
            at = _after_space(text, at + 1)
        elif text[at : at + 1] != "]":
            reason = "invalid JSON: expected ',' or ']'; the rest of the file was not read"
            yield ParsedRow(_line_of(text, at), None, reason)
            return


def _after_space(text: str, at: int) -> int:
    match = _SPACE.match(text, at)
    return at if match is None else match.end()


def _line_of(text: str, at: int) -> int:
    return text.count("\n", 0, at) + 1


def _row_of_json(line: int, text: str, identity: Sequence[str]) -> ParsedRow:
    try:
        row = loads(text)
    except InvalidPayload as error:
        return ParsedRow(line, None, str(error))
    if not isinstance(row, dict):
        got = ascii(text.strip()[:80])
        return ParsedRow(line, None, f'expected an object such as {{"identity": ...}}, got {got}')
    return _row_of_columns(line, row, identity) if identity else _submission(line, row)


def _row_of_columns(line: int, row: dict[str, Any], identity: Sequence[str]) -> ParsedRow:
    """The columns `identity` form the identity, all others the payload."""
    missing = next((name for name in identity if name not in row), None)
    if missing is not None:
        return ParsedRow(
            line, None, f"expected the column {missing[:80]!a} of the identity, got none"
        )
    parts = tuple(row.pop(name) for name in identity)
    name = parts[0] if len(parts) == 1 else list(parts)
    return _submission(line, {"identity": name, "payload": row})


def _parse_csv(
    stream: IO[bytes], identity: Sequence[str], sheet: Sheet | None = None
) -> Iterator[ParsedRow]:
    csv.field_size_limit(MAX_LINE_BYTES)
    reasons: dict[int, str] = {}

    def texts() -> Iterator[str]:
        for line in _lines(stream):
            if line.reason:
                reasons[line.number] = line.reason
            yield line.text

    lines = texts() if sheet is None else sheet.data_of(texts())
    first = next(lines, "")
    delimiter = next((mark for mark in _DELIMITERS if mark in first), ",")
    reader = csv.reader(chain([first], lines), delimiter=delimiter, strict=True)
    header: list[str] | None = None
    while True:
        line = reader.line_num + 1
        try:
            row = next(reader)
        except StopIteration:
            return
        except csv.Error as error:
            yield ParsedRow(line, None, f"invalid CSV: {error}")
            continue
        # A cell may span several lines; an undecodable line makes the row invalid.
        reason = next(
            (reasons[at] for at in range(line, reader.line_num + 1) if at in reasons), None
        )
        if reason is None and not any(cell.strip() for cell in row):
            continue
        if header is None:
            header = _header(row, reason, identity, sheet)
        elif reason is not None:
            yield ParsedRow(line, None, reason)
        else:
            yield _row_of_cells(line, header, row, identity, sheet)


def _header(
    row: list[str], reason: str | None, identity: Sequence[str], sheet: Sheet | None
) -> list[str]:
    if reason is not None:
        raise InvalidFile(reason)
    names = [name.strip() for name in row]
    if sheet is not None:
        sheet.check_header(names)
        return names
    if identity:
        return _header_with_identity(names, identity)
    for name in names:
        if name not in _COLUMNS and not (
            name.startswith(PAYLOAD_PREFIX) and name != PAYLOAD_PREFIX
        ):
            raise InvalidFile(
                f"unknown column {name[:80]!a}; known are {', '.join(_COLUMNS)}. Rename it to "
                f"{PAYLOAD_PREFIX + name[:80]!a} to make it a member of the payload, or use "
                "--identity-column NAME, which puts all other columns into the payload"
            )
        if names.count(name) > 1:
            raise InvalidFile(f"expected unique columns, got {name[:80]!a} twice")
    if "identity" not in names:
        raise InvalidFile("expected a header with the column identity, got a header without it")
    if "payload" in names and any(name.startswith(PAYLOAD_PREFIX) for name in names):
        raise InvalidFile(f"expected payload or {PAYLOAD_PREFIX}... columns, got both")
    return names


def _header_with_identity(names: list[str], identity: Sequence[str]) -> list[str]:
    missing = next((name for name in identity if name not in names), None)
    if missing is not None:
        raise InvalidFile(
            f"--identity-column: expected one of {', '.join(names)[:200]}, got {missing[:80]!a}"
        )
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise InvalidFile(f"expected unique columns, got {twice[:80]!a} twice")
    return names


def _row_of_cells(
    line: int, header: list[str], row: list[str], identity: Sequence[str], sheet: Sheet | None
) -> ParsedRow:
    if len(row) != len(header):
        return ParsedRow(line, None, f"expected {len(header)} columns, got {len(row)}")
    if sheet is not None:
        return _row_of_sheet(line, dict(zip(header, row, strict=True)), sheet)
    if identity:
        return _row_of_columns(line, dict(zip(header, row, strict=True)), identity)
    return _row_of_csv(line, header, row)


def _row_of_csv(line: int, header: list[str], row: list[str]) -> ParsedRow:
    values: dict[str, Any] = {}
    members: dict[str, Any] = {}
    for name, cell in zip(header, row, strict=True):
        if name.startswith(PAYLOAD_PREFIX):
            members[name.removeprefix(PAYLOAD_PREFIX)] = cell
        elif cell or name == "identity":
            values[name] = cell
    for name in ("payload", "requires"):
        if name in values:
            try:
                values[name] = loads(values[name])
            except InvalidPayload as error:
                return ParsedRow(line, None, f"{name}: {error}")
    if re.fullmatch(r"[0-9]", values.get("priority", "")):
        values["priority"] = int(
            values["priority"]
        )  # other texts are refused later, with the original value
    values.setdefault("payload", members)
    return _submission(line, values)


def _row_of_sheet(line: int, row: dict[str, str], sheet: Sheet) -> ParsedRow:
    try:
        return _submission(line, sheet.submission({n: cell.strip() for n, cell in row.items()}))
    except Refused as error:
        return ParsedRow(line, None, str(error))


def _submission(line: int, row: dict[str, Any]) -> ParsedRow:
    unknown = next((name for name in row if name not in _COLUMNS), None)
    if unknown is not None:
        return ParsedRow(line, None, f"unknown {unknown[:80]!a}; known are {', '.join(_COLUMNS)}")
    if "identity" not in row:
        return ParsedRow(
            line, None, "expected a member identity (null for none), got a row without it"
        )
    row.setdefault("payload", {})
    if isinstance(row["identity"], list):
        row["identity"] = tuple(row["identity"])
    for name in ("run_at", "expires_at"):
        if row.get(name) is not None:
            try:
                row[name] = _parse_time(row[name])
            except (TypeError, ValueError, OverflowError):
                reason = f"{name}: expected a time with its zone such as 2026-03-01T08:00:00+01:00"
                return ParsedRow(line, None, reason)
    return ParsedRow(line, Submission(**row))


def _parse_time(text: str) -> datetime:
    time = datetime.fromisoformat(text)
    if time.tzinfo is None:
        raise ValueError(text)
    return time
