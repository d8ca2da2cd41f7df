"""Methods of all clients about dead letters."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

from helixqueue.client.method_async import async_method, async_rows
from helixqueue.operations import letters as operations

if TYPE_CHECKING:
    from collections.abc import Sequence

    from helixqueue.operations.batches import Operations
    from helixqueue.operations.instructions import Instructions

T = TypeVar("T")


class AsyncLetterMethods:
    """Dead letters, for coroutines."""

    _operations: Operations

    if TYPE_CHECKING:

        async def _do(self, steps: Instructions[T]) -> T: ...

    letters = async_rows(operations.list_letters)
    letter = async_method(operations.show_letter)
    redrive = async_method(operations.redrive_letter)

    async def discard(self, letter_numbers: Sequence[int], *, reason: str) -> dict[int, str]:
        """Discard dead letters: their bytes are deleted, the record stays."""
        return await self._do(operations.discard_letters(self._operations, letter_numbers, reason))
