"""A cache of sealed answers in Redis or Valkey. It changes latency, never a decision.

An entry is written after its seal has committed and is never changed. Its name is an HMAC of
tenant, fence name, key and request, so another request does not find it. It carries an HMAC of
itself, so a forged entry is not read. On a miss, an error, a timeout or a forged entry PostgreSQL
decides. The cache never lets a call execute.

```
helix:fence:<hex HMAC of the request>  ->  32 bytes HMAC, then JSON head, newline, answer
```
"""

from __future__ import annotations

import hashlib
import hmac
import json
import logging
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from redis.asyncio import Redis
from redis.exceptions import RedisError

from helixqueue.breaker import TIMEOUT_SECONDS, Breaker
from helixqueue.errors import Refused
from helixqueue.records.fence import receipt_text

if TYPE_CHECKING:
    from helixqueue.engine.fences import FenceDecision
    from helixqueue.fence.metrics import Counters
    from helixqueue.fence.protocol import FenceSpec

log = logging.getLogger("helixqueue.fence.hint")

PREFIX: Final = "helix:fence:"
MAC_BYTES: Final = 32


@dataclass(frozen=True, slots=True)
class CachedAnswer:
    answer: bytes
    receipt: str
    sealed_at: str
    effect: str | None


class SealedCache:
    """`secret`: at least 16 random bytes, the same for all processes that share the cache."""

    def __init__(self, url: str, secret: bytes, counters: Counters | None = None) -> None:
        if len(secret) < 16:
            raise Refused(f"hint: expected a secret of at least 16 bytes, got {len(secret)}")
        self._secret = secret
        self.counters = counters  # the middleware sets its own if there are none
        self._breaker = Breaker(log)
        self._redis: Any = Redis.from_url(
            url, socket_timeout=TIMEOUT_SECONDS, socket_connect_timeout=TIMEOUT_SECONDS
        )

    async def get(self, spec: FenceSpec, identity: str, request: str) -> CachedAnswer | None:
        """The sealed answer to this request, or None."""
        name = self._name(spec, identity, request)
        entry = await self._guarded(lambda: self._redis.get(name))
        if entry is None:
            self._count("miss")
        if not isinstance(entry, bytes):
            return None
        mac, document = entry[:MAC_BYTES], entry[MAC_BYTES:]
        if not hmac.compare_digest(mac, self._mac(name.encode() + document)):
            log.error("hint: a cache entry has a wrong HMAC and is ignored; PostgreSQL decides")
            self._count("forged")
            return None
        head, _, answer = document.partition(b"\n")
        facts = json.loads(head)
        self._count("hit")
        return CachedAnswer(answer, facts["receipt"], facts["sealed_at"], facts["effect"])

    async def put(self, spec: FenceSpec, identity: str, request: str, reply: FenceDecision) -> None:
        """Store a sealed answer; a failure is harmless.

        Not the answer of a resolution (it has a note): an operator may still correct it.
        """
        if reply.answer is None or reply.sealed_at is None or reply.note is not None:
            return
        name = self._name(spec, identity, request)
        head = {
            "receipt": receipt_text(reply.receipt),
            "sealed_at": reply.sealed_at.isoformat(),
            "effect": reply.effect,
        }
        document = json.dumps(head).encode() + b"\n" + reply.answer
        # Not longer than PostgreSQL keeps it, counted from the seal by the clock of this host.
        age = max(0.0, time.time() - reply.sealed_at.timestamp())
        seconds = int(spec.times.answer - age)
        if seconds > 0:
            entry = self._mac(name.encode() + document) + document
            await self._guarded(lambda: self._redis.set(name, entry, ex=seconds))

    async def close(self) -> None:
        await self._redis.aclose()

    async def _guarded(self, command: Any) -> object:  # noqa: ANN401 - makes the awaitable
        """The reply, or False on a fault or while the breaker is open."""
        if self._breaker.is_open:
            self._count("open")
            return False
        try:
            with self._breaker.watch():
                reply: object = await command()
        except (RedisError, OSError, TimeoutError):
            self._count("error")
            return False
        return reply

    def _name(self, spec: FenceSpec, identity: str, request: str) -> str:
        parts = [part.encode() for part in (spec.tenant, spec.name, identity, request)]
        framed = b"".join(len(part).to_bytes(4, "big") + part for part in parts)
        return PREFIX + self._mac(framed).hex()

    def _mac(self, message: bytes) -> bytes:
        return hmac.digest(self._secret, message, hashlib.sha256)

    def _count(self, word: str) -> None:
        if self.counters is not None:
            self.counters.count_hint(word)
