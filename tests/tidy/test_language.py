"""Names and prose follow CONTRIBUTING.md: terms of the field, one name per class, plain English.

Each test reports every finding as `file:line`.
"""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections import defaultdict
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src" / "helixqueue"

# These run the tests of another module again, over HTTP.
RERUN = {"client/test_same_over_http.py", "worker/test_failpoints_http.py"}
UNCHECKED_DOCUMENTS = {
    "docs/benchmarks.md",  # recorded tables
}

# Metaphors: refused as any word of a name (`bell`, `_bell`, `open_bell`, `BellRinger`).
METAPHORS = {
    "allowance", "bell", "crowd", "deaf", "desk", "foreseen", "gathering", "grip", "hungry",
    "journal", "legible", "lobby", "nobody", "patience", "shelf", "sight", "somebody",
    "stranger", "strangers", "tended", "tether", "told", "whoever",
}  # fmt: skip
# Refused as a whole name: pronouns, participles used as nouns, and names that were replaced.
VAGUE = {
    "asked", "asking", "book", "chosen", "endings", "enclose", "exposition", "gate", "given",
    "hands", "here", "keyed", "met", "one", "ones", "people", "pulse", "said", "seen", "story",
    "tell", "vacate", "who", "whose",
}  # fmt: skip
# Refused as a whole name in tests too.
PRONOUNS = {
    "asked", "chosen", "given", "here", "met", "nobody", "one", "ones", "said", "somebody", "told",
    "who", "whoever", "whose",
}  # fmt: skip
EXCEPTIONS = {"embedded_help:NOBODY", "test_strictjson:ONE"}  # a Unix account; a member of an enum
# Refused as the name of a module only: elsewhere these words have their ordinary meaning.
MODULES = {
    "answers", "audits", "block", "call", "child", "children", "direct", "drive", "exchange",
    "failures", "guard", "home", "link", "local", "marks", "place", "places", "plain", "plan",
    "plans", "refs", "renewals", "rounds", "running", "serving", "set_up", "shares", "sheet",
    "specs", "spelling", "target", "turns", "within", "working",
}  # fmt: skip
# A module or name that keeps a refused word, with the reason.
ALLOWED = {
    "postgres/call.py": "the description of one call",
    "transport/direct.py": "the direct transport, as opposed to HTTP",
    "transport/http/call.py": "the description of one call",
    "embedded/account.py:nobody": "the Unix account",
}
# Words and phrases that comments, docstrings and messages do not use.
PUZZLES = re.compile(
    r"\b(told|whoever|nobody|somebody|hinders?|how-manieth|of (?:its|their|his) own accord"
    r"|in silence|is at it|so many (?:as|of|rows|times))\b",
    re.IGNORECASE,
)
WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+")


def _sources(suffix: str) -> list[Path]:
    return sorted(path for path in SOURCE.rglob(f"*{suffix}") if path.name != "schema.sql")


def _documents() -> list[Path]:
    documents = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]
    return [
        path for path in documents if path.relative_to(ROOT).as_posix() not in UNCHECKED_DOCUMENTS
    ]


def _names(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Every name that the code defines, with its line."""
    for node in ast.walk(tree):
        match node:
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
                yield node.lineno, node.name
            case ast.Name(id=name, ctx=ast.Store()):
                yield node.lineno, name
            case ast.Attribute(attr=name, ctx=ast.Store()):
                yield node.lineno, name
            case ast.arg(arg=name):
                yield node.lineno, name
            case ast.alias(asname=str(name)):
                yield 0, name
            case ast.MatchAs(name=str(name)) | ast.MatchStar(name=str(name)):
                yield node.lineno, name


def _refused(name: str) -> bool:
    words = {word.lower() for word in WORD.findall(name)}
    return bool(words & METAPHORS) or name.strip("_").lower() in VAGUE


def _prose(path: Path) -> Iterator[tuple[int, str]]:
    """Lines of comments and strings; for SQL every line."""
    text = path.read_text(encoding="utf-8")
    if path.suffix != ".py":
        yield from enumerate(text.splitlines(), 1)
        return
    kinds = {tokenize.COMMENT, tokenize.STRING, getattr(tokenize, "FSTRING_MIDDLE", -1)}
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type in kinds:
            yield from enumerate(token.string.splitlines(), token.start[0])


def test_names_are_terms_of_the_field() -> None:
    findings = []
    for path in _sources(".py"):
        file = path.relative_to(SOURCE).as_posix()
        if path.stem in MODULES | METAPHORS | VAGUE and file not in ALLOWED:
            findings.append(f"{file}: module name")
        findings += [
            f"{file}:{line} {name}"
            for line, name in _names(ast.parse(path.read_text(encoding="utf-8")))
            if _refused(name) and f"{file}:{name}" not in ALLOWED
        ]
    assert findings == [], "\n".join(findings)


def test_variables_of_tests_are_named_after_their_role() -> None:
    findings = [
        f"{path.relative_to(ROOT)}:{line} {name}"
        for path in sorted((ROOT / "tests").rglob("*.py"))
        for line, name in _names(ast.parse(path.read_text(encoding="utf-8")))
        if name.strip("_").lower() in PRONOUNS and f"{path.stem}:{name}" not in EXCEPTIONS
    ]
    assert findings == [], "\n".join(findings)


def test_class_names_are_unique() -> None:
    places = defaultdict(list)
    for path in SOURCE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ClassDef):
                places[node.name].append(f"{path.relative_to(SOURCE)}:{node.lineno}")
    assert {name: found for name, found in places.items() if len(found) > 1} == {}


def test_test_modules_do_not_import_each_other() -> None:
    findings = []
    for path in sorted((ROOT / "tests").rglob("*.py")):
        file = path.relative_to(ROOT / "tests")
        if file.as_posix() in RERUN:
            continue
        own = ".".join(["tests", *file.parts[:-1]])
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("tests."):
                modules = {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
                foreign = "conftest" in node.module and node.module != f"{own}.conftest"
                if foreign or any(".test_" in module for module in modules):
                    findings.append(f"tests/{file}:{node.lineno} {node.module}")
    assert findings == [], "\n".join(findings)


def test_comments_and_messages_are_plain_english() -> None:
    findings = [
        f"{path.relative_to(ROOT)}:{line} {found[0]}"
        for path in [*_sources(".py"), *_sources(".sql"), *_documents()]
        for line, text in _prose(path)
        if (found := PUZZLES.search(text))
        and f"{path.parent.name}/{path.name}:{found[0]}" not in ALLOWED
    ]
    assert findings == [], "\n".join(findings)
