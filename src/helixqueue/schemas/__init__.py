"""JSON against a stored JSON Schema (draft 2020-12), within limits of time and memory.

The schema comes from the database, written by any login that may set a queue, and the JSON from any
client. `schema` checks small cases directly; `processes` checks all others in child processes
(`check_process`) that the kernel stops at their limits. docs/decisions/0034-bounded-validation.md
has the reasons.
"""

from __future__ import annotations

from helixqueue.schemas.schema import Schema

__all__ = ["Schema"]
