"""The engine: everything in `engine/sql`, in reading order.

Until the first release this revision runs the current files. From then on the list below is
explicit, and each change is a new revision that runs the changed files.
"""

from __future__ import annotations

from helixqueue.engine.migrations import ddl

revision = "0001"
down_revision = None


def upgrade() -> None:
    ddl.run(*ddl.all_files(), "../migrations/hand_over.sql")
