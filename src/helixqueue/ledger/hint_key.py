"""A cache of the greatest seq per entity, in Redis or Valkey. It saves a query, never decides.

A strict ledger writes no event with a seq below the greatest: it was written before or, where the
ledger has gaps, it would be refused. Such an event may be skipped. An equal or greater seq, a miss,
an error, a timeout or a forged entry goes to the database. Entries are written after the commit.

An entry carries the epoch of the database and an HMAC with a key that only this run of this
database derives: the key changes with the server's start, the cluster, the database and the table
(`helix.ledger_hint_key_v1`). So entries of another database, or from before a restart, a restore or
a failover, do not count: an older state may have been restored, which lacks the events that they
name. Key and epoch are read over a connection that the hint keeps, and again every second. A
restart of the server closes that connection, and the hint is not used before both are read again.

```
helix:ledger:<hex HMAC of the entity>  ->  32 bytes HMAC, then "<epoch>:<seq>"
```
"""

from __future__ import annotations

import hashlib
import hmac
import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from helixqueue.engine import ledgers
from helixqueue.errors import HelixError
from helixqueue.postgres.database import is_usable

if TYPE_CHECKING:
    from helixqueue.postgres.database import Database

log = logging.getLogger("helixqueue.ledger.hint")

PREFIX: Final = "helix:ledger:"
MAC_BYTES: Final = 32
KEY_SECONDS: Final = (
    1.0  # then the key is read again: a table may be restored while the server runs
)


@dataclass(frozen=True, slots=True)
class HintKey:
    """The epoch and key of a ledger's entries, of one run of one database."""

    epoch: int
    key: bytes

    def name(self, entity: str) -> str:
        return PREFIX + self._mac(entity.encode()).hex()

    def encode(self, name: str, seq: int) -> bytes:
        text = f"{self.epoch}:{seq}".encode()
        return self._mac(name.encode() + text) + text

    def decode(self, name: str, entry: object) -> int:
        """Return the cached seq; 0 if there is no valid entry of this epoch."""
        if not isinstance(entry, bytes):
            return 0
        mac, text = entry[:MAC_BYTES], entry[MAC_BYTES:]
        if not hmac.compare_digest(mac, self._mac(name.encode() + text)):
            log.error("a cached seq has a wrong HMAC and is ignored; the database decides")
            return 0
        epoch, _, seq = text.decode().partition(":")
        return int(seq) if int(epoch) == self.epoch else 0

    def _mac(self, message: bytes) -> bytes:
        return hmac.digest(self.key, message, hashlib.sha256)


@dataclass(frozen=True, slots=True)
class CachedSeq:
    """What the cache knows of an entity, before its event is sent.

    The answer is noted with the key of that moment: if the database was restored in between, no
    client reads the entry.
    """

    key: HintKey
    name: str
    seq: int  # 0: nothing


class HintKeys:
    """Reads the key over a connection of its own; threads share it."""

    def __init__(self, connect: Callable[[], Database], tenant: str, ledger: str) -> None:
        self._connect = connect
        self._call = ledgers.hint_key(tenant=tenant, ledger=ledger)
        self._database: Database | None = None
        self._key: HintKey | None = None
        self._read_at = 0.0
        self._lock = threading.Lock()

    def current(self) -> HintKey | None:
        """Return the key of the database that runs now; None while it cannot be read."""
        with self._lock:
            database = self._database
            try:
                if database is None or not is_usable(database.connection):
                    self._disconnect()
                    database = self._database = self._connect()
                elif time.monotonic() - self._read_at < KEY_SECONDS:
                    return self._key
                self._read_at = time.monotonic()
                self._key = HintKey(*database.run(self._call))
            except HelixError:
                self._disconnect()
            return self._key

    def close(self) -> None:
        with self._lock:
            self._disconnect()

    def _disconnect(self) -> None:
        database, self._database, self._key = self._database, None, None
        if database is not None:
            database.close()
