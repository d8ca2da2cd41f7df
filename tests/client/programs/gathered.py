"""An async service: many requests at a time, one client."""

import asyncio
import sys
from typing import Any, assert_type

from helixqueue import AsyncHelixQueue, Queue, Submitted

refunds: Queue[dict[str, Any], Any] = Queue("gathered.refunds")


async def main(dsn: str) -> None:
    async with AsyncHelixQueue(dsn, tenant="a", connections=4) as helix:
        done = await asyncio.gather(
            *[
                helix.submit(refunds, identity=("order", str(n % 5)), payload={"cents": n % 5})
                for n in range(30)
            ]
        )
        print(sum(item.decision == "new" for item in done), len({item.receipt for item in done}))
        many = await helix.submit_many(refunds, [{"identity": "x", "payload": {}}])
        assert_type(many, list[Submitted[Any]])
        print(many[0].decision, [batch.identity async for batch in helix.batches(identity="x")])


asyncio.run(main(sys.argv[1]))
