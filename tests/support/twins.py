"""`make twins`: writes the sync twin of each async module of the package.

A module of src whose name contains `async` is written by hand. Its twin, the same code for threads,
is generated: without `async` and `await`, with other names (`AsyncFeed` becomes `Feed`, and
`feed_async` becomes `feed`) and other words in docstrings. `make check` compares the files.
"""

from __future__ import annotations

import io
import re
import subprocess
import sys
import sysconfig
import tokenize
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src" / "helixqueue"
RUFF = Path(sysconfig.get_path("scripts")) / "ruff"
MARK = "# Generated from "
# Imports of names that the twin does not use, their order, and `yield from` in place of a loop.
FIXES = "F401,F811,I,UP028"

# Names whose twin is not the name without its `async`.
NAMES = {
    "AsyncBackend": "SyncBackend",
    "AsyncClient": "SyncClient",
    "async_client": "sync_client",
    "asynchronous": "sync",
    "asynccontextmanager": "contextmanager",
    "asyncio": "time",  # for `sleep`, the only call of asyncio besides `to_thread`
    "AbstractAsyncContextManager": "AbstractContextManager",
    "aclose": "close",
    "StopAsyncIteration": "StopIteration",
}
# Words of comments and docstrings.
WORDS = {
    "The async client": "The sync client",
    "async ": "",
    "await ": "",
    "and event loops take turns": "a forked child may go on using it",
    "event loops": "threads",
    "an event loop": "the calling thread",
    "coroutines": "threads",
    "tasks": "threads",
}


def twin_of(path: Path) -> Path:
    return path.with_name(f"{_renamed(path.stem)}.py")


def generate(path: Path) -> str:
    """The text of the twin."""
    text = "".join(_tokens(path.read_text(encoding="utf-8")))
    for wrapper in ("Awaitable[", "Coroutine[Any, Any, "):
        text = _unwrapped(text, wrapper)
    text = text.replace("from redis.time import", "from redis import")
    text = re.sub(r"\btime\.to_thread\(([\w.]+)(, )?", r"\1(", text)
    text = re.sub(r"\bshielded\((.+)\)$", r"\1", text, flags=re.MULTILINE)  # no thread is cancelled
    for command in (
        ["check", "--quiet", "--fix-only", "--unsafe-fixes", "--select", FIXES],
        ["format"],
    ):
        text = subprocess.run(
            [RUFF, *command, "--stdin-filename", twin_of(path), "-"],
            input=text, text=True, capture_output=True, check=True, cwd=ROOT,
        ).stdout  # fmt: skip
    return f"{MARK}{path.name} by `make twins`: change that file.\n{text}"


def _tokens(text: str) -> Iterator[str]:
    """The tokens of the twin, with the space and the line breaks between them."""
    lines = text.splitlines(keepends=True)
    position = (1, 0)
    is_dropped = False
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        space = "" if is_dropped else _between(lines, position, token.start)
        position = token.end
        is_dropped = token.type == tokenize.NAME and token.string in {"async", "await"}
        string = "" if is_dropped else token.string
        if token.type == tokenize.NAME:
            string = _renamed(string)
        elif token.type == tokenize.COMMENT and "noqa: ASYNC" in string:
            string = ""
        elif token.type in {tokenize.COMMENT, tokenize.STRING}:
            string = _reworded(string)
        yield space + string


def _unwrapped(text: str, wrapper: str) -> str:
    """The text with the type inside of each `Awaitable[...]` in its place."""
    while (start := text.find(wrapper)) >= 0:
        end, depth = start + len(wrapper), 1
        while depth:
            depth += {"[": 1, "]": -1}.get(text[end], 0)
            end += 1
        text = text[:start] + text[start + len(wrapper) : end - 1] + text[end:]
    return text


def _between(lines: list[str], start: tuple[int, int], end: tuple[int, int]) -> str:
    if start[0] == end[0]:
        return lines[start[0] - 1][start[1] : end[1]] if start[0] <= len(lines) else ""
    return "".join([lines[start[0] - 1][start[1] :], *lines[start[0] : end[0] - 1]]) + (
        lines[end[0] - 1][: end[1]] if end[0] <= len(lines) else ""
    )


def _renamed(name: str) -> str:
    if name in NAMES:
        return NAMES[name]
    name = re.sub(r"^(_*)Async(?=[A-Z])", r"\1", name)
    name = re.sub(r"^(_*)async_|_async$", r"\1", name)
    return re.sub(r"^__a(enter|exit|iter|next)__$", r"__\1__", name)


def _reworded(text: str) -> str:
    for word, twin in WORDS.items():
        text = text.replace(word, twin)
    return re.sub(r"\w+", lambda name: _renamed(name[0]), text)


def main() -> None:
    stale = []
    for path in sorted(SOURCE.rglob("*async*.py")):
        twin, text = twin_of(path), generate(path)
        if not twin.exists() or twin.read_text(encoding="utf-8") != text:
            stale.append(str(twin.relative_to(ROOT)))
            if "--check" not in sys.argv:
                twin.write_text(text, encoding="utf-8")
    print("\n".join(stale) or "all twins are current")  # noqa: T201
    if stale and "--check" in sys.argv:
        sys.exit("not current: run `make twins`")


if __name__ == "__main__":
    main()
