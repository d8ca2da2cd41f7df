"""Builds a transport from `Transport.spec`, in another process."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from helixqueue.transport.protocol import Transport


def build_transport(spec: dict[str, Any]) -> Transport:
    options = dict(spec)
    kind = options.pop("transport")
    if kind == "http":
        from helixqueue.transport.http.connection import ServiceAddress  # noqa: PLC0415 - optional
        from helixqueue.transport.http.transport import HttpTransport  # noqa: PLC0415

        return HttpTransport(ServiceAddress(**options["address"]), options["worker"])
    if kind != "direct":
        raise ValueError(f"expected the transport 'direct' or 'http', got {kind!r}")
    from helixqueue.transport.direct import PostgresTransport  # noqa: PLC0415 - optional

    return PostgresTransport(**options)
