"""Every table of the command line at three widths, with values that are too long for it."""

from __future__ import annotations

import ast
import importlib
import inspect
import itertools
import pkgutil
import re
from datetime import UTC, datetime
from typing import NamedTuple
from uuid import UUID

import pytest
from rich.cells import cell_len

from helixqueue import cli
from helixqueue.cli import show
from tests.support.cli import printed_on_a_terminal

# Columns that answer the question of a table; a narrow terminal keeps them.
ANSWERS = {
    "verdict", "status", "state", "answer", "decision", "outcome", "reason", "remedy", "failure",
    "name", "queue", "worker", "identity", "fence", "letter", "batch", "key", "setting",
    "sample", "duty", "invariant", "ledger", "feed", "stream", "detail", "text", "message",
    "working on",
}  # fmt: skip


class TableCall(NamedTuple):
    """A call of `show.table` in the source."""

    where: str
    columns: tuple[str, ...]
    first: str | None
    optional: tuple[str, ...]


def table_calls():
    for module in pkgutil.iter_modules(cli.__path__):
        loaded = importlib.import_module(f"helixqueue.cli.{module.name}")
        for function in ast.walk(ast.parse(inspect.getsource(loaded))):
            if not isinstance(function, ast.FunctionDef):
                continue
            for node in ast.walk(function):
                if isinstance(node, ast.Call) and ast.unparse(node.func) == "show.table":
                    arguments = {"columns": node.args[0]} | {k.arg: k.value for k in node.keywords}
                    values = {
                        name: eval(ast.unparse(arguments[name]), vars(loaded))  # noqa: S307 - our source
                        if name in arguments
                        else ()
                        for name in ("columns", "first", "optional")
                    }
                    where = f"{module.name} {function.name.strip('_')}"
                    yield TableCall(
                        where, values["columns"], values["first"] or None, values["optional"]
                    )


CALLS = list(table_calls())


def long_cell(number, name):
    """Words, a long word, and letters that take two cells."""
    return f"{name}{number} 配列-Sämple-{'0123456789' * 4} and {number} more words of {name}"


def printed(monkeypatch, width, columns, rows, **options):
    monkeypatch.setenv("COLUMNS", str(width))
    return printed_on_a_terminal(lambda: show.table(columns, rows, **options)).splitlines()


def at_cells(line, start, end):
    """The part of a line between two cells of the terminal."""
    ends = itertools.accumulate(map(cell_len, line))
    return "".join(c for c, e in zip(line, ends, strict=True) if start < e <= end)


def cells_of(lines, columns):
    """The text of each column without spaces: in its column, or below the rows."""
    header = [(match.start(), match[0]) for match in re.finditer(r"\S+( \S+)*", lines[0])]
    assert {name for _, name in header} <= set(columns), "a header is broken"
    found = dict.fromkeys(columns, "")
    below = None
    for line in lines[2:]:
        if named := re.match(r"  (\S[^:]*): (.*)", line):
            below = named[1]
            found[below] += named[2].replace(" ", "")
        elif below is not None and line.startswith("    "):
            found[below] += line.replace(" ", "")
        else:
            below = None
            for (start, name), (end, _) in itertools.pairwise([*header, (9999, "")]):
                found[name] += at_cells(line, start, end).replace(" ", "")
    return found


@pytest.mark.parametrize("width", [80, 100, 140])
@pytest.mark.parametrize("table", CALLS, ids=lambda table: table.where)
def test_table_with_long_values_keeps_every_answer_column(monkeypatch, table, width):
    rows = [[long_cell(number, name) for name in table.columns] for number in range(2)]
    options = {"first": table.first, "optional": table.optional}
    lines = printed(monkeypatch, width, table.columns, rows, **options)
    assert [line for line in lines if cell_len(line) > width] == []
    found = cells_of(lines, table.columns)
    # The tenants differ, so that a list of several tenants says whose its rows are.
    for place, name in enumerate(table.columns):
        if name not in table.optional or name == "tenant":
            assert found[name] == "".join(row[place] for row in rows).replace(" ", ""), name


def test_no_table_leaves_out_an_answer_column():
    assert len(CALLS) > 25
    left_out = {
        (call.where, name) for call in CALLS for name in ANSWERS.intersection(call.optional)
    }
    # Beside a batch or a run its queue is no answer.
    assert {where for where, name in left_out if name == "queue"} == {
        "batch list", "batch causes", "run list", "worker show",
    }  # fmt: skip
    assert {name for _, name in left_out} == {"queue"}


def test_column_of_one_tenant_is_left_out_where_it_does_not_fit(monkeypatch):
    columns = ("tenant", "queue", "text")
    rows = [["a" * 20, f"{n}" * 20, "x" * 70] for n in range(2)]
    assert "tenant" not in printed(monkeypatch, 70, columns, rows, optional=("tenant",))[0]
    assert "tenant" in printed(monkeypatch, 80, columns, rows, optional=("tenant",))[0]
    rows[1][0] = "b" * 20
    lines = printed(monkeypatch, 70, columns, rows, optional=("tenant",))
    assert "tenant" in lines[0]
    assert lines[-3:] == ["  text:", f"    {'x' * 66}", "    xxxx"]


def test_terminal_shows_short_keys_and_ids_and_a_pipe_whole_ones(monkeypatch, capsys):
    key, batch = f"v1:{'6ead468e' * 8}", UUID(int=7)
    columns, row = ("key", "batch", "at"), (key, batch, datetime.now(UTC))
    lines = printed(monkeypatch, 80, columns, [row])
    assert lines[2].split() == [key[:15], "00000000", "0", "s", "ago"]
    show.table(columns, [row])
    assert capsys.readouterr().out.splitlines()[1].split("\t")[:2] == [key, str(batch)]
