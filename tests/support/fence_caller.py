"""A client of the fence calls themselves, with a name of its own."""

from __future__ import annotations

import itertools
import secrets

from helixqueue.engine import fences
from helixqueue.engine.fences import FenceLease, FenceResult, Times
from helixqueue.postgres.database import Database as Store
from helixqueue.records.lease import Token
from tests.support.fence_time import expire
from tests.support.lab import POOLED

_numbers = itertools.count(1)
TIMES = Times(lease=30, quiet=60)


class FenceCaller:
    """One connection that claims one name of its own, so that no test meets another's fences."""

    def __init__(self, database, role="pool", tenant="a"):
        self.database = database
        self.tenant = tenant
        self.name = f"f{next(_numbers)}"
        self.store = Store.connect(database.dsn(role), pooled=POOLED)
        self.run = self.store.run

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.store.close()

    def claim(self, identity="k1", request='{"amount":5}', nonce=None, **options):
        self.nonce = nonce or secrets.randbits(63)
        options = {"start": True, "times": TIMES, "actor": "w1"} | options
        options.setdefault("tenant", self.tenant)
        options.setdefault("name", self.name)
        return self.run(
            fences.claim(identity=identity, request=request, nonce=self.nonce, **options)
        )

    def hold(self, identity="k1", **options):
        claimed = self.claim(identity, **options)
        assert claimed.decision == "granted"
        return FenceLease(claimed.key, Token(claimed.epoch, self.nonce, claimed.number))

    def seal(self, held, data=b"7", times=TIMES, **options):
        answer = FenceResult("json", data, **options)
        return self.run(fences.seal(held, answer, times, actor="w1"))

    def state(self, held):
        row = self.run(fences.find_fence(held.key))
        return row.state

    def story(self, held):
        row = self.run(fences.find_fence(held.key))
        return [operation.what for operation in self.run(fences.fence_history(row.key))]

    def expire(self, held, **moments):
        expire(self.database, held.key, **moments)
