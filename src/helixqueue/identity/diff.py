"""What differs between the stored payload and the received one, as a bounded RFC 6902 patch.

Applied to the stored payload, the patch gives the received one. Every `replace` and `remove` also
carries `was`, the value it takes away: RFC 6902 lets readers ignore members they do not know, and
a person reading a refusal wants both sides.

Lists are compared by their common beginning and end and by position in between: linear time, and
right for the usual edits. The library jsonpatch finds shorter patches, but takes over a second for
two lists of 5000 items and fails on deep documents; the tests use it to apply these patches.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import Any, Final

from helixqueue.identity.strictjson import pointer

MAX_OPS: Final = 100
MAX_PATCH_CHARS: Final = 64 * 1024  # all strings of all operations, and one for other values
MAX_DEPTH: Final = 16  # deeper differences are shown as one `replace` of what holds them
MAX_COMPARED_DEPTH: Final = 128  # beyond what a payload may have; deeper counts as different

Op = dict[str, Any]
_Path = tuple[str | int, ...]


def diff(was: object, got: object) -> list[Op]:
    """Describe how to get from `was` to `got`; empty only if they are equal as JSON.

    As JSON, 1 and 1.0 are equal, true and 1 are not. A patch beyond its bounds becomes one
    operation that replaces the whole document.
    """
    if _same(was, got):
        return []
    ops = list(islice(_ops(was, got, ()), MAX_OPS + 1))
    if not ops or len(ops) > MAX_OPS or _is_large(ops):
        return [_replace((), was, got)]
    return ops


def _same(was: object, got: object, depth: int = 0) -> bool:
    if depth > MAX_COMPARED_DEPTH:
        return False  # a diff may say too much, never too little
    if isinstance(was, bool) or isinstance(got, bool):
        return was is got
    if isinstance(was, dict) and isinstance(got, dict):
        return was.keys() == got.keys() and all(
            _same(value, got[name], depth + 1) for name, value in was.items()
        )
    if isinstance(was, list) and isinstance(got, list):
        return len(was) == len(got) and all(
            _same(old, new, depth + 1) for old, new in zip(was, got, strict=True)
        )
    return (type(was) is type(got) and was == got) or _same_number(was, got)


def _same_number(was: object, got: object) -> bool:
    return isinstance(was, int | float) and isinstance(got, int | float) and was == got


def _ops(was: object, got: object, path: _Path) -> Iterator[Op]:
    if len(path) < MAX_DEPTH:
        if isinstance(was, dict) and isinstance(got, dict):
            yield from _object_ops(was, got, path)
            return
        if isinstance(was, list) and isinstance(got, list):
            yield from _array_ops(was, got, path)
            return
    if not _same(was, got):
        yield _replace(path, was, got)


def _object_ops(was: dict[str, Any], got: dict[str, Any], path: _Path) -> Iterator[Op]:
    for name, old in was.items():
        if name in got:
            yield from _ops(old, got[name], (*path, name))
        else:
            yield _remove((*path, name), old)
    for name, new in got.items():
        if name not in was:
            yield _add((*path, name), new)


def _array_ops(was: list[Any], got: list[Any], path: _Path) -> Iterator[Op]:
    start = _common_length(was, got)
    end = _common_length(was[start:][::-1], got[start:][::-1])
    was_to, got_to = len(was) - end, len(got) - end
    both_to = min(was_to, got_to)
    for index in range(start, both_to):
        yield from _ops(was[index], got[index], (*path, index))
    # From the back, so that each removal leaves the places of those before it.
    for index in reversed(range(both_to, was_to)):
        yield _remove((*path, index), was[index])
    for index in range(both_to, got_to):
        yield _add((*path, index), got[index])


def _common_length(was: list[Any], got: list[Any]) -> int:
    pairs = enumerate(zip(was, got, strict=False))
    different = (index for index, (old, new) in pairs if not _same(old, new))
    return next(different, min(len(was), len(got)))


def _is_large(ops: list[Op]) -> bool:
    """Measure without recursion, and no further than needed."""
    size = 0
    rest: list[object] = list(ops)
    while rest and size <= MAX_PATCH_CHARS:
        value = rest.pop()
        if isinstance(value, dict):
            rest.extend(value)
            rest.extend(value.values())
        elif isinstance(value, list):
            rest.extend(value)
        size += len(value) if isinstance(value, str) else 1
    return size > MAX_PATCH_CHARS


def _replace(path: _Path, was: object, got: object) -> Op:
    return {"op": "replace", "path": pointer(path), "value": got, "was": was}


def _remove(path: _Path, was: object) -> Op:
    return {"op": "remove", "path": pointer(path), "was": was}


def _add(path: _Path, got: object) -> Op:
    return {"op": "add", "path": pointer(path), "value": got}
