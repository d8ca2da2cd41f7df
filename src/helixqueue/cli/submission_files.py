"""Rows to submit, read from JSON, JSONL or CSV: each a `Submission` or a line number and a reason.

Reading never stops at a bad row, and never holds more than a line (of JSON: a file) in memory.
"""

from __future__ import annotations

import csv
import json
import re
from datetime import datetime
from itertools import chain
from typing import IO, TYPE_CHECKING, Any, Literal, NamedTuple

from helixqueue.errors import InvalidPayload, Refused
from helixqueue.identity import loads
from helixqueue.records.submission import Submission

if TYPE_CHECKING:
    from collections.abc import Iterator

Format = Literal["json", "jsonl", "csv"]
FORMATS: tuple[Format, ...] = ("json", "jsonl", "csv")

MAX_LINE_BYTES = 2 * 1024 * 1024  # twice the largest payload
MAX_JSON_BYTES = 64 * 1024 * 1024  # JSON is read whole; larger files are JSONL
IN_PAYLOAD = "payload."  # columns of CSV that become members of the payload

_COLUMNS = Submission._fields
_BOM = b"\xef\xbb\xbf"
_UTF_16 = (b"\xff\xfe", b"\xfe\xff")
# Between columns: spreadsheets write what their country or their clipboard has.
_DELIMITERS = (",", ";", "\t")
_SPACE = re.compile(r"[ \t\r\n]*")


class Read(NamedTuple):
    """A row as it was read: what to submit, or why not."""

    line: int
    submission: Submission | None
    reason: str = ""


class BadSheet(Refused):
    """The file as a whole makes no sense: nothing of it was submitted."""


def guess(name: str, start: bytes) -> Format:
    """The format, by the file's name, else by how it begins."""
    for one in FORMATS:
        if name.lower().endswith(f".{one}"):
            return one
    text = start.removeprefix(_BOM).lstrip()
    if text.startswith(b"{"):
        # One object a line, or one object over many lines.
        first = text.partition(b"\n")[0].rstrip()
        return "jsonl" if first.endswith(b"}") or b"\n" not in text else "json"
    return "json" if text.startswith(b"[") else "csv"


def read(stream: IO[bytes], form: Format) -> Iterator[Read]:
    if form == "json":
        return _json(stream)
    return _jsonl(stream) if form == "jsonl" else _csv(stream)


class _Line(NamedTuple):
    number: int
    text: str
    reason: str = ""


def _lines(stream: IO[bytes]) -> Iterator[_Line]:
    """Lines as text, and a reason for each that is none."""
    number = 0
    while line := stream.readline(MAX_LINE_BYTES):
        number += 1
        if number == 1:
            _demand_text(line)
            line = line.removeprefix(_BOM)
        if len(line) == MAX_LINE_BYTES and not line.endswith(b"\n"):
            while (rest := stream.readline(MAX_LINE_BYTES)) and not rest.endswith(b"\n"):
                pass
            yield _Line(number, "\n", f"expected at most {MAX_LINE_BYTES:,} bytes in a line")
        else:
            yield _decoded(number, line)


def _decoded(number: int, line: bytes) -> _Line:
    try:
        return _Line(number, line.decode())
    except UnicodeDecodeError as error:
        # Its quotes still count, or a cell of several lines would end in the wrong one.
        return _Line(number, line.decode("ascii", "replace"), _no_utf_8(error))


def _no_utf_8(error: UnicodeDecodeError) -> str:
    byte, before = error.object[error.start], error.object[max(0, error.start - 20) : error.start]
    near = before.decode("ascii", "replace").rpartition("\n")[2]
    return f"expected UTF-8, got the byte 0x{byte:02X} behind {near!a}: save the file as UTF-8"


def _demand_text(start: bytes) -> None:
    if start.startswith(_UTF_16):
        raise BadSheet("expected UTF-8, got UTF-16: save the file as UTF-8 (with or without BOM)")
    if b"\0" in start:
        raise BadSheet("expected text, got a binary file: save a workbook as CSV, in UTF-8")


def _jsonl(stream: IO[bytes]) -> Iterator[Read]:
    for line in _lines(stream):
        if line.reason:
            yield Read(line.number, None, line.reason)
        elif line.text.strip():
            yield _of_json(line.number, line.text)


def _json(stream: IO[bytes]) -> Iterator[Read]:
    """An array of objects, or one object; an element at a time, each with its line."""
    data = stream.read(MAX_JSON_BYTES + 1)
    _demand_text(data)
    if len(data) > MAX_JSON_BYTES:
        raise BadSheet(
            f"expected at most {MAX_JSON_BYTES:,} bytes of JSON; write JSONL instead, one object a "
            "line, which has no bound"
        )
    try:
        text = data.removeprefix(_BOM).decode()
    except UnicodeDecodeError as error:
        raise BadSheet(_no_utf_8(error)) from None
    at = _after_space(text, 0)
    if at == len(text):
        return
    if text[at] != "[":
        yield _of_json(_line_of(text, at), text[at:])
        return
    yield from _elements(text, at)


def _elements(text: str, at: int) -> Iterator[Read]:
    decoder = json.JSONDecoder()
    at = _after_space(text, at + 1)
    while text[at : at + 1] != "]":
        line = _line_of(text, at)
        try:
            _, end = decoder.raw_decode(text, at)
        except (ValueError, RecursionError) as error:
            # Where the next element begins, nobody can tell.
            where = getattr(error, "lineno", line)
            yield Read(where, None, f"broken JSON: {error}; nothing behind it was read")
            return
        yield _of_json(line, text[at:end])
        at = _after_space(text, end)
        if text[at : at + 1] == ",":
            at = _after_space(text, at + 1)
        elif text[at : at + 1] != "]":
            reason = "broken JSON: expected ',' or ']'; nothing behind it was read"
            yield Read(_line_of(text, at), None, reason)
            return


def _after_space(text: str, at: int) -> int:
    found = _SPACE.match(text, at)
    return at if found is None else found.end()


def _line_of(text: str, at: int) -> int:
    return text.count("\n", 0, at) + 1


def _of_json(line: int, text: str) -> Read:
    try:
        row = loads(text)
    except InvalidPayload as error:
        return Read(line, None, str(error))
    if not isinstance(row, dict):
        got = ascii(text.strip()[:80])
        return Read(line, None, f'expected an object such as {{"identity": ...}}, got {got}')
    return _submission(line, row)


def _csv(stream: IO[bytes]) -> Iterator[Read]:
    csv.field_size_limit(MAX_LINE_BYTES)
    flaws: dict[int, str] = {}

    def texts() -> Iterator[str]:
        for line in _lines(stream):
            if line.reason:
                flaws[line.number] = line.reason
            yield line.text

    lines = texts()
    first = next(lines, "")
    delimiter = next((one for one in _DELIMITERS if one in first), ",")
    reader = csv.reader(chain([first], lines), delimiter=delimiter, strict=True)
    header: list[str] | None = None
    while True:
        line = reader.line_num + 1
        try:
            row = next(reader)
        except StopIteration:
            return
        except csv.Error as error:
            yield Read(line, None, f"broken CSV: {error}")
            continue
        # A cell may go over several lines, and a flaw in any of them is the row's.
        flaw = next((flaws[at] for at in range(line, reader.line_num + 1) if at in flaws), None)
        if flaw is None and not any(cell.strip() for cell in row):
            continue
        if header is None:
            header = _header(row, flaw)
        elif flaw is not None:
            yield Read(line, None, flaw)
        else:
            yield _of_csv(line, header, row)


def _header(row: list[str], flaw: str | None) -> list[str]:
    if flaw is not None:
        raise BadSheet(flaw)
    names = [name.strip() for name in row]
    for name in names:
        if name not in _COLUMNS and not (name.startswith(IN_PAYLOAD) and name != IN_PAYLOAD):
            raise BadSheet(
                f"unknown column {name[:80]!a}; known are {', '.join(_COLUMNS)}. Call it "
                f"{IN_PAYLOAD + name[:80]!a} to make it a member of the payload"
            )
        if names.count(name) > 1:
            raise BadSheet(f"column {name[:80]!a} stands there twice")
    if "identity" not in names:
        raise BadSheet("expected a header with the column identity, got none")
    if "payload" in names and any(name.startswith(IN_PAYLOAD) for name in names):
        raise BadSheet(f"expected payload or {IN_PAYLOAD}... columns, got both")
    return names


def _of_csv(line: int, header: list[str], row: list[str]) -> Read:
    if len(row) != len(header):
        return Read(line, None, f"expected {len(header)} columns, got {len(row)}")
    given: dict[str, Any] = {}
    members: dict[str, Any] = {}
    for name, cell in zip(header, row, strict=True):
        if name.startswith(IN_PAYLOAD):
            members[name.removeprefix(IN_PAYLOAD)] = cell
        elif cell or name == "identity":
            given[name] = cell
    for name in ("payload", "requires"):
        if name in given:
            try:
                given[name] = loads(given[name])
            except InvalidPayload as error:
                return Read(line, None, f"{name}: {error}")
    if re.fullmatch(r"[0-9]", given.get("priority", "")):
        given["priority"] = int(given["priority"])  # else it is refused as it stands
    given.setdefault("payload", members)
    return _submission(line, given)


def _submission(line: int, row: dict[str, Any]) -> Read:
    unknown = next((name for name in row if name not in _COLUMNS), None)
    if unknown is not None:
        return Read(line, None, f"unknown {unknown[:80]!a}; known are {', '.join(_COLUMNS)}")
    if "identity" not in row:
        return Read(
            line, None, "expected an identity (null where there is none), got no such member"
        )
    row.setdefault("payload", {})
    if isinstance(row["identity"], list):
        row["identity"] = tuple(row["identity"])
    for name in ("run_at", "expires_at"):
        if row.get(name) is not None:
            try:
                row[name] = _moment(row[name])
            except (TypeError, ValueError, OverflowError):
                reason = f"{name}: expected a time with its zone such as 2026-03-01T08:00:00+01:00"
                return Read(line, None, reason)
    return Read(line, Submission(**row))


def _moment(text: str) -> datetime:
    when = datetime.fromisoformat(text)
    if when.tzinfo is None:
        raise ValueError(text)
    return when
