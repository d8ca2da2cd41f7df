"""The calls of clients that reach a service."""

from __future__ import annotations

from helixqueue.client.book import Book
from helixqueue.transport.http import calls, reads

BOOK = Book(
    calls,
    reads,
    chunk_rows=calls.SUBMIT_ROWS_MAX,
    chunk_chars=calls.SUBMIT_CHARS_MAX,
    check=calls.check,
)
