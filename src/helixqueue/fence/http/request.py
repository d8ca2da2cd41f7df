"""The request that a key belongs to, as one JSON document whose RFC 8785 text is fingerprinted.

It has method, route, path, query, media type and body. Spellings of one request (order of names,
white space, 1 and 1.0, another multipart boundary) make one document; requests that a parser could
tell apart make different ones. An ambiguous JSON body (duplicate names, NaN) is refused.
"""

from __future__ import annotations

import hashlib
import re
import zlib
from email.message import Message
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import parse_qsl

from helixqueue.errors import InvalidPayload
from helixqueue.fence.policy import pointer_names
from helixqueue.identity import canonical_text, loads

if TYPE_CHECKING:
    from helixqueue.fence.policy import Route

VERSION: Final = 1
_MAX_FIELDS: Final = 10_000
_INDEX: Final = re.compile(r"[0-9]{1,9}")
_READABLE: Final = frozenset({"gzip", "x-gzip", "deflate"})
# Bytes beyond ASCII that were sent raw (D8xx), and percent-encoded bytes that are not UTF-8 (DCxx,
# as `surrogateescape` makes them), are written by their numbers. The mapping is one to one, so that
# no two requests have the same text.
_RAW_BYTES: Final = {byte: chr(0xD800 + byte) for byte in range(0x80, 0x100)}
_ESCAPES: Final = (
    {ord("\\"): "\\\\", 0: "\\0"}
    | {0xD800 + byte: f"\\r{byte:02x}" for byte in range(0x80, 0x100)}
    | {0xDC00 + byte: f"\\x{byte:02x}" for byte in range(0x80, 0x100)}
)


class TooLarge(Exception):
    """More bytes than the limit."""


def request_text(
    route: Route, *, method: str, path: str, query: bytes, media: str, encoding: str, body: bytes
) -> str:
    """The canonical text; raises `InvalidPayload` or `TooLarge`."""
    try:
        kind, value = _body(media, encoding, body, route.max_body_bytes)
        document: dict[str, Any] = {
            "v": VERSION,
            "method": method,
            "route": route.path,
            "path": path,
            "query": _pairs(query),
            "media": kind,
            "body": value,
        }
        if kind == "json" and (route.ignore or route.only):
            # The selection is part of the document: another selection makes another fingerprint.
            document["select"] = {"ignore": list(route.ignore), "only": list(route.only)}
            document["body"] = _selected(value, route)
        return canonical_text(document)
    except InvalidPayload as error:
        if error.code == "too-large":
            raise TooLarge from error
        raise


def _decoded(body: bytes, encoding: str, most: int) -> bytes:
    reader = zlib.decompressobj(zlib.MAX_WBITS | 32)
    try:
        content = reader.decompress(body, most + 1)
    except zlib.error as error:
        raise InvalidPayload(f"expected {encoding}, got {error}", code="encoding") from error
    if len(content) > most:
        raise TooLarge
    if not reader.eof or reader.unused_data:
        # Bytes after the stream would not be compared; a stream that is cut off is incomplete.
        raise InvalidPayload(f"expected one whole {encoding} stream", code="encoding")
    return content


def _body(media: str, encoding: str, content: bytes, most: int) -> tuple[str, Any]:
    if media == "application/json" and not encoding:
        # The most common case; the general parser takes as long as the rest of this module.
        return _json(content)
    header = Message()
    header["content-type"] = media or "application/octet-stream"
    kind = header.get_content_type()
    if encoding in _READABLE:
        content = _decoded(content, encoding, most)
    elif encoding not in {"", "identity"}:
        return _raw(f"{encoding} {kind}", content)
    if kind == "application/json" or kind.endswith("+json"):
        return _json(content)
    if kind == "application/x-www-form-urlencoded":
        return "form", _pairs(content)
    if kind == "multipart/form-data":
        parts = _parts(content, str(header.get_param("boundary") or ""))
        if parts is not None:
            return "multipart", parts
    return _raw(kind, content)


def _json(content: bytes) -> tuple[str, Any]:
    return ("json", loads(content)) if content else ("no json", None)


def _raw(kind: str, content: bytes) -> tuple[str, Any]:
    return f"raw {kind}", {"sha256": hashlib.sha256(content).hexdigest(), "bytes": len(content)}


def _pairs(data: bytes) -> list[list[str]]:
    """Sorted by name, in the order they came for each name: a=1&a=2 is not a=2&a=1."""
    try:
        pairs = parse_qsl(
            data.decode("latin-1").translate(_RAW_BYTES),
            keep_blank_values=True,
            max_num_fields=_MAX_FIELDS,
            errors="surrogateescape",
        )
    except ValueError as error:
        raise InvalidPayload(f"expected at most {_MAX_FIELDS} fields", code="names") from error
    shown = [[name.translate(_ESCAPES), value.translate(_ESCAPES)] for name, value in pairs]
    return sorted(shown, key=lambda pair: pair[0])


def _parts(content: bytes, boundary: str) -> list[dict[str, Any]] | None:
    """Headers and digest of each part, independent of the boundary.

    None for a body that parsers could split differently: it is compared as bytes.
    """
    if not boundary:
        return None
    mark = b"\r\n--" + boundary.encode("latin-1", "replace")
    before, *pieces = (b"\r\n" + content).split(mark)
    if before or not pieces or pieces.pop() not in {b"--", b"--\r\n"}:
        return None
    parts = []
    for piece in pieces:
        head, separator, data = piece.partition(b"\r\n\r\n")
        if not separator or not head.startswith(b"\r\n"):
            return None
        parts.append(_part(head.split(b"\r\n")[1:], data))
    return parts


def _part(lines: list[bytes], data: bytes) -> dict[str, Any]:
    pairs = [line.decode("latin-1").partition(":") for line in lines]
    return {
        "headers": sorted([name.lower(), value.strip()] for name, _, value in pairs),
        "sha256": hashlib.sha256(data).hexdigest(),
        "bytes": len(data),
    }


def _selected(value: Any, route: Route) -> Any:  # noqa: ANN401 - JSON
    if route.only:
        return [[pointer, *_at(value, pointer)] for pointer in route.only]
    return _without(value, route.ignored)


def _at(value: Any, pointer: str) -> list[Any]:  # noqa: ANN401 - JSON
    """The value at the pointer, in a list; an empty list is not null."""
    for name in pointer_names(pointer):
        if isinstance(value, dict) and name in value:
            value = value[name]
        elif isinstance(value, list) and _INDEX.fullmatch(name) and int(name) < len(value):
            value = value[int(name)]
        else:
            return []
    return [value]


def _without(value: Any, ignored: dict[str, Any]) -> Any:  # noqa: ANN401 - JSON
    """The value without the ignored members, in one pass however many there are."""
    if not isinstance(value, dict):
        return value
    return {
        name: _without(inner, ignored[name]) if name in ignored else inner
        for name, inner in value.items()
        if name not in ignored or ignored[name] is not None
    }
