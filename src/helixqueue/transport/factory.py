"""A transport from what `Transport.spec` says of it, in another process."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from helixqueue.transport.protocol import Transport


def transport_of(spec: dict[str, Any]) -> Transport:
    options = dict(spec)
    kind = options.pop("transport")
    if kind == "http":
        from helixqueue.transport.http.connection import ServiceAddress  # noqa: PLC0415 - only where it is used
        from helixqueue.transport.http.transport import HttpTransport  # noqa: PLC0415

        return HttpTransport(ServiceAddress(**options["where"]), options["worker"])
    if kind != "direct":
        raise ValueError(f"expected the transport 'direct' or 'http', got {kind!r}")
    from helixqueue.transport.direct import PostgresTransport  # noqa: PLC0415 - only where it is used

    return PostgresTransport(**options)
