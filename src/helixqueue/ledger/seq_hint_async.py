"""The cache of seqs of one ledger, in Redis or Valkey; `hint_key` describes its entries."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Any, Final

from redis.asyncio import Redis
from redis.exceptions import RedisError

from helixqueue.breaker import TIMEOUT_SECONDS, Breaker
from helixqueue.ledger.hint_key import CachedSeq

if TYPE_CHECKING:
    from helixqueue.ledger.hint_key import HintKeys
    from helixqueue.records.ledger import Appended

log = logging.getLogger("helixqueue.ledger.hint")

ENTRY_SECONDS: Final = 7 * 86_400  # entries of earlier runs of the server are never read again
_KNOWN: Final = frozenset(("written", "duplicate_suppressed_by_db"))


class AsyncSeqHint:
    """`url`: of Redis or Valkey."""

    def __init__(self, keys: HintKeys, url: str) -> None:
        self._keys = keys
        self._breaker = Breaker(log)
        self._redis: Any = Redis.from_url(
            url, socket_timeout=TIMEOUT_SECONDS, socket_connect_timeout=TIMEOUT_SECONDS
        )

    async def look(self, entity: str) -> CachedSeq | None:
        """Return what is cached of a canonical entity; None if the cache must not be used."""
        if self._breaker.is_open:
            return None
        key = await asyncio.to_thread(self._keys.current)
        if key is None:
            return None
        name = key.name(entity)
        try:
            with self._breaker.watch():
                entry = await self._redis.get(name)
        except (RedisError, OSError):
            return None
        return CachedSeq(key, name, key.decode(name, entry))

    async def note(self, cached: CachedSeq, answer: Appended) -> None:
        """Store the greatest seq after a commit; a failure is harmless."""
        if answer.decision not in _KNOWN or answer.seq is None or self._breaker.is_open:
            return
        entry = cached.key.encode(cached.name, answer.seq)
        try:
            with self._breaker.watch():
                await self._redis.set(cached.name, entry, ex=ENTRY_SECONDS)
        except (RedisError, OSError):
            return

    async def close(self) -> None:
        self._keys.close()
        await self._redis.aclose()
