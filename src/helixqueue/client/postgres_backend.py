"""The backend of clients that connect to PostgreSQL."""

from __future__ import annotations

from helixqueue.engine import calls, reads
from helixqueue.operations.backend import Backend

BACKEND = Backend(
    calls,
    reads,
    chunk_rows=calls.SUBMIT_ROWS_MAX,
    chunk_chars=16 * 1024 * 1024,
)
