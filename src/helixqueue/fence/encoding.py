"""Keys, arguments and results of a fenced function as the text and bytes that are stored.

The first caller gets a result as it reads back from its bytes, so that first call and repeats
cannot differ. With a return annotation pydantic writes and reads it; without one, whatever JSON
keeps exactly, and bytes. Never pickle: a stored result is data, not code.
"""

from __future__ import annotations

import inspect
import logging
import typing
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final, Literal
from uuid import UUID

from pydantic import TypeAdapter
from pydantic_core import PydanticSerializationError, from_json, to_json, to_jsonable_python

from helixqueue.engine.fences import FenceDecision, FenceResult, Times
from helixqueue.errors import InvalidIdentity, InvalidPayload, Refused, ResultGone
from helixqueue.fence.protocol import ProbeFinding
from helixqueue.identity import canonical_text, canonicalize
from helixqueue.records.fence import receipt_text

log = logging.getLogger("helixqueue.fence")

BYTES: Final = "bytes"
JSON: Final = "json"
UNTYPED: Final = object()

Unknown = Literal["refuse", "accept"]
# Placeholders that systems write for a missing id. As a key they would merge unrelated calls.
UNKNOWN_WORDS = frozenset({"", "unknown", "none", "null", "n/a"})
RESULT_BYTES_MAX = 1024 * 1024
EFFECT_BYTES_MAX = 1024
DETAIL_CHARS_MAX = 2_000


class NotApplied(Exception):
    """Raise it inside a fence when the effect certainly did not happen: the fence is released.

    Any other exception after the effect started leaves the fence in doubt.
    """


@dataclass(frozen=True, slots=True)
class Applied:
    """A probe returns it when the effect happened, with this result."""

    result: Any = None
    effect: str | None = None


class _Word:
    def __init__(self, name: str) -> None:
        self._name = name

    def __repr__(self) -> str:
        return self._name


# Returned by probes: the effect did not happen (counts after the quiet period), or not known.
NOT_APPLIED: Final = _Word("NOT_APPLIED")
UNKNOWN: Final = _Word("UNKNOWN")


# Keys and requests.


def identity_text(key: object, name: str, unknown: Unknown) -> str | None:
    """The parts of the key in canonical form; None for a call without a key."""
    parts = key if isinstance(key, tuple) else (key,)
    words = [part if isinstance(part, str) else _key_part(part, name) for part in parts]
    if not words or any(word is None or word.strip().lower() in UNKNOWN_WORDS for word in words):
        if unknown == "refuse":
            raise InvalidIdentity(
                f"fence {name}: expected a key from business fields, got {key!r}; repeats of a "
                'call without a key cannot be recognised. Pass unknown="accept" to execute every '
                "such call",
                code="unknown",
            )
        log.warning("fence %s: call without a key (%r): stored, never merged", name, key)
        return None
    return canonicalize(tuple(word for word in words if word is not None)).text


def _key_part(part: object, name: str) -> str | None:
    if part is None:
        return None
    # Not floats (two spellings of one number), booleans (a mixed-up field) or times.
    if isinstance(part, UUID) or (isinstance(part, int) and not isinstance(part, bool)):
        return str(part)
    raise InvalidIdentity(
        f"fence {name}: expected key parts that are strings, integers or UUIDs; got "
        f"{type(part).__name__}",
        code="type",
    )


def request_text(value: object) -> str:
    """The request that the key belongs to, as RFC 8785 text."""
    try:
        return canonical_text(to_jsonable_python(value, bytes_mode="base64"))
    except PydanticSerializationError as error:
        raise InvalidPayload(
            f"expected arguments that can be written as JSON; {error}. Pass payload= to select "
            "the arguments that the key belongs to",
            code="type",
        ) from error


def times(ttl: Times | timedelta | float | None) -> Times:
    """All durations; a bare one is how long the result is kept."""
    if ttl is None:
        return Times()
    if isinstance(ttl, Times):
        return ttl
    seconds = ttl.total_seconds() if isinstance(ttl, timedelta) else float(ttl)
    # The key is remembered at least twice as long as the result, for late retries.
    return Times(answer=seconds, tombstone=max(Times().tombstone, 2 * seconds))


class Signature:
    """The parameters, key, payload and result type of one fenced function."""

    def __init__(
        self,
        function: Callable[..., Any],
        key: Any,  # noqa: ANN401 - a value, or a function of the arguments
        payload: Any,  # noqa: ANN401 - the same
    ) -> None:
        self._parameters = inspect.signature(function)
        self._key = key
        self._payload = payload
        self.codec = Codec(_type_hints(function).get("return", UNTYPED))

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


def _type_hints(function: Callable[..., Any]) -> dict[str, Any]:
    try:
        return typing.get_type_hints(function)
    except NameError as error:
        raise TypeError(
            f"fence: an annotation of {function.__qualname__} is not defined ({error}); its "
            "result could not be read back"
        ) from error


# Results.


class NotKept(Refused):
    """This result has no bytes that read back as the same value."""


class Codec:
    """Writes and reads the results of one function."""

    def __init__(self, kind: Any = UNTYPED) -> None:  # noqa: ANN401 - any annotation
        self._adapter: TypeAdapter[Any] | None = None
        if kind is not UNTYPED and kind is not Any:
            # The annotation of `-> None` is None itself.
            self._adapter = TypeAdapter(type(None) if kind is None else kind)

    def write(self, value: object) -> tuple[str, bytes]:
        """The form and the bytes; raises `NotKept`."""
        if type(value) is bytes:
            return BYTES, value
        try:
            data = to_json(value) if self._adapter is None else self._adapter.dump_json(value)
            same = _equal(self.read(JSON, data), value)
        except Exception as error:  # any serializer's; the effect happened, so its seal must follow
            raise NotKept(_not_kept(value, (str(error).splitlines() or [""])[0])) from error
        if not same:
            raise NotKept(_not_kept(value, "it reads back as another value"))
        return JSON, data

    def read(self, form: str, data: bytes) -> Any:  # noqa: ANN401 - whatever was written
        """Raises `ValueError` for bytes that are not of this form, and for unknown forms."""
        if form == BYTES:
            return data
        if form != JSON:
            raise ValueError(f"expected the form {JSON} or {BYTES}, got {form}")
        return from_json(data) if self._adapter is None else self._adapter.validate_json(data)


def _not_kept(value: object, why: str) -> str:
    return (
        f"expected a result that can be written and read back, got {type(value).__name__}: {why}; "
        "annotate the return type with a pydantic model or a standard type"
    )


def _equal(left: object, right: object) -> bool:
    """Equal, with equal types inside: a tuple is not a list, True is not 1."""
    if type(left) is not type(right):
        return False
    if isinstance(left, dict) and isinstance(right, dict):
        return left.keys() == right.keys() and all(_equal(v, right[k]) for k, v in left.items())
    if isinstance(left, list | tuple) and isinstance(right, list | tuple):
        return len(left) == len(right) and all(map(_equal, left, right))
    return bool(left == right) or (left != left and right != right)  # noqa: PLR0124 - NaN


def encode_result(codec: Codec, value: object, effect: str | None, name: str) -> FenceResult:
    """The result as it is stored; only the digest of one that cannot be kept or is too large."""
    try:
        form, data = codec.write(value)
    except NotKept as not_kept:
        log.warning("fence %s: sealed without its result: %s", name, not_kept)
        return FenceResult("omitted", str(not_kept).encode(), omitted=True, effect=effect)
    omitted = len(data) > RESULT_BYTES_MAX
    if omitted:
        log.warning(
            "fence %s: sealed without its result: expected at most %d bytes, got %d",
            *(name, RESULT_BYTES_MAX, len(data)),
        )
    return FenceResult(form, data, omitted=omitted, effect=effect)


def decode_result(codec: Codec, reply: FenceDecision, name: str) -> Any:  # noqa: ANN401 - any result
    """The stored result; raises `ResultGone` where there is none."""
    receipt = receipt_text(reply.receipt) or ""
    if reply.answer is None or reply.form is None:
        why = "too large, or not serializable" if reply.omitted else "its retention is over"
        raise ResultGone(
            f"fence {name}: the effect took place once (receipt {receipt}), but its result is not "
            f"kept: {why}",
            receipt=receipt,
        )
    try:
        return codec.read(reply.form, reply.answer)
    except ValueError as error:  # pydantic's errors are ValueErrors, too
        log.exception("fence %s: a stored result cannot be read (receipt %s)", name, receipt)
        raise ResultGone(
            f"fence {name}: the effect took place once (receipt {receipt}), but its stored result "
            "does not match the return type; nothing was executed again. Read it with the type it "
            "was written with",
            receipt=receipt,
        ) from error


def effect_id(effect: str | None, name: str) -> str | None:
    """The id of the effect if it can be stored; an invalid id must not prevent the seal."""
    if not effect:
        return None
    try:
        fits = len(effect.encode()) <= EFFECT_BYTES_MAX and "\0" not in effect
    except UnicodeEncodeError:
        fits = False
    if fits:
        return effect
    log.error(
        "fence %s: expected an effect id of at most %d bytes of text, got %d characters; sealed "
        "without it",
        *(name, EFFECT_BYTES_MAX, len(effect)),
    )
    return None


def error_text(error: BaseException) -> str:
    """An exception as it is stored with its fence: bounded, and valid text for PostgreSQL."""
    try:
        message = str(error)
    except Exception:  # noqa: BLE001 - an exception whose __str__ fails
        message = "(no message)"
    text = f"{type(error).__name__}: {message[:DETAIL_CHARS_MAX]}"
    return text.replace("\0", "\\0").encode("utf-8", "backslashreplace").decode()


def probe_finding(
    returned: object, encode: Callable[[Any, str | None], FenceResult], name: str
) -> ProbeFinding:
    """What a probe returned or raised, as a finding; `encode` makes bytes of result and effect."""
    if isinstance(returned, Applied):
        return ProbeFinding("applied", encode(returned.result, effect_id(returned.effect, name)))
    if returned is NOT_APPLIED:
        return ProbeFinding("not_applied")
    if isinstance(returned, Exception):
        log.error("fence %s: the probe failed", name, exc_info=returned)
    elif returned is not UNKNOWN:
        # No guess: a probe without a return statement would execute the effect again.
        log.error(
            "fence %s: expected the probe to return Applied(...), NOT_APPLIED or UNKNOWN; got %s",
            *(name, type(returned).__name__),
        )
    return ProbeFinding("unknown")
