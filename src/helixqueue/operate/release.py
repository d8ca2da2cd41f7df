"""What this release says the database contains, for `check` to compare with.

Functions and the sets of invariants come from the files that create them. Triggers and policies
come from `engine/schema.sql`, where PostgreSQL wrote them down: the conditions of triggers have
another text in the database than in the file that creates them.
"""

from __future__ import annotations

import re
from functools import cache
from importlib.resources import files
from textwrap import dedent
from typing import Any

from helixqueue.engine.statements import notes_of

_FUNCTION = re.compile(
    r"^create (?:or replace )?function helix\.(\w+)\((.*?)\bas \$\$(.*?)\$\$",
    re.MULTILINE | re.DOTALL,
)
_SETTING = re.compile(r"\bset (\w+) = ([^\n]*?)(?=\s+set \w+ =|\s*$)", re.MULTILINE)
_INVARIANT = re.compile(r"^-- name: (\w+)\n", re.MULTILINE)
_TRIGGER = re.compile(
    r"^(CREATE TRIGGER (\w+) .*? ON helix\.(\w+) .*?);\n\n", re.MULTILINE | re.DOTALL
)
_POLICY = re.compile(
    r"^CREATE POLICY (\w+) ON helix\.(\w+) (.*?)TO ([\w, ]+?)( USING .*?| WITH .*?)?;\n\n",
    re.MULTILINE | re.DOTALL,
)


@cache
def check_sets() -> dict[str, dict[str, dict[str, str]]]:
    """The invariants that `helix.read_check_v1` knows: set, name, notes."""
    sets: dict[str, dict[str, dict[str, str]]] = {}
    for name, _, body in _functions():
        if name.startswith("read_check_") and name != "read_check_v1":
            _, *parts = _INVARIANT.split(dedent(body))
            sets[name.removeprefix("read_check_")] = {
                invariant: notes_of(text)[0]
                for invariant, text in zip(parts[::2], parts[1::2], strict=True)
            }
    return sets


@cache
def definitions() -> dict[str, list[Any]]:
    """Functions, triggers and policies, as arguments of the queries in `check_schema.sql`."""
    functions = []
    for name, head, body in _functions():
        plain = re.sub(r"--.*", "", head)
        settings = sorted(
            f"{setting}={value}".replace(" ", "").replace("'", "").lower()
            for setting, value in _SETTING.findall(plain)
        )
        functions.append((name, body, "security definer" in plain, ";".join(settings)))
    schema = (files("helixqueue.engine") / "schema.sql").read_text(encoding="utf-8")
    triggers = _TRIGGER.findall(schema)
    policies = [
        (name, table, _one_line(f"{kind}TO {_sorted(roles)}{conditions}"))
        for name, table, kind, roles, conditions in _POLICY.findall(schema)
    ]
    return {
        "function_name": [function[0] for function in functions],
        "function_body": [function[1] for function in functions],
        "function_definer": [function[2] for function in functions],
        "function_settings": [function[3] for function in functions],
        "trigger_name": [trigger[1] for trigger in triggers],
        "trigger_table": [trigger[2] for trigger in triggers],
        "trigger_definition": [trigger[0] for trigger in triggers],
        "policy_name": [policy[0] for policy in policies],
        "policy_table": [policy[1] for policy in policies],
        "policy_definition": [policy[2] for policy in policies],
    }


def _functions() -> list[tuple[str, str, str]]:
    """Name, head and body of every function of the engine, in the order of the files."""
    scripts = (files("helixqueue.engine") / "sql").iterdir()
    return [
        function
        for script in sorted(scripts, key=lambda script: script.name)
        for function in _FUNCTION.findall(script.read_text(encoding="utf-8"))
    ]


def _sorted(roles: str) -> str:
    return ", ".join(sorted(roles.split(", ")))


def _one_line(text: str) -> str:
    return " ".join(text.split())
