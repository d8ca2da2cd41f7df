"""What a key stands for: the request as one JSON document, whose RFC 8785 text is fingerprinted.

Method, route, path, query, kind of media and body. Two spellings of one request (order of names,
white space, 1 and 1.0, another multipart boundary) are one document; what a reader could take for
another request is another. A body without a single meaning (doubled names, NaN) is refused.
"""

from __future__ import annotations

import hashlib
import re
import zlib
from email.message import Message
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import parse_qsl

from helixqueue.errors import InvalidPayload
from helixqueue.identity import canonical_text, loads

if TYPE_CHECKING:
    from helixqueue.fence.policy import Route

VERSION: Final = 1
_MAX_FIELDS: Final = 10_000
_DISPOSITION = re.compile(rb"(?i)content-disposition:\s*(.*)")
_TYPE = re.compile(rb"(?i)content-type:\s*(.*)")


class TooLarge(Exception):
    """More bytes than may be compared."""


def request_text(
    route: Route, *, method: str, path: str, query: bytes, media: str, encoding: str, body: bytes
) -> str:
    """The canonical text; raises `InvalidPayload` or `TooLarge`."""
    content = _decoded(body, encoding, route.max_body_bytes)
    kind, value = _body(media, content)
    document: dict[str, Any] = {
        "v": VERSION,
        "method": method,
        "route": route.path,
        "path": path,
        "query": _pairs(query.decode("latin-1")),
        "media": kind,
        "body": value,
    }
    if kind == "json" and (route.ignore or route.only):
        # The selection is part of what is compared: another selection is another fingerprint.
        document["select"] = {"ignore": list(route.ignore), "only": list(route.only)}
        document["body"] = _selected(value, route)
    try:
        return canonical_text(document)
    except InvalidPayload as refused:
        if refused.code == "too-large":
            raise TooLarge from refused
        raise


def _decoded(body: bytes, encoding: str, most: int) -> bytes:
    if encoding not in {"gzip", "x-gzip", "deflate"}:
        return body  # identity, or one we do not read: compared as bytes
    reader = zlib.decompressobj(zlib.MAX_WBITS | 32)
    try:
        content = reader.decompress(body, most + 1)
    except zlib.error as error:
        raise InvalidPayload(f"expected {encoding}, got {error}", code="encoding") from error
    if len(content) > most:
        raise TooLarge
    return content


def _body(media: str, content: bytes) -> tuple[str, Any]:
    header = Message()
    header["content-type"] = media or "application/octet-stream"
    kind = header.get_content_type()
    if kind == "application/json" or kind.endswith("+json"):
        return "json", loads(content) if content else None
    if kind == "application/x-www-form-urlencoded":
        return "form", _pairs(content.decode("latin-1"))
    if kind == "multipart/form-data":
        parts = _parts(content, str(header.get_param("boundary") or ""))
        if parts is not None:
            return "multipart", parts
    return f"raw {kind}", {"sha256": hashlib.sha256(content).hexdigest(), "bytes": len(content)}


def _pairs(text: str) -> list[list[str]]:
    """Sorted by name, in the order they came for each name: a=1&a=2 is not a=2&a=1."""
    try:
        pairs = parse_qsl(
            text, keep_blank_values=True, max_num_fields=_MAX_FIELDS, errors="surrogateescape"
        )
    except ValueError as error:
        raise InvalidPayload(f"expected at most {_MAX_FIELDS} fields", code="names") from error
    # Bytes that are no UTF-8 are shown by their numbers: they must differ, not be pretty.
    shown = [[_plain(name), _plain(value)] for name, value in pairs]
    return sorted(shown, key=lambda pair: pair[0])


def _plain(text: str) -> str:
    return (
        text.encode("utf-8", "surrogateescape")
        .decode("utf-8", "backslashreplace")
        .replace("\0", "\\0")
    )


def _parts(content: bytes, boundary: str) -> list[dict[str, Any]] | None:
    """Each part by name, file name, type and digest, whatever the boundary; None if malformed."""
    if not boundary:
        return None
    mark = b"\r\n--" + boundary.encode("latin-1", "replace")
    pieces = (b"\r\n" + content).split(mark)
    if len(pieces) < 2 or not pieces[-1].startswith(b"--"):
        return None
    found = []
    for piece in pieces[1:-1]:
        head, separator, data = piece.removeprefix(b"\r\n").partition(b"\r\n\r\n")
        if not separator:
            return None
        found.append(_part(head, data))
    return found


def _part(head: bytes, data: bytes) -> dict[str, Any]:
    header = Message()
    for line in head.split(b"\r\n"):
        for name, pattern in (("disposition", _DISPOSITION), ("kind", _TYPE)):
            if said := pattern.fullmatch(line):
                header[name] = said[1].decode("latin-1")
    return {
        "name": header.get_param("name", header="disposition"),
        "filename": header.get_param("filename", header="disposition"),
        "type": header.get("kind"),
        "sha256": hashlib.sha256(data).hexdigest(),
        "bytes": len(data),
    }


def _selected(value: Any, route: Route) -> Any:  # noqa: ANN401 - JSON
    if route.only:
        return [[pointer, _at(value, pointer)] for pointer in route.only]
    for pointer in route.ignore:
        value = _without(value, _names(pointer))
    return value


def _names(pointer: str) -> list[str]:
    return [name.replace("~1", "/").replace("~0", "~") for name in pointer.split("/")[1:]]


def _at(value: Any, pointer: str) -> Any:  # noqa: ANN401 - JSON
    for name in _names(pointer):
        if isinstance(value, dict) and name in value:
            value = value[name]
        elif isinstance(value, list) and name.isdigit() and int(name) < len(value):
            value = value[int(name)]
        else:
            return None
    return value


def _without(value: Any, names: list[str]) -> Any:  # noqa: ANN401 - JSON
    if not isinstance(value, dict) or names[0] not in value:
        return value
    if len(names) == 1:
        return {name: inner for name, inner in value.items() if name != names[0]}
    return {**value, names[0]: _without(value[names[0]], names[1:])}
