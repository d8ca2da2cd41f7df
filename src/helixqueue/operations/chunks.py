"""Cut what is sent into parts of limited length and size."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

T = TypeVar("T")


def chunks(
    items: Iterable[T], size_of: Callable[[T], int], *, size: int, length: int | None = None
) -> Iterator[list[T]]:
    """Lists whose items have at most `size` together; a larger item is alone in its list."""
    chunk: list[T] = []
    chunk_size = 0
    for item in items:
        item_size = size_of(item)
        if chunk and (len(chunk) == length or chunk_size + item_size > size):
            yield chunk
            chunk, chunk_size = [], 0
        chunk.append(item)
        chunk_size += item_size
    if chunk:
        yield chunk
