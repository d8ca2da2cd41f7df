# Generated from letters_async.py by `make twins`: change that file.
"""Methods of all clients about dead letters."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

from helixqueue.client.method import method, rows
from helixqueue.operations import letters as operations

if TYPE_CHECKING:
    from collections.abc import Sequence

    from helixqueue.operations.batches import Operations
    from helixqueue.operations.instructions import Instructions

T = TypeVar("T")


class LetterMethods:
    """Dead letters, for threads."""

    _operations: Operations

    if TYPE_CHECKING:

        def _do(self, steps: Instructions[T]) -> T: ...

    letters = rows(operations.list_letters)
    letter = method(operations.show_letter)
    redrive = method(operations.redrive_letter)

    def discard(self, letter_numbers: Sequence[int], *, reason: str) -> dict[int, str]:
        """Discard dead letters: their bytes are deleted, the record stays."""
        return self._do(operations.discard_letters(self._operations, letter_numbers, reason))
