"""The token of a client."""

from __future__ import annotations

from helixqueue.transport.http.call import HttpCall, at, get


def own_tenant() -> HttpCall[str]:
    """The tenant of the token that the client sends."""
    return get(at("token"), lambda document: str(document["tenant"]))
