"""The engine's calls as clients, the service and the intake make them."""

from __future__ import annotations

from typing import Final

from helixqueue.engine import calls, ledgers
from helixqueue.operations.call_set import CallSet

POSTGRES_CALLS: Final = CallSet(
    calls,
    ledgers,
    chunk_rows=calls.SUBMIT_ROWS_MAX,
    chunk_chars=16 * 1024 * 1024,
)
