"""Every file and every `file:function` that ARCHITECTURE.md names exists."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src" / "helixqueue"
TEXT = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8")
REFERENCE = re.compile(r"`([\w/.]+\.(?:py|sql))(?::([\w.]+))?`")


def _path(file: str) -> Path:
    return ROOT / file if file.startswith(("tests/", "benchmarks/")) else SOURCE / file


@cache
def _names(path: Path) -> set[str]:
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".sql":
        return set(
            re.findall(r"(?i)create (?:or replace )?(?:function|table|view) helix\.(\w+)", text)
        )
    names = set()
    for node in ast.parse(text).body:
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            names.add(node.name)
        if isinstance(node, ast.ClassDef):
            names |= {
                f"{node.name}.{inner.name}"
                for inner in node.body
                if isinstance(inner, ast.FunctionDef | ast.AsyncFunctionDef)
            }
    return names


def test_every_file_and_function_exists() -> None:
    references = REFERENCE.findall(TEXT)
    missing = [file for file, _ in references if not _path(file).exists()]
    assert missing == []
    assert [
        f"{file}:{name}" for file, name in references if name and name not in _names(_path(file))
    ] == []
    assert sum(bool(name) for _, name in references) >= 20


def test_every_sql_file_is_listed() -> None:
    """A range such as `85_check` to `88_replay` covers the files between."""
    files = sorted(path.stem for path in (SOURCE / "engine" / "sql").glob("*.sql"))
    named = set(re.findall(r"`(\d\d_\w+)`", TEXT))
    assert named <= set(files)
    for first, last in re.findall(r"`(\d\d_\w+)` to `(\d\d_\w+)`", TEXT):
        named |= {file for file in files if first <= file <= last}
    assert [file for file in files if file not in named] == []


def test_every_package_is_listed() -> None:
    packages = {path.parent.name for path in SOURCE.glob("*/__init__.py")}
    assert [name for name in sorted(packages) if f"`{name}/`" not in TEXT] == []
