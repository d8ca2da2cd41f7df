"""The calls of `helixqueue.engine.letters` that clients make, over HTTP."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Any
from uuid import UUID

from helixqueue.operations.message import encode_fields
from helixqueue.records.letter import LetterDetail, LetterPage, LetterRow
from helixqueue.transport.http.call import HttpCall, at, get, post, unless
from helixqueue.transport.http.calls import read_submitted

if TYPE_CHECKING:
    from collections.abc import Sequence

    from helixqueue.records.submission import SubmittedRow

_TIMES = frozenset(("first_at", "last_at", "closed_at"))


def letters(
    *,
    tenant: str,  # noqa: ARG001 - the token determines it
    status: str | None = None,
    reason: str | None = None,
    queue: str | None = None,
    after: str | None = None,
    limit: int = 50,
) -> HttpCall[LetterPage]:
    parameters = [
        ("status", status), ("reason", reason), ("queue", queue), ("after", after),
        ("limit", str(limit)),
    ]  # fmt: skip
    return get(
        at("letters"),
        lambda document: LetterPage(
            tuple(_read_letter(item) for item in document["letters"]), document["next"]
        ),
        [(name, value) for name, value in parameters if value is not None],
    )


def letter(letter: int, *, body: bool = False) -> HttpCall[LetterDetail | None]:
    """Read one letter; the body is included if the token has the scope payloads."""

    def read(document: dict[str, Any]) -> LetterDetail | None:
        fields = document["fields"] if body else None
        return LetterDetail(
            _read_letter(document),
            None
            if fields is None
            else encode_fields([(name.encode(), text.encode()) for name, text in fields.items()]),
        )

    return unless("no-such-letter", get(at("letters", letter), read), lambda _: None)


def redrive(
    *,
    letter: int,
    reason: str,
    queue: str | None,
    identity: str | tuple[str, ...] | None,
    revision: str | None,
) -> HttpCall[SubmittedRow]:
    body = {"reason": reason, "queue": queue, "identity": identity, "revision": revision}
    named = {name: value for name, value in body.items() if value is not None}
    return post(at("letters", letter, "redrive"), named, read_submitted, needs_key=True)


def discard_letters(
    *,
    letters: Sequence[int],
    reason: str,
    actor: str | None = None,  # noqa: ARG001
) -> HttpCall[dict[int, str]]:
    """Discard one letter: a request has one answer."""
    [letter] = letters
    call = post(
        at("letters", letter, "discard"),
        {"reason": reason},
        lambda document: {letter: str(document["answer"])},
        needs_key=True,
    )
    return unless("no-such-letter", call, lambda _: {letter: "refused"})


def _read_letter(document: dict[str, Any]) -> LetterRow:
    return LetterRow(**{name: _value(name, document[name]) for name in LetterRow.__annotations__})


def _value(name: str, value: Any) -> Any:
    if value is None:
        return None
    if name in _TIMES:
        return datetime.fromisoformat(value)
    return UUID(value) if name == "batch_id" else value
