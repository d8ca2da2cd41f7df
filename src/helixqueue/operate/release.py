"""The objects that this release creates in the database, for `check` to compare with.

Functions and sets of invariants are read from the SQL files that create them. Triggers and policies
are read from `expected_schema.json`, generated from a migrated database: PostgreSQL stores their
conditions in another form than the files have.
"""

from __future__ import annotations

import json
import re
from functools import cache
from importlib.resources import files
from textwrap import dedent
from typing import Any

from helixqueue.postgres.statements import parse_notes

_FUNCTION = re.compile(
    r"^create (?:or replace )?function helix\.(\w+)\((.*?)\bas \$\$(.*?)\$\$",
    re.MULTILINE | re.DOTALL,
)
_SETTING = re.compile(r"\bset (\w+) = ([^\n]*?)(?=\s+set \w+ =|\s*$)", re.MULTILINE)
_INVARIANT = re.compile(r"^-- name: (\w+)\n", re.MULTILINE)


@cache
def check_sets() -> dict[str, dict[str, dict[str, str]]]:
    """Return the invariants of `helix.read_check_v1`: set, name, notes."""
    sets: dict[str, dict[str, dict[str, str]]] = {}
    for name, _, body in _functions():
        if name.startswith("read_check_") and name != "read_check_v1":
            _, *parts = _INVARIANT.split(dedent(body))
            sets[name.removeprefix("read_check_")] = {
                invariant: parse_notes(text)[0]
                for invariant, text in zip(parts[::2], parts[1::2], strict=True)
            }
    return sets


@cache
def definitions() -> dict[str, list[Any]]:
    """Return functions, triggers and policies as arguments of the queries in `check_schema.sql`."""
    functions = []
    for name, head, body in _functions():
        clauses = re.sub(r"--.*", "", head)
        settings = sorted(
            f"{setting}={value}".replace(" ", "").replace("'", "").lower()
            for setting, value in _SETTING.findall(clauses)
        )
        functions.append((name, body, "security definer" in clauses, ";".join(settings)))
    text = (files("helixqueue.operate") / "expected_schema.json").read_text(encoding="utf-8")
    expected = json.loads(text)
    return {
        "function_name": [function[0] for function in functions],
        "function_body": [function[1] for function in functions],
        "function_definer": [function[2] for function in functions],
        "function_settings": [function[3] for function in functions],
        **_columns("trigger", expected["triggers"]),
        **_columns("policy", expected["policies"]),
    }


def _columns(kind: str, objects: list[list[str]]) -> dict[str, list[Any]]:
    return {
        f"{kind}_table": [table for table, _, _ in objects],
        f"{kind}_name": [name for _, name, _ in objects],
        f"{kind}_definition": [definition for _, _, definition in objects],
    }


def _functions() -> list[tuple[str, str, str]]:
    """Return name, head and body of every function of the engine, in the order of the files."""
    scripts = (files("helixqueue.engine") / "sql").iterdir()
    return [
        function
        for script in sorted(scripts, key=lambda script: script.name)
        for function in _FUNCTION.findall(script.read_text(encoding="utf-8"))
    ]
