"""A cache of sealed answers in Redis or Valkey. It can only be faster, never wrong.

An entry is written after its seal has committed and is never changed. It is found under a keyed
hash of tenant, name, key and request, so another request finds nothing, and carries a keyed hash
of itself, so what was not written by us is not read. A miss, an error, a timeout, a lie: PostgreSQL
decides. Nothing here lets anybody execute.

```
helix:fence:<hex HMAC of what was asked>  ->  32 bytes HMAC, then JSON head, newline, answer
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

from helixqueue.errors import Refused
from helixqueue.fence.encoding import receipt_text

if TYPE_CHECKING:
    from helixqueue.engine.fences import FenceDecision
    from helixqueue.fence.counters import Counters
    from helixqueue.fence.protocol import FenceSteps

log = logging.getLogger("helixqueue.fence.hint")

PREFIX: Final = "helix:fence:"
MAC_BYTES: Final = 32
# One slow answer costs this much; after so many in a row nobody asks for a while.
TIMEOUT_SECONDS: Final = 0.05
FAULTS_TO_OPEN: Final = 3
OPEN_SECONDS: Final = 5.0


@dataclass(frozen=True, slots=True)
class Hinted:
    answer: bytes
    receipt: str
    sealed_at: str


class SealedCache:
    """`secret` is shared by the processes that share the cache: 16 random bytes or more."""

    def __init__(self, url: str, secret: bytes, counters: Counters | None = None) -> None:
        if len(secret) < 16:
            raise Refused(f"hint: expected a secret of 16 bytes or more, got {len(secret)}")
        self._secret = secret
        self.counters = counters  # the middleware gives it its own, if it has none
        self._faults = 0
        self._rests_until = 0.0  # by the monotonic clock; nobody asks before
        self._redis: Any = Redis.from_url(
            url, socket_timeout=TIMEOUT_SECONDS, socket_connect_timeout=TIMEOUT_SECONDS
        )

    async def get(self, plan: FenceSteps, identity: str, request: str) -> Hinted | None:
        """A sealed answer to this very request, or None."""
        name = self._name(plan, identity, request)
        entry = await self._guarded(lambda: self._redis.get(name))
        if entry is None:
            self._count("miss")
        if not isinstance(entry, bytes):
            return None
        mac, document = entry[:MAC_BYTES], entry[MAC_BYTES:]
        if not hmac.compare_digest(mac, self._mac(name.encode() + document)):
            log.error("hint: an entry was not written by us; PostgreSQL decides")
            self._count("lie")
            return None
        head, _, answer = document.partition(b"\n")
        told = json.loads(head)
        self._count("hit")
        return Hinted(answer, told["receipt"], told["sealed_at"])

    async def put(self, plan: FenceSteps, identity: str, request: str, told: FenceDecision) -> None:
        """Keep a sealed answer; failing is harmless."""
        if told.answer is None or told.sealed_at is None:
            return
        name = self._name(plan, identity, request)
        head = {"receipt": receipt_text(told), "sealed_at": told.sealed_at.isoformat()}
        document = json.dumps(head).encode() + b"\n" + told.answer
        # No longer than PostgreSQL keeps it, as far as this host's clock is right: from the seal,
        # not from now.
        age = max(0.0, time.time() - told.sealed_at.timestamp())
        seconds = int(plan.times.answer - age)
        if seconds > 0:
            entry = self._mac(name.encode() + document) + document
            await self._guarded(lambda: self._redis.set(name, entry, ex=seconds))

    async def close(self) -> None:
        await self._redis.aclose()

    async def _guarded(self, ask: Any) -> object:  # noqa: ANN401 - makes the awaitable
        """The answer, or False where there is none; opens the circuit after faults in a row."""
        if time.monotonic() < self._rests_until:
            self._count("open")
            return False
        try:
            answer: object = await ask()
        except (RedisError, OSError, TimeoutError) as error:
            self._count("error")
            self._faults += 1
            if self._faults >= FAULTS_TO_OPEN:
                self._faults = 0
                self._rests_until = time.monotonic() + OPEN_SECONDS
                log.warning("hint: not asked for %g s: %s", OPEN_SECONDS, error)
            return False
        self._faults = 0
        return answer

    def _name(self, plan: FenceSteps, identity: str, request: str) -> str:
        parts = [part.encode() for part in (plan.tenant, plan.name, identity, request)]
        framed = b"".join(len(part).to_bytes(4, "big") + part for part in parts)
        return PREFIX + self._mac(framed).hex()

    def _mac(self, message: bytes) -> bytes:
        return hmac.digest(self._secret, message, hashlib.sha256)

    def _count(self, word: str) -> None:
        if self.counters is not None:
            self.counters.hinted(word)
