"""`AsyncHelixClient`: the client of a service, for event loops."""

from __future__ import annotations

from typing import TYPE_CHECKING, Unpack

from helixqueue.client.async_client import AsyncClient
from helixqueue.client.http_backend import AsyncHttpBackend

if TYPE_CHECKING:
    from helixqueue.client.settings import HttpSettings


class AsyncHelixClient(AsyncClient[None]):
    """A client of one service; its token determines the tenant.

    ```python
    async with AsyncHelixClient("https://helix.example.org", token=token) as helix:
        await helix.submit(basecall, identity="sample-1", payload=Basecall(pod5="a.pod5"))
    ```

    It has the methods of `AsyncHelixQueue`, without `within` and fences.
    """

    def __init__(self, url: str, token: str, **settings: Unpack[HttpSettings]) -> None:
        super().__init__(AsyncHttpBackend(url, token, settings))
        self._url = url

    def __repr__(self) -> str:
        return f"AsyncHelixClient({self._url!r})"
