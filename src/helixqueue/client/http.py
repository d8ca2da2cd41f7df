"""`HelixClient`: the client of a service, for threads."""

from __future__ import annotations

from typing import TYPE_CHECKING, Unpack

from helixqueue.client.http_backend import HttpBackend
from helixqueue.client.sync_client import SyncClient

if TYPE_CHECKING:
    from helixqueue.client.settings import HttpSettings


class HelixClient(SyncClient[None]):
    """A client of one service; its token determines the tenant.

    ```python
    with HelixClient("https://helix.example.org", token=token) as helix:
        helix.submit(basecall, identity="sample-1", payload=Basecall(pod5="a.pod5"))
    ```

    It has the methods of `HelixQueue`, without `within` and fences.
    """

    def __init__(self, url: str, token: str, **settings: Unpack[HttpSettings]) -> None:
        super().__init__(HttpBackend(url, token, settings))
        self._url = url

    def __repr__(self) -> str:
        return f"HelixClient({self._url!r})"
