# Generated from method_async.py by `make twins`: change that file.
"""Methods of clients, made from operations: the same parameters, types and documentation.

letter = method(letters.show_letter)  # helix.letter(7) -> LetterDetail
letters = rows(letters.list_letters)  # helix.letters(reason="json") -> Iterator[...]
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, TypeVar

from helixqueue.records.parameter import MAX_PAGE

if TYPE_CHECKING:
    from helixqueue.operations.operation import Operation
    from helixqueue.records.page import Page

P = ParamSpec("P")
T = TypeVar("T")
F = TypeVar("F", bound="Callable[..., Any]")


def method(
    operation: Operation[P, T],
) -> Callable[Concatenate[Any, P], T]:
    """A method of a client for threads."""

    def call(client: Any, /, *args: P.args, **kwargs: P.kwargs) -> T:
        answer: T = client._do(operation(client._operations, *args, **kwargs))  # noqa: SLF001
        return answer

    return _documented(call, operation)


def rows(
    operation: Operation[P, Page[T]],
) -> Callable[Concatenate[Any, P], Iterator[T]]:
    """A method that reads page after page; `limit` is the size of a page."""

    def call(client: Any, /, *args: P.args, **kwargs: P.kwargs) -> Iterator[T]:
        query: dict[str, Any] = {"limit": MAX_PAGE, **kwargs}
        while True:
            page = client._do(operation(client._operations, *args, **query))  # noqa: SLF001
            yield from page.rows
            if page.next is None:
                return
            query["after"] = page.next

    return _documented(call, operation)


def _documented(call: F, operation: Operation[..., Any]) -> F:
    """For `help`: the name, docstring and signature of the operation."""
    call.__name__, call.__doc__ = operation.name, operation.__doc__
    call.__signature__ = operation.signature  # type: ignore[attr-defined]
    return call
