"""One process submits and forgets; another has only the id, and the declaration for the type."""

import sys
from typing import assert_type
from uuid import UUID

from typing_extensions import TypedDict

from helixqueue import HelixQueue, InProgress, NoResult, Queue, Settlement


class Align(TypedDict):
    reference: str


class Aligned(TypedDict):
    mapped: int


align = Queue("later.align", payload=Align, result=Aligned, max_attempts=1)


def submit(dsn: str) -> tuple[UUID, UUID]:
    with HelixQueue(dsn, tenant="a") as helix:
        done = helix.submit(align, identity="a1", payload={"reference": "hg38"})
        lost = helix.submit(align, identity="a2", payload={"reference": "hg19"})
        try:
            helix.result(done.receipt)
        except InProgress as early:
            print(early.retry_after > 0)
        for lease in helix.claim("bench", ["later.align"], 2, start=True):
            good = lease.identity == "a1"
            helix.settle(
                "bench",
                [
                    Settlement(lease.batch, lease.token, "completed", '{"mapped":9}')
                    if good
                    else Settlement(lease.batch, lease.token, "failed", failure="NoReference")
                ],
            )
        return done.receipt.batch_id, lost.receipt.batch_id


def read(dsn: str, done: UUID, lost: UUID) -> None:
    with HelixQueue(dsn, tenant="a") as helix:
        result = helix.result(done, align)
        assert_type(result, Aligned)
        print(result["mapped"], helix.wait(lost, timeout=5))
        try:
            helix.result(lost, align)
        except NoResult as none:
            print(none.failure)


read(sys.argv[1], *submit(sys.argv[1]))
