"""The files that an attempt wrote, in a directory of its own, and which names they may have."""

from __future__ import annotations

import os
import re
import stat
import unicodedata
from typing import TYPE_CHECKING, NamedTuple

from helixqueue.errors import Refused

if TYPE_CHECKING:
    from pathlib import Path

PATH_BYTES_MAX = 900
_CONTROL = re.compile("[\x00-\x1f\x7f]")


class ScratchFile(NamedTuple):
    path: str  # relative, in NFC
    source: str
    size: int
    changed_ns: int


def output_path(directory: Path, name: str) -> Path:
    """Where a handler writes the output `name`; its parent directories are made."""
    path = directory / check_path(name)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except (FileExistsError, NotADirectoryError):
        raise Refused(f"output {name!a}: one of its directories is a file") from None
    if path.is_dir():
        raise Refused(f"output {name!a}: expected a file, got the name of a directory")
    return path


def check_path(name: str) -> str:
    """The name in NFC, or `Refused`."""
    try:
        size = len(name.encode())
    except UnicodeEncodeError:
        raise Refused(f"output {name!a}: expected a name in UTF-8") from None
    path = unicodedata.normalize("NFC", name)
    parts = path.split("/")
    if not path or path.startswith("/"):
        problem = "expected a relative path"
    elif _CONTROL.search(path):
        problem = "expected a name without control characters"
    elif {"", ".", ".."} & set(parts):
        problem = "expected a path without empty parts, `.` and `..`"
    elif max(size, len(path.encode())) > PATH_BYTES_MAX:
        problem = f"expected at most {PATH_BYTES_MAX} bytes, got {size}"
    elif any(len(part.encode()) > 255 for part in parts):
        problem = "expected parts of at most 255 bytes"
    else:
        return path
    raise Refused(f"output {name[:200]!a}: {problem}")


def survey(directory: Path) -> list[ScratchFile]:
    """Every file below the directory by path; `Refused` names the first that has no place."""
    found: dict[str, ScratchFile] = {}
    folders: set[str] = set()
    root = os.path.realpath(directory)
    pending = [root]
    while pending:
        folder = pending.pop()
        try:
            entries = list(os.scandir(folder))
        except OSError as error:
            shown = os.path.relpath(folder, root)
            raise Refused(f"output {shown!a}: the directory cannot be read: {error}") from None
        for entry in entries:
            name = os.path.relpath(entry.path, root)
            path = check_path(name)
            if entry.is_dir(follow_symlinks=False):
                pending.append(entry.path)
                folders.add(path)
                continue
            if path in found:
                raise Refused(f"output {name!a}: another file has the same name in NFC")
            found[path] = _regular(path, entry.path, root)
    if clashes := folders & found.keys():
        raise Refused(f"output {min(clashes)!a}: a file and a directory have the same name in NFC")
    return sorted(found.values())


def _regular(path: str, source: str, root: str) -> ScratchFile:
    """A regular file, or a link to one below `root`."""
    real = os.path.realpath(source)
    if real != source and not real.startswith(root + os.sep):
        raise Refused(f"output {path!a}: the link leaves the directory of the attempt")
    try:
        status = os.lstat(real)
    except OSError as error:
        raise Refused(f"output {path!a}: {error.strerror}") from None
    if not stat.S_ISREG(status.st_mode):
        raise Refused(f"output {path!a}: expected a regular file, or a link to one")
    return ScratchFile(path, real, status.st_size, status.st_mtime_ns)
