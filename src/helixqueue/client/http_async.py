"""`AsyncHelixClient`: the client of a service, for event loops."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Unpack

from helixqueue.client.async_client import AsyncClient
from helixqueue.client.http_backend_async import AsyncHttpBackend
from helixqueue.records.ledger import GapRule, LedgerDeclaration

if TYPE_CHECKING:
    from helixqueue.client.settings import HttpSettings
    from helixqueue.ledger.remote_feed_async import AsyncRemoteFeed
    from helixqueue.ledger.user_ledger_async import AsyncLedger
    from helixqueue.records.machine import Machine


class AsyncHelixClient(AsyncClient[None]):
    """A client of one service; its token determines the tenant.

    ```python
    async with AsyncHelixClient("https://helix.example.org", token=token) as helix:
        await helix.submit(basecall, identity="sample-1", payload=Basecall(pod5="a.pod5"))
    ```

    It has the methods of `AsyncHelixQueue`, without `within` and fences. Its feeds confirm events.
    """

    def __init__(self, url: str, token: str, **settings: Unpack[HttpSettings]) -> None:
        super().__init__(AsyncHttpBackend(url, token, settings))
        self._url = url

    def __repr__(self) -> str:
        return f"AsyncHelixClient({self._url!r})"

    async def ledger(
        self,
        name: str,
        machine: Machine | None = None,
        *,
        strict: bool = True,
        gaps: GapRule | None = None,
        bind_payload: bool = False,
        ignore: Iterable[str] = (),
    ) -> AsyncLedger:
        """Declare a ledger, and return it; without a machine, return the stored ledger.

        machine: kinds of events and the arrows between them.
        strict: refuse events that violate the machine or are older than the last one; otherwise
            they are written with the rules that they violate.
        gaps: what becomes of an event whose seq does not follow the last one: refuse, warn (written
            with the rule `gap`) or allow. By default refuse if strict, else warn.
        bind_payload: the payload is part of an event's identity.
        ignore: JSON Pointers of payload fields that do not count when events are compared.
        See docs/guides/ledgers.md.
        """
        from helixqueue.ledger.user_ledger_async import AsyncLedger  # noqa: PLC0415 - loaded when used

        if machine is None:
            return await AsyncLedger.find(self._do, self._operations, name)
        declared = LedgerDeclaration(name, machine, strict, bind_payload, tuple(ignore), gaps)
        return await AsyncLedger.declare(self._do, self._operations, declared)

    async def feed(
        self,
        name: str,
        *,
        ledger: str | None = None,
        queue: str | None = None,
        start: str = "beginning",
    ) -> AsyncRemoteFeed:
        """Declare a feed over a ledger, or over the batches of a queue (`*`: all); return it.

        Without a source, return the feed of this name. A new feed starts at the `beginning`, or
        `now`. `read` and `confirm` deliver each event at least once: give its key to the effect.
        """
        from helixqueue.ledger.remote_feed_async import AsyncRemoteFeed  # noqa: PLC0415 - loaded when used

        feed = AsyncRemoteFeed(self._do, self._operations, name)
        await feed.declare(ledger=ledger, queue=queue, start=start)
        return feed
