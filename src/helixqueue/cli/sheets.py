"""Sample sheets of instruments and pipelines, and CSV with a mapping, as rows to submit.

A sheet says which columns form the identity, which cells are valid, and what the payload is.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from helixqueue.errors import Refused

if TYPE_CHECKING:
    from collections.abc import Iterator

SHEETS: Final = ("illumina", "nf-core", "ont")
DATA_SECTION: Final = "BCLConvert_Data"
_NAME: Final = re.compile(r"[A-Za-z0-9_.-]+")
Row = Mapping[str, str]


class InvalidFile(Refused):
    """The file as a whole is invalid."""


@dataclass
class Sheet:
    """How the rows of a sheet become submissions."""

    required: tuple[str, ...]
    identity: Callable[[Row], Sequence[str]]
    # What the makers of the sheet allow in a cell that is not empty.
    allowed: Mapping[str, re.Pattern[str]] = field(default_factory=dict)
    members: Mapping[str, str] | None = None  # columns by member of the payload; None: all columns
    # The lines with header and rows; other lines are empty, so that the numbers of lines are right.
    read: Callable[[Sheet, Iterator[str]], Iterator[str]] | None = None
    facts: dict[str, str] = field(default_factory=dict)  # members that all rows share

    def check_header(self, names: Sequence[str]) -> None:
        wanted = [*self.required, *(self.members or {}).values()]
        if missing := [name for name in wanted if name not in names]:
            raise InvalidFile(
                f"expected a column {missing[0]!a}, got {', '.join(filter(None, names))[:200]}"
            )
        if twice := [name for name in names if name and names.count(name) > 1]:
            raise InvalidFile(f"expected unique columns, got {twice[0][:80]!a} twice")

    def data_of(self, lines: Iterator[str]) -> Iterator[str]:
        return lines if self.read is None else self.read(self, lines)

    def submission(self, row: Row) -> dict[str, object]:
        """Identity and payload of a row; raises Refused for a cell that is not allowed."""
        for name, pattern in self.allowed.items():
            cell = row.get(name, "")
            if cell and not pattern.fullmatch(cell):
                raise Refused(f"{name}: expected only {pattern.pattern}, got {cell[:80]!a}")
        parts = tuple(self.identity({**self.facts, **row}))
        if self.members is None:
            payload = self.facts | {name: cell for name, cell in row.items() if name and cell}
        else:
            payload = {member: row[name] for member, name in self.members.items()}
        return {"identity": parts[0] if len(parts) == 1 else list(parts), "payload": payload}


def sheet_of(name: str) -> Sheet:
    return {"illumina": _illumina, "nf-core": _nf_core, "ont": _ont}[name]()


def mapped(identity: Sequence[str], members: Mapping[str, str]) -> Sheet:
    """CSV whose columns the caller names."""
    return Sheet(tuple(identity), lambda row: [row[name] for name in identity], members=members)


def _illumina() -> Sheet:
    """Sample sheet v2: a sample of a run, and of a lane if the sheet has lanes."""
    return Sheet(
        ("Sample_ID",),
        lambda row: [row["RunName"], *filter(None, [row.get("Lane")]), row["Sample_ID"]],
        {"Sample_ID": re.compile(r"[A-Za-z0-9_-]+"), "Lane": re.compile("[0-9]+")},
        read=_illumina_data,
    )


def _nf_core() -> Sheet:
    """A row of a sample; a sample with several rows has several files."""
    return Sheet(
        ("sample",),
        lambda row: [row["sample"], *filter(None, [row.get("fastq_1")])],
        {"sample": re.compile(r"\S+")},
    )


def _ont() -> Sheet:
    """Sample sheet of MinKNOW: a barcode of a run."""
    return Sheet(
        (),
        _ont_identity,
        {
            "sample_id": _NAME,
            "experiment_id": _NAME,
            "alias": _NAME,
            "flow_cell_id": re.compile("[A-Z0-9_-]+"),
            "barcode": re.compile("barcode[0-9]+"),
        },
    )


def _ont_identity(row: Row) -> Sequence[str]:
    cell = row.get("flow_cell_id") or row.get("position_id")
    run = (
        [row["protocol_run_id"]] if row.get("protocol_run_id") else [row.get("experiment_id"), cell]
    )
    sample = row.get("barcode") or row.get("sample_id")
    parts = [part for part in (*run, sample) if part]
    if len(parts) <= len(run):
        raise Refused(
            "expected protocol_run_id, or experiment_id with flow_cell_id or position_id, and "
            f"barcode or sample_id; got {', '.join(parts) or 'none'}"
        )
    return parts


def _illumina_data(sheet: Sheet, lines: Iterator[str]) -> Iterator[str]:
    """The data section, after the facts of the header."""
    section = ""
    found = False
    for line in lines:
        cells = [cell.strip().strip('"') for cell in line.strip().split(",")]
        if cells[0].startswith("["):
            section = cells[0].strip("[]")
            if section == DATA_SECTION:
                found = True
                _require_header(sheet.facts)
            yield "\n"
        elif section == DATA_SECTION:
            yield line
        else:
            if section == "Header" and len(cells) > 1 and cells[1]:
                sheet.facts[cells[0]] = cells[1]
            yield "\n"
    if not found:
        raise InvalidFile(f"expected a section [{DATA_SECTION}], got a sheet without it")


def _require_header(facts: dict[str, str]) -> None:
    version = facts.get("FileFormatVersion", "none")
    if version != "2":
        raise InvalidFile(f"[Header]: expected FileFormatVersion 2, got {version[:20]!a}")
    if "RunName" not in facts:
        raise InvalidFile(
            "[Header]: expected RunName, got none; without it samples of two runs are the same"
        )
    for name in facts.keys() - {"RunName"}:
        del facts[name]
