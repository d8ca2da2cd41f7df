"""The calls of clients that reach PostgreSQL."""

from __future__ import annotations

from helixqueue.engine import calls, reads
from helixqueue.operations.backend import Backend, takes_any

BACKEND = Backend(
    calls,
    reads,
    chunk_rows=calls.SUBMIT_ROWS_MAX,
    chunk_chars=16 * 1024 * 1024,  # far from what one call may weigh
    check=takes_any,
)
