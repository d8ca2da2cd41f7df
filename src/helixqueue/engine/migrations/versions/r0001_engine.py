"""The engine: everything in `engine/sql`, in reading order.

Until the first release this revision is whatever those files say. From then on the list below is
written out, and what changes comes as a revision that runs the changed files.
"""

from __future__ import annotations

from helixqueue.engine.migrations import steps

revision = "0001"
down_revision = None


def upgrade() -> None:
    steps.run(*steps.all_files(), "../migrations/hand_over.sql")
