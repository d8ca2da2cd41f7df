"""The objects that this release creates in the database, for `check` to compare with.

Functions and sets of invariants are read from the SQL files that create them. All other objects
are read from `expected_schema.json`, generated from a migrated database (`schema_objects.sql`):
PostgreSQL stores conditions in another form than the files have.
"""

from __future__ import annotations

import json
import re
from functools import cache
from importlib.resources import files
from textwrap import dedent
from typing import TYPE_CHECKING, Any

from helixqueue.postgres.statements import parse_notes, statements

if TYPE_CHECKING:
    from psycopg import Connection

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
    """Return functions and other objects as arguments of the queries in `check_schema.sql`."""
    functions = []
    for name, head, body in _functions():
        clauses = re.sub(r"--.*", "", head)
        settings = sorted(
            f"{setting}={value}".replace(" ", "").replace("'", "").lower()
            for setting, value in _SETTING.findall(clauses)
        )
        functions.append((name, body, "security definer" in clauses, ";".join(settings)))
    text = (files("helixqueue.operate") / "expected_schema.json").read_text(encoding="utf-8")
    objects = json.loads(text)
    return {
        "function_name": [function[0] for function in functions],
        "function_body": [function[1] for function in functions],
        "function_definer": [function[2] for function in functions],
        "function_settings": [function[3] for function in functions],
        "object_kind": [kind for kind, _, _ in objects],
        "object_name": [name for _, name, _ in objects],
        "object_definition": [definition for _, _, definition in objects],
    }


# What decides how PostgreSQL prints names and constants.
_OUTPUT = b"""
  set local search_path = pg_catalog, pg_temp;
  set local quote_all_identifiers = off;
  set local extra_float_digits = 1;
  set local timezone = 'UTC';
  set local datestyle = 'ISO, MDY';
  set local intervalstyle = postgres;
  set local bytea_output = hex;
"""
# Objects of the database that are not those of the release.
_DIFFERING = """
  select coalesce(f.kind, r.kind) as kind, coalesce(f.name, r.name) as name,
         case when f.kind is null then 'missing' when r.kind is null then 'unknown'
              else 'changed' end as what,
         f.definition as found, r.definition as expected
  from ({}) f
  full join unnest(%(object_kind)s::text[], %(object_name)s::text[], %(object_definition)s::text[])
    as r (kind, name, definition) on r.kind = f.kind and r.name = f.name
  where (f.kind is null or r.kind is null or f.definition <> r.definition)
    -- Its function exists since PostgreSQL 17.
    and not (r.name = 'batch.batch_identity_assigned' and f.kind is null
             and current_setting('server_version_num')::int < 170000)
"""


def fix_output(connection: Connection[Any]) -> None:
    """Let the catalogues print definitions as in expected_schema.json, in this transaction."""
    connection.execute(_OUTPUT)


def schema_objects() -> str:
    """Return the query for the objects of schema helix: kind, name, definition."""
    return statements("helixqueue.operate", "schema_objects.sql")["schema_objects"].sql


def with_objects(query: str) -> str:
    """Fill in the objects that differ where a query of `check_schema.sql` names them."""
    differing = _DIFFERING.format(schema_objects().replace("%", "%%"))
    return query.replace("/* differing */", differing)


def _functions() -> list[tuple[str, str, str]]:
    """Return name, head and body of every function of the engine, in the order of the files."""
    scripts = (files("helixqueue.engine") / "sql").iterdir()
    return [
        function
        for script in sorted(scripts, key=lambda script: script.name)
        for function in _FUNCTION.findall(script.read_text(encoding="utf-8"))
    ]
