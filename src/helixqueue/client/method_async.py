"""Methods of clients, made from operations: the same parameters, types and documentation.

letter = async_method(letters.show_letter)  # await helix.letter(7) -> LetterDetail
letters = async_rows(letters.list_letters)  # helix.letters(reason="json") -> AsyncIterator[...]
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Coroutine
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, TypeVar

from helixqueue.records.parameter import MAX_PAGE

if TYPE_CHECKING:
    from helixqueue.operations.operation import Operation
    from helixqueue.records.page import Page

P = ParamSpec("P")
T = TypeVar("T")
F = TypeVar("F", bound="Callable[..., Any]")


def async_method(
    operation: Operation[P, T],
) -> Callable[Concatenate[Any, P], Coroutine[Any, Any, T]]:
    """A method of a client for event loops."""

    async def call(client: Any, /, *args: P.args, **kwargs: P.kwargs) -> T:
        answer: T = await client._do(operation(client._operations, *args, **kwargs))  # noqa: SLF001
        return answer

    return _documented(call, operation)


def async_rows(
    operation: Operation[P, Page[T]],
) -> Callable[Concatenate[Any, P], AsyncIterator[T]]:
    """A method that reads page after page; `limit` is the size of a page."""

    async def call(client: Any, /, *args: P.args, **kwargs: P.kwargs) -> AsyncIterator[T]:
        query: dict[str, Any] = {"limit": MAX_PAGE, **kwargs}
        while True:
            page = await client._do(operation(client._operations, *args, **query))  # noqa: SLF001
            for row in page.rows:
                yield row
            if page.next is None:
                return
            query["after"] = page.next

    return _documented(call, operation)


def _documented(call: F, operation: Operation[..., Any]) -> F:
    """For `help`: the name, docstring and signature of the operation."""
    call.__name__, call.__doc__ = operation.name, operation.__doc__
    call.__signature__ = operation.signature  # type: ignore[attr-defined]
    return call
