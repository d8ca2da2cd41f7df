"""Which datums an input becomes. Pure: listings come as sorted names, datums go out in order."""

from __future__ import annotations

import hashlib
from itertools import chain
from typing import TYPE_CHECKING, Final, NamedTuple
from unicodedata import normalize

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from helixqueue.runs.spec import Atom, InputSpec

BETWEEN: Final = "//"  # in names of datums; no name of a file has it
NAME_BYTES: Final = 255  # of the identity of a batch
NAME_CHARS: Final = 63  # that fit in any case


class GlobMatch(NamedTuple):
    """What a glob matches below its URI: `star` is the part for `*`, `path` the whole."""

    star: str
    path: str  # of a directory with `/` at its end; of all with "" for the base itself


class Part(NamedTuple):
    """One match of a datum."""

    atom: Atom
    match: GlobMatch


class Input(NamedTuple):
    """Where an input is stored, and its path below /pfs; a directory ends in `/`."""

    uri: str
    path: str


Parts = tuple[Part, ...]


def matches(glob: str, names: Iterable[str]) -> Iterator[GlobMatch]:
    """The matches among the names of files below a URI, which are sorted by code point."""
    if glob == "/":
        yield from (GlobMatch("", "") for _ in _first(names))
    elif glob == "/**":
        yield from (GlobMatch(name, name) for name in names)
    elif glob == "/*":
        yield from _distinct(_top(name) for name in names)
    else:
        yield from _distinct(_below(glob[2:], names))


def expand(spec: InputSpec, listing: Callable[[Atom], Iterable[GlobMatch]]) -> Iterator[Parts]:
    """The datums of an input; `listing` returns the matches of an atom, each time the same."""
    if (atom := spec.files) is not None:
        return ((Part(atom, match),) for match in listing(atom))
    if spec.cross is not None:
        return _cross(spec.cross, listing)
    children = spec.union or spec.group or ()
    datums = chain.from_iterable(expand(child, listing) for child in children)
    return datums if spec.group is None else _grouped(datums)


def datum_name(parts: Parts) -> str:
    """Repository and star of each part, in NFC; a name that is too long ends in its hash."""
    names = dict.fromkeys(f"{atom.repo}/{match.star}".rstrip("/") for atom, match in parts)
    name = normalize("NFC", BETWEEN.join(names))
    if len(name) <= NAME_CHARS or len(name.encode()) <= NAME_BYTES:
        return name
    digest = hashlib.sha256(name.encode()).hexdigest()
    return f"{name[: NAME_CHARS // 2]}~{digest}"


def _cross(
    children: tuple[InputSpec, ...], listing: Callable[[Atom], Iterable[GlobMatch]]
) -> Iterator[Parts]:
    """All combinations, the last child fastest. Listings are read again, not kept in memory."""
    if not children:
        return
    for first in expand(children[0], listing):
        if len(children) == 1:
            yield first
        for others in _cross(children[1:], listing):
            yield first + others


def _grouped(datums: Iterable[Parts]) -> Iterator[Parts]:
    """Datums of one name as one, in the order of the first; a part that repeats counts once."""
    groups: dict[tuple[tuple[str, str], ...], Parts] = {}
    for parts in datums:
        key = tuple(dict.fromkeys((atom.repo, match.star) for atom, match in parts))
        groups[key] = groups.get(key, ()) + parts
    return (tuple(dict.fromkeys(parts)) for parts in groups.values())


def _top(name: str) -> GlobMatch:
    top, slash, _ = name.partition("/")
    return GlobMatch(top, top + slash)


def _below(path: str, names: Iterable[str]) -> Iterator[GlobMatch]:
    """The top-level directories that have `path`, a file or a directory."""
    folder = path.rstrip("/") + "/"
    for name in names:
        top, slash, _ = name.partition("/")
        rest = slash + name[len(top) + 1 :]
        if rest.startswith(folder):
            yield GlobMatch(top, top + folder)
        elif rest == path:
            yield GlobMatch(top, name)


def _distinct(found: Iterable[GlobMatch]) -> Iterator[GlobMatch]:
    last = None
    for match in found:
        if match != last:
            yield match
            last = match


def _first(names: Iterable[str]) -> Iterator[str]:
    for name in names:
        yield name
        return
