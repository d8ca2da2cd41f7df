"""A transport from what `Transport.spec` says of it, in another process."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from helixqueue.transport.protocol import Transport


def transport_of(spec: dict[str, Any]) -> Transport:
    options = dict(spec)
    kind = options.pop("transport")
    if kind != "direct":
        raise ValueError(f"expected the transport 'direct', got {kind!r}")
    from helixqueue.transport.direct import Direct  # noqa: PLC0415 - only where it is used

    return Direct(**options)
