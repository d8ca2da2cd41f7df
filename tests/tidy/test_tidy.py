"""Files and functions stay small, and module names are specific."""

from __future__ import annotations

import ast
from pathlib import Path

SOURCE = Path(__file__).parents[2] / "src" / "helixqueue"
FILE_LINES_MAX = 400
FUNCTION_LINES_MAX = 70
GENERIC_NAMES = {"utils", "util", "helpers", "helper", "common", "base", "manager", "misc"}


def test_no_source_file_exceeds_the_line_limit() -> None:
    # The SQL of submit and claim is one function each; their files are the exception to shorten.
    long = {
        path.name: lines
        for path in SOURCE.rglob("*")
        if path.suffix in {".py", ".sql"}
        and (lines := len(path.read_text(encoding="utf-8").splitlines())) > FILE_LINES_MAX
    }
    assert long == {}


def test_no_function_exceeds_the_line_limit() -> None:
    long = [
        f"{path.name}:{node.lineno} {node.name}"
        for path in SOURCE.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and (node.end_lineno or 0) - node.lineno >= FUNCTION_LINES_MAX
    ]
    assert long == []


def test_no_module_has_a_generic_name() -> None:
    assert [path.name for path in SOURCE.rglob("*.py") if path.stem in GENERIC_NAMES] == []
