"""The backend of clients that connect to a service."""

from __future__ import annotations

from helixqueue.operations.backend import Backend
from helixqueue.transport.http import calls, reads

BACKEND = Backend(
    calls,
    reads,
    chunk_rows=calls.SUBMIT_ROWS_MAX,
    chunk_chars=calls.SUBMIT_CHARS_MAX,
    payload_bytes_max=calls.PAYLOAD_BYTES_MAX,
)
