"""Style is a test: files stay small, and names say what a thing is."""

from __future__ import annotations

import ast
from pathlib import Path

SOURCE = Path(__file__).parents[2] / "src" / "helixqueue"
FILE_LINES_MAX = 400
FUNCTION_LINES_MAX = 70
EMPTY_WORDS = {"utils", "util", "helpers", "helper", "common", "base", "manager", "misc"}


def test_no_source_file_is_longer_than_a_sitting() -> None:
    # The SQL of submit and claim is one function each; their files are the exception to shorten.
    long = {
        path.name: lines
        for path in SOURCE.rglob("*")
        if path.suffix in {".py", ".sql"}
        and (lines := len(path.read_text(encoding="utf-8").splitlines())) > FILE_LINES_MAX
    }
    assert long == {}


def test_no_function_is_longer_than_a_screen() -> None:
    long = [
        f"{path.name}:{node.lineno} {node.name}"
        for path in SOURCE.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and (node.end_lineno or 0) - node.lineno >= FUNCTION_LINES_MAX
    ]
    assert long == []


def test_no_module_has_a_name_that_says_nothing() -> None:
    assert [path.name for path in SOURCE.rglob("*.py") if path.stem in EMPTY_WORDS] == []
