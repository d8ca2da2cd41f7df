# Generated from http_async.py by `make twins`: change that file.
"""`HelixClient`: the client of a service, for threads."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Unpack

from helixqueue.client.http_backend import HttpBackend
from helixqueue.client.sync_client import SyncClient
from helixqueue.records.ledger import GapRule, LedgerDeclaration

if TYPE_CHECKING:
    from helixqueue.client.settings import HttpSettings
    from helixqueue.ledger.remote_feed import RemoteFeed
    from helixqueue.ledger.user_ledger import Ledger
    from helixqueue.records.machine import Machine


class HelixClient(SyncClient[None]):
    """A client of one service; its token determines the tenant.

    ```python
    with HelixClient("https://helix.example.org", token=token) as helix:
        helix.submit(basecall, identity="sample-1", payload=Basecall(pod5="a.pod5"))
    ```

    It has the methods of `HelixQueue`, without `within` and fences. Its feeds confirm events.
    """

    def __init__(self, url: str, token: str, **settings: Unpack[HttpSettings]) -> None:
        super().__init__(HttpBackend(url, token, settings))
        self._url = url

    def __repr__(self) -> str:
        return f"HelixClient({self._url!r})"

    def ledger(
        self,
        name: str,
        machine: Machine | None = None,
        *,
        strict: bool = True,
        gaps: GapRule | None = None,
        bind_payload: bool = False,
        ignore: Iterable[str] = (),
    ) -> Ledger:
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
        from helixqueue.ledger.user_ledger import Ledger  # noqa: PLC0415 - loaded when used

        if machine is None:
            return Ledger.find(self._do, self._operations, name)
        declared = LedgerDeclaration(name, machine, strict, bind_payload, tuple(ignore), gaps)
        return Ledger.declare(self._do, self._operations, declared)

    def feed(
        self,
        name: str,
        *,
        ledger: str | None = None,
        queue: str | None = None,
        start: str = "beginning",
    ) -> RemoteFeed:
        """Declare a feed over a ledger, or over the batches of a queue (`*`: all); return it.

        Without a source, return the feed of this name. A new feed starts at the `beginning`, or
        `now`. `read` and `confirm` deliver each event at least once: give its key to the effect.
        """
        from helixqueue.ledger.remote_feed import RemoteFeed  # noqa: PLC0415 - loaded when used

        feed = RemoteFeed(self._do, self._operations, name)
        feed.declare(ledger=ledger, queue=queue, start=start)
        return feed
