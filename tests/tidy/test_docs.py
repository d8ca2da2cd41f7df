"""Tests, files and verbs that documents name exist."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from helixqueue.cli.main import VERBS

ROOT = Path(__file__).parents[2]
DOCUMENTS = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]


def _named(document: Path) -> set[str]:
    return set(re.findall(r"`(test_\w+)`", document.read_text(encoding="utf-8")))


def test_every_test_that_a_document_names_exists() -> None:
    tests = (path.read_text(encoding="utf-8") for path in (ROOT / "tests").rglob("test_*.py"))
    written = {name for text in tests for name in re.findall(r"def (test_\w+)\(", text)}
    missing = {document.name: _named(document) - written for document in DOCUMENTS}
    assert {name: gone for name, gone in missing.items() if gone} == {}
    assert len(_named(ROOT / "docs" / "guarantees.md")) > 30


def test_every_behaviour_of_the_idempotency_layer_names_a_test() -> None:
    text = (ROOT / "docs" / "idempotency-behaviours.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| (\d+) \|(.*)$", text, re.MULTILINE)
    assert [int(number) for number, _ in rows] == list(range(1, 51))
    assert [number for number, row in rows if "`test_" not in row] == []
    # The same for the tables of edge cases and of defects of other libraries.
    heads = re.compile(r"\| (\| behaviour|case|seen in) \|")
    rest = [line for line in text.splitlines() if line.startswith("| ") and not heads.match(line)]
    assert [line for line in rest if "`test_" not in line] == []
    assert "not yet" not in text.lower()


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_every_file_that_a_document_links_to_exists(document: Path) -> None:
    links = re.findall(r"\]\(([^)#:]+)\)", document.read_text(encoding="utf-8"))
    assert [link for link in links if not (document.parent / link).exists()] == []


def test_readme_shows_every_verb() -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    assert [verb for verb in VERBS if f"`helixq {verb}`" not in readme] == []
