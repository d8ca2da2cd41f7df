"""A cache of the greatest seq per entity, in Redis or Valkey. It saves a query, never decides.

An event with a seq strictly below the cached one was written before: in a strict ledger every seq
up to the greatest exists. Such an event may be skipped. An equal or greater seq, a miss, an error,
a timeout or a forged entry goes to the database. Entries are written after the commit.

An entry carries the epoch of the database and an HMAC with a key that only this database derives,
so entries of another database, or from before a failover or `helixq recover`, do not count.
Epoch and key are read over a connection that the hint keeps: a restart of the server closes it, and
the hint is not used before both are read again.

```
helix:ledger:<hex HMAC of the entity>  ->  32 bytes HMAC, then "<epoch>:<seq>"
```
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import logging
from typing import TYPE_CHECKING, Any, Final

from redis import Redis
from redis.asyncio import Redis as AsyncRedis
from redis.exceptions import RedisError

from helixqueue.engine import ledgers
from helixqueue.errors import HelixError
from helixqueue.identity import identity_texts
from helixqueue.postgres.database import is_usable

if TYPE_CHECKING:
    from collections.abc import Callable

    from helixqueue.postgres.database import Database
    from helixqueue.records.ledger import Appended, NewEvent

log = logging.getLogger("helixqueue.ledger.hint")

PREFIX: Final = "helix:ledger:"
MAC_BYTES: Final = 32
TIMEOUT_SECONDS: Final = 0.05
_KNOWN: Final = frozenset(("written", "duplicate"))


class HintKey:
    """The epoch and key of a ledger's hints, valid while one connection stays open."""

    def __init__(self, connect: Callable[[], Database], tenant: str, ledger: str) -> None:
        self._connect = connect
        self._call = ledgers.hint_key(tenant=tenant, ledger=ledger)
        self._database: Database | None = None
        self.epoch, self._key = 0, b""

    def is_current(self) -> bool:
        """Whether epoch and key are those of the database that runs now; reads them if need be."""
        if self._database is not None and is_usable(self._database.connection):
            return True
        try:
            self.close()
            self._database = self._connect()
            self.epoch, self._key = self._database.run(self._call)
        except HelixError:
            self.close()
            return False
        return True

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

    def close(self) -> None:
        if self._database is not None:
            self._database.close()
            self._database = None

    def _mac(self, message: bytes) -> bytes:
        return hmac.digest(self._key, message, hashlib.sha256)


class SeqHint:
    """`url`: of Redis or Valkey."""

    def __init__(self, key: HintKey, url: str) -> None:
        self._key = key
        self._redis: Any = Redis.from_url(
            url, socket_timeout=TIMEOUT_SECONDS, socket_connect_timeout=TIMEOUT_SECONDS
        )

    def is_older(self, event: NewEvent) -> bool:
        """Whether a later event of the entity is known to be stored."""
        if not self._key.is_current():
            return False
        name = self._key.name(identity_texts(event.entity, "text-v1")[0])
        try:
            entry = self._redis.get(name)
        except (RedisError, OSError):
            return False
        return event.seq < self._key.decode(name, entry)

    def note(self, event: NewEvent, answer: Appended) -> None:
        """Store the greatest seq after a commit; a failure is harmless."""
        if answer.decision not in _KNOWN or answer.seq is None or not self._key.is_current():
            return
        name = self._key.name(identity_texts(event.entity, "text-v1")[0])
        try:
            self._redis.set(name, self._key.encode(name, answer.seq))
        except (RedisError, OSError):
            return

    def close(self) -> None:
        self._key.close()
        self._redis.close()


class AsyncSeqHint:
    """The same for event loops."""

    def __init__(self, key: HintKey, url: str) -> None:
        self._key = key
        self._redis: Any = AsyncRedis.from_url(
            url, socket_timeout=TIMEOUT_SECONDS, socket_connect_timeout=TIMEOUT_SECONDS
        )

    async def is_older(self, event: NewEvent) -> bool:
        """Whether a later event of the entity is known to be stored."""
        if not await asyncio.to_thread(self._key.is_current):
            return False
        name = self._key.name(identity_texts(event.entity, "text-v1")[0])
        try:
            entry = await self._redis.get(name)
        except (RedisError, OSError):
            return False
        return event.seq < self._key.decode(name, entry)

    async def note(self, event: NewEvent, answer: Appended) -> None:
        """Store the greatest seq after a commit; a failure is harmless."""
        if answer.decision not in _KNOWN or answer.seq is None:
            return
        if not await asyncio.to_thread(self._key.is_current):
            return
        name = self._key.name(identity_texts(event.entity, "text-v1")[0])
        try:
            await self._redis.set(name, self._key.encode(name, answer.seq))
        except (RedisError, OSError):
            return

    async def close(self) -> None:
        self._key.close()
        await self._redis.aclose()
