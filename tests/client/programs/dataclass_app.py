"""Payload and result as standard dataclasses; the work is done by hand and read back typed."""

import sys
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import assert_type

from helixqueue import HelixQueue, Queue, Settlement, State


@dataclass
class Trim:
    adapter: str
    files: list[str] = field(default_factory=list)


@dataclass
class Trimmed:
    kept: int


trim = Queue("dataclass.trim", payload=Trim, result=Trimmed, max_attempts=2)

with HelixQueue(sys.argv[1], tenant="a") as helix:
    soon = datetime.now(UTC) + timedelta(hours=1)
    made = helix.submit(trim, identity="t1", payload=Trim("ACGT", ["a.fq"]), expires_at=soon)
    [lease] = helix.claim("bench", [trim], start=True)
    helix.settle("bench", [Settlement(lease.batch, lease.token, "completed", '{"kept":7}')])
    state = helix.wait(made.receipt, timeout=10)
    result = helix.result(made.receipt)
    assert_type(state, State)
    assert_type(result, Trimmed)
    print(lease.payload, state, result.kept)
    print([(event.to_state.value, event.actor) for event in helix.history(made.receipt)][-1])
