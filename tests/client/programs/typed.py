"""A lab's intake: typed payloads, a conflict, a new revision."""

import sys
from typing import assert_type

from pydantic import BaseModel

from helixqueue import Accepted, Conflict, HelixQueue, Queue, Receipt, State
from helixqueue.records.batch import ActionResult


class Basecall(BaseModel):
    pod5: str


class Reads(BaseModel):
    reads: int


basecall = Queue("typed.basecall", payload=Basecall, result=Reads, profile="lab-id-v1", lease=120)


def main(dsn: str) -> None:
    with HelixQueue(dsn, tenant="a") as helix:
        submitted = helix.submit(basecall, identity="Sämple-1", payload=Basecall(pod5="a.pod5"))
        two = helix.submit(basecall, identity="Sa\u0308mple-1", payload={"pod5": "a.pod5"})
        assert_type(submitted, Accepted[Reads])
        assert_type(submitted.receipt, Receipt[Reads])
        try:
            helix.submit(basecall, identity="Sämple-1", payload=Basecall(pod5="b.pod5"))
        except Conflict as conflict:
            print(conflict.diff[0]["path"])
        three = helix.submit(
            basecall, identity="Sämple-1", payload=Basecall(pod5="b.pod5"), revision="2", priority=0
        )
        for batch in helix.batches(queue=basecall, failure="OutOfMemory"):
            assert_type(batch.last_worker, str | None)
            [answer] = helix.retry([batch, three.receipt], reason="more memory")
            assert_type(answer.state, State | None)
            assert_type(helix.retry(batch.batch_id, reason="more memory"), State)
            assert_type(helix.retry(queue=basecall, reason="more memory"), list[ActionResult])
        print(submitted.receipt == two.receipt, submitted.decision, two.decision, three.decision)


main(sys.argv[1])
