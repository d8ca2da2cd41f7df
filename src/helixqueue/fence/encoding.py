"""What a fenced function is called with, as the database wants it: identity, request, result."""

from __future__ import annotations

import inspect
import logging
import typing
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Literal
from uuid import UUID

from pydantic_core import PydanticSerializationError, to_jsonable_python

from helixqueue.engine.fences import FenceDecision, FenceResult, Times
from helixqueue.errors import InvalidIdentity, InvalidPayload, ResultGone
from helixqueue.fence.answer import UNTYPED, Codec, NotKept
from helixqueue.fence.protocol import Found
from helixqueue.identity import canonical_text, canonicalize

if TYPE_CHECKING:
    from collections.abc import Callable

log = logging.getLogger("helixqueue.fence")

KeyPart = str | int | UUID
Key = KeyPart | tuple[KeyPart, ...] | None
Unknown = Literal["refuse", "accept"]
# What systems write where they have no id. Merging on it would make one effect of many.
UNKNOWN_WORDS = frozenset({"", "unknown", "none", "null", "n/a"})
ANSWER_BYTES_MAX = 1024 * 1024
EFFECT_BYTES_MAX = 1024
DETAIL_CHARS_MAX = 2_000


class NotApplied(Exception):
    """Raise it inside a fence to say that nothing happened, for certain: the fence is released.

    Any other exception after the effect began leaves the fence in doubt.
    """


@dataclass(frozen=True, slots=True)
class Applied:
    """A probe's yes: the effect took place, with this result."""

    result: Any = None
    effect: str | None = None


class _Word:
    def __init__(self, name: str) -> None:
        self._name = name

    def __repr__(self) -> str:
        return self._name


# A probe's no (believed after the quiet period), and its "cannot tell".
NOT_APPLIED: typing.Final = _Word("NOT_APPLIED")
UNKNOWN: typing.Final = _Word("UNKNOWN")


def identity_text(key: object, name: str, unknown: Unknown) -> str | None:
    """The key's parts in their one spelling; None for a call that cannot be recognised."""
    parts = key if isinstance(key, tuple) else (key,)
    words = [part if isinstance(part, str) else _word(part, name) for part in parts]
    if not words or any(word is None or word.strip().lower() in UNKNOWN_WORDS for word in words):
        if unknown == "refuse":
            raise InvalidIdentity(
                f"fence {name}: expected a key from business fields, got {key!r}: a call without "
                'one cannot be recognised when it comes again. Pass unknown="accept" to run it '
                "each time",
                code="unknown",
            )
        log.warning("fence %s: call without a key (%r): stored, never merged", name, key)
        return None
    return canonicalize(tuple(word for word in words if word is not None)).text


def _word(part: object, name: str) -> str | None:
    if part is None:
        return None
    # Not floats (two spellings of one number), not booleans (a field was mixed up), no clocks.
    if isinstance(part, UUID) or (isinstance(part, int) and not isinstance(part, bool)):
        return str(part)
    raise InvalidIdentity(
        f"fence {name}: expected key parts that are strings, integers or UUIDs; got "
        f"{type(part).__name__}",
        code="type",
    )


def request_text(value: object) -> str:
    """What the key stands for, as RFC 8785 text."""
    try:
        return canonical_text(to_jsonable_python(value, bytes_mode="base64"))
    except PydanticSerializationError as error:
        raise InvalidPayload(
            f"expected arguments that can be written as JSON; {error}. Give payload= to say which "
            "of them the key stands for",
            code="type",
        ) from error


def times(ttl: Times | timedelta | float | None) -> Times:
    """The clocks; a bare duration is how long the answer is kept."""
    if ttl is None:
        return Times()
    if isinstance(ttl, Times):
        return ttl
    seconds = ttl.total_seconds() if isinstance(ttl, timedelta) else float(ttl)
    # The key is remembered at least twice as long as the answer: late retries must meet it.
    return Times(answer=seconds, tombstone=max(Times().tombstone, 2 * seconds))


class Signature:
    """One fenced function: its parameters, its result, its key and what the key stands for."""

    def __init__(
        self,
        function: Callable[..., Any],
        key: Any,  # noqa: ANN401 - a value, or a function of the arguments
        payload: Any,  # noqa: ANN401 - the same
    ) -> None:
        self._parameters = inspect.signature(function)
        self._key = key
        self._payload = payload
        hints = _hints(function)
        self.codec = Codec(hints.get("return", UNTYPED))

    def key(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> object:
        return self._key(*args, **kwargs) if callable(self._key) else self._key

    def request(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
        if callable(self._payload):
            return request_text(self._payload(*args, **kwargs))
        if self._payload is not None:
            return request_text(self._payload)
        bound = self._parameters.bind(*args, **kwargs)
        bound.apply_defaults()
        return request_text(bound.arguments)


def _hints(function: Callable[..., Any]) -> dict[str, Any]:
    try:
        return typing.get_type_hints(function)
    except NameError as error:
        raise TypeError(
            f"fence: the annotations of {function.__qualname__} name something unknown ({error}); "
            "its result could not be read back"
        ) from error


def told_of(error: BaseException) -> str:
    """An error as it is kept with its fence: bounded, and of characters that a database takes."""
    try:
        said = str(error)
    except Exception:  # noqa: BLE001 - an error that cannot even say what it is
        said = "(it cannot be shown)"
    text = f"{type(error).__name__}: {said[:DETAIL_CHARS_MAX]}"
    return text.replace("\0", "\\0").encode("utf-8", "backslashreplace").decode()


def effect_id(effect: str | None, name: str) -> str | None:
    """The effect's id, if it can be kept. One that cannot must not cost the seal."""
    if not effect:
        return None
    try:
        fits = len(effect.encode()) <= EFFECT_BYTES_MAX and "\0" not in effect
    except UnicodeEncodeError:
        fits = False
    if fits:
        return effect
    log.error(
        "fence %s: expected an effect's id of at most %d bytes of text, got %d characters; it is "
        "sealed without",
        name,
        EFFECT_BYTES_MAX,
        len(effect),
    )
    return None


def written(codec: Codec, value: object, effect: str | None) -> FenceResult:
    """The result as it is kept; what cannot be kept, or is too large, is sealed by its digest."""
    try:
        form, data = codec.write(value)
    except NotKept as lost:
        return FenceResult("omitted", str(lost).encode(), omitted=True, effect=effect)
    return FenceResult(form, data, omitted=len(data) > ANSWER_BYTES_MAX, effect=effect)


def read(codec: Codec, told: FenceDecision, name: str) -> Any:  # noqa: ANN401 - what was written
    """The kept result; raises `ResultGone` where there is none."""
    if told.answer is None or told.form is None:
        receipt = receipt_text(told) or ""
        why = "too large, or of a kind that cannot be kept" if told.omitted else "past its time"
        raise ResultGone(
            f"fence {name}: it took effect once (receipt {receipt}), but its result is not kept: "
            f"{why}",
            receipt=receipt,
        )
    try:
        return codec.read(told.form, told.answer)
    except ValueError as error:  # pydantic's are, too
        receipt = receipt_text(told) or ""
        log.exception("fence %s: a kept result cannot be read (receipt %s)", name, receipt)
        raise ResultGone(
            f"fence {name}: it took effect once (receipt {receipt}), but its kept result does not "
            "fit the return type any more; nothing was run again. Read it with the type it was "
            "written with",
            receipt=receipt,
        ) from error


def receipt_text(told: FenceDecision) -> str | None:
    return None if told.receipt is None else f"r1:{told.receipt.hex()}"


def found(looked: object, write: Callable[[Any, str | None], FenceResult], name: str) -> Found:
    """A probe's answer in the words of the database; `write` makes bytes of result and effect."""
    if isinstance(looked, Applied):
        return Found("applied", write(looked.result, effect_id(looked.effect, name)))
    if looked is NOT_APPLIED:
        return Found("not_applied")
    if isinstance(looked, Exception):
        log.error("fence %s: the probe failed", name, exc_info=looked)
    elif looked is not UNKNOWN:
        # Not a guess: a probe that forgot to return would otherwise run the effect again.
        log.error(
            "fence %s: expected the probe to return Applied(...), NOT_APPLIED or UNKNOWN; got %s",
            name,
            type(looked).__name__,
        )
    return Found("unknown")
