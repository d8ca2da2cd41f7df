"""Methods of all clients about dead letters."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

from helixqueue.operations import letters

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator, Sequence

    from helixqueue.operations.batches import Operations
    from helixqueue.operations.steps import Steps
    from helixqueue.records.letter import LetterDetail, LetterReason, LetterRow, LetterStatus
    from helixqueue.records.submission import Accepted

T = TypeVar("T")


class LetterMethods:
    """Dead letters, for threads."""

    _operations: Operations

    if TYPE_CHECKING:

        def _do(self, steps: Steps[T]) -> T: ...

    def letters(
        self,
        *,
        status: LetterStatus | None = "open",
        reason: LetterReason | None = None,
        queue: str | None = None,
    ) -> Iterator[LetterRow]:
        """List dead letters, newest first; open ones by default."""
        after: str | None = None
        while True:
            page = self._do(
                letters.list_page(
                    self._operations, status=status, reason=reason, queue=queue, after=after
                )
            )
            yield from page.rows
            after = page.next
            if after is None:
                return

    def letter(self, letter: int, *, body: bool = False) -> LetterDetail:
        """Return one dead letter; with `body`, also the bytes of its message."""
        return self._do(letters.show(self._operations, letter, body=body))

    def redrive(
        self,
        letter: int,
        *,
        reason: str,
        queue: str | None = None,
        identity: str | tuple[str, ...] | None = None,
        revision: str | None = None,
    ) -> Accepted[Any]:
        """Submit the message of a dead letter, with corrections; the batch keeps its source."""
        return self._do(
            letters.redrive(
                self._operations,
                letter,
                reason=reason,
                queue=queue,
                identity=identity,
                revision=revision,
            )
        )

    def discard(self, letter_numbers: Sequence[int], *, reason: str) -> dict[int, str]:
        """Discard dead letters: their bytes are deleted, the record stays."""
        return self._do(letters.discard(self._operations, letter_numbers, reason))


class AsyncLetterMethods:
    """Dead letters, for coroutines."""

    _operations: Operations

    if TYPE_CHECKING:

        async def _do(self, steps: Steps[T]) -> T: ...

    async def letters(
        self,
        *,
        status: LetterStatus | None = "open",
        reason: LetterReason | None = None,
        queue: str | None = None,
    ) -> AsyncIterator[LetterRow]:
        """List dead letters, newest first; open ones by default."""
        after: str | None = None
        while True:
            page = await self._do(
                letters.list_page(
                    self._operations, status=status, reason=reason, queue=queue, after=after
                )
            )
            for row in page.rows:
                yield row
            after = page.next
            if after is None:
                return

    async def letter(self, letter: int, *, body: bool = False) -> LetterDetail:
        """Return one dead letter; with `body`, also the bytes of its message."""
        return await self._do(letters.show(self._operations, letter, body=body))

    async def redrive(
        self,
        letter: int,
        *,
        reason: str,
        queue: str | None = None,
        identity: str | tuple[str, ...] | None = None,
        revision: str | None = None,
    ) -> Accepted[Any]:
        """Submit the message of a dead letter, with corrections; the batch keeps its source."""
        return await self._do(
            letters.redrive(
                self._operations,
                letter,
                reason=reason,
                queue=queue,
                identity=identity,
                revision=revision,
            )
        )

    async def discard(self, letter_numbers: Sequence[int], *, reason: str) -> dict[int, str]:
        """Discard dead letters: their bytes are deleted, the record stays."""
        return await self._do(letters.discard(self._operations, letter_numbers, reason))
