"""A producer: adds messages to a stream with canonical fields.

```python
with Producer("redis://redis:6379/0", "samples") as producer:
    producer.send("Sämple-1", {"pod5": "a.pod5"}, queue="basecall")
```

Any client that can XADD works as well. An entry is safe as soon as Redis has stored it durably; see
docs/guides/streams.md.
"""

from __future__ import annotations

import os
from typing import Self

import redis

from helixqueue.errors import Unavailable
from helixqueue.identity import canonical_text, canonicalize
from helixqueue.intake.settings import PASSWORD_VARIABLE
from helixqueue.operations.message import message_fields


class Producer:
    """Sends messages to one stream; threads share it."""

    def __init__(self, url: str, stream: str, *, profile: str = "text-v1") -> None:
        """`profile` checks identities before they are sent; the queue's own decides later."""
        self._client = redis.Redis.from_url(url, password=os.environ.get(PASSWORD_VARIABLE) or None)
        self._stream, self._profile = stream, profile

    def send(
        self,
        identity: str | tuple[str, ...] | None,
        payload: object,
        *,
        queue: str | None = None,
        revision: str | None = None,
        priority: int | None = None,
    ) -> str:
        """Add one message and return its entry id; raises `InvalidIdentity`, `InvalidPayload`."""
        if identity is not None:
            canonicalize(identity, self._profile)
        fields = message_fields(
            queue=queue,
            identity=identity,
            payload=canonical_text(payload),
            revision=revision,
            priority=priority,
        )
        words = [part for field in fields for part in field]
        try:
            entry = self._client.execute_command(  # type: ignore[no-untyped-call]
                "XADD", self._stream, "*", *words
            )
        except (redis.RedisError, OSError) as error:
            raise Unavailable(
                f"Redis does not answer ({type(error).__name__}): send the message again, the "
                "intake recognises a repeat by its identity",
                outcome_unknown=True,
            ) from error
        return str(entry.decode())

    def close(self) -> None:
        self._client.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
