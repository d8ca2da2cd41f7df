"""Starts runs with datums made by hand, without listing a store."""

from __future__ import annotations

import hashlib
import itertools
from typing import TYPE_CHECKING, Any

from helixqueue.engine import outputs
from helixqueue.postgres.database import Database as Connection
from tests.support.duties import run_duty
from tests.support.lab import Lab

if TYPE_CHECKING:
    from helixqueue import HelixQueue
    from helixqueue.records.run import RunDetail
    from tests.support.database import Database

_numbers = itertools.count(1)


def allow(database: Database, uri: str, tenant: str = "a", **options: Any) -> None:
    """Add a root."""
    with Connection.connect(database.dsn("operator")) as operator:
        operator.run(outputs.set_root(tenant=tenant, uri=uri, reason="test", **options))


def datum(name: str, uri: str | None = None) -> dict[str, Any]:
    return {"name": name, "inputs": [{"uri": uri or f"memory://lab/in/{name}", "path": name}]}


class Runs:
    """A queue of its own for runs, and a worker's connection to it."""

    def __init__(self, database: Database, helix: HelixQueue, **settings: Any) -> None:
        self.helix = helix
        allow(database, "memory://lab")
        self.lab = Lab(database, q=f"runs{next(_numbers)}")
        self.lab.queue(**{"backoff_seconds": 0, **settings})

    def values(self, *names: str, **options: Any) -> dict[str, Any]:
        """What starts a run of these datums."""
        digest = hashlib.sha256(repr(names).encode()).hexdigest()
        return {
            "key": f"key-{next(_numbers)}", "name": "Words", "spec": "{}", "queue": self.lab.q,
            "egress": f"memory://lab/out/{next(_numbers)}", "digest": digest,
            "datums": len(names), **options,
        }  # fmt: skip

    def start(self, *names: str, **options: Any) -> RunDetail:
        """Start a run of these datums."""
        begun = self.helix.start_run(**self.values(*names, **options))
        if names:
            self.helix.append_run(begun.name, first=0, datums=[datum(name) for name in names])
        return self.helix.run(begun.name)

    def advance(self, run: RunDetail) -> RunDetail:
        """Run the duty until the state of the run stays."""
        now = self.helix.run(run.name)
        while True:
            run_duty(self.lab, "runs")
            before, now = now, self.helix.run(run.name)
            if before == now:
                return now
