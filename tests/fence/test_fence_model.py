"""Made-up lives of fences against a model of thirty lines: state and answer agree after every call.

The model knows no SQL: a dictionary of what each key stands for, who holds it, and what time has
done to it. Above all it counts grants: none while an effect may have happened and nobody said no.
"""

from __future__ import annotations

import itertools
import os
import secrets
from collections import Counter
from dataclasses import dataclass, field
from typing import ClassVar

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule, run_state_machine_as_test

from helixqueue.engine import calls, fences
from helixqueue.engine.fences import FenceLease, FenceResult, Times
from helixqueue.operate.check import check
from helixqueue.postgres.database import Database as Store
from helixqueue.records.lease import Token
from tests.support.fence_sweep import sweep_fences
from tests.support.fence_time import expire
from tests.support.lab import POOLED, new_database

PROOF = bool(os.environ.get("HELIX_PROOF"))
STEPS = 60 if PROOF else 40
EXAMPLES = 100 if PROOF else 12
TIMES = Times(lease=3600, quiet=3600)
MAX_ATTEMPTS = 3
BODIES = ['{"cents":5}', '{"cents":6}']
keys = st.sampled_from(["k1", "k2"])
_numbers = itertools.count(1)


@pytest.fixture(scope="module")
def database(server, template, pooler):
    """A database of its own, whose whole content is checked at the end."""
    for database in new_database(server, template, pooler):
        expire.install(database)
        yield database


@dataclass
class Fence:
    """What the model knows of one key."""

    state: str
    body: int
    holder: int | None  # the nonce that may write
    attempt: int = 1
    lapsed: bool = False
    quiet_over: bool = False
    answer: bytes | None = None  # as long as it can be repeated
    sealed: bytes | None = None
    request_kept: bool = True
    resolved: bool = False  # an operator's resolution is the last step
    grants: list[str] = field(default_factory=lambda: ["new"])


class Lives(RuleBasedStateMachine):
    database = None
    seen: ClassVar[Counter[str]] = Counter()

    def __init__(self):
        super().__init__()
        self.store = Store.connect(self.database.dsn(), pooled=POOLED)
        self.operator = Store.connect(self.database.dsn("operator"), pooled=POOLED)
        self.name = f"model{next(_numbers)}"
        self.model: dict[str, Fence] = {}
        self.holds: list[tuple[str, FenceLease]] = []

    def teardown(self):
        self.store.close()
        self.operator.close()

    # Calls.

    @rule(
        key=keys, body=st.sampled_from([0, 0, 0, 1]), start=st.booleans(), replayable=st.booleans()
    )
    def claim(self, key, body, start, replayable):
        if replayable and self._is_due_any_moment(key):
            return
        nonce = secrets.randbits(63)
        answer = self._claim(key, body, start, replayable, nonce)
        self.seen[answer.decision] += 1
        expected = self._expected_claim(key, body, start, replayable, nonce)
        assert answer.decision == expected
        if expected == "granted":
            hold = FenceLease(answer.key, Token(answer.epoch, nonce, answer.number))
            self.holds.append((key, hold))
            # The same claim sent again finds itself.
            again = self._claim(key, body, start, replayable, nonce)
            assert (again.decision, again.number) == ("granted", answer.number)
        if expected == "repeated":
            assert answer.answer == self.model[key].answer
        if expected == "mismatch":
            fence = self.model[key]
            assert answer.request == (BODIES[fence.body] if fence.request_kept else None)

    def _is_due_any_moment(self, key):
        """A second try is driven again a second after the doubt: a slow machine gets there."""
        fence = self.model.get(key)
        return (
            fence is not None
            and fence.state == "IN_DOUBT"
            and 1 < fence.attempt < MAX_ATTEMPTS
            and not fence.lapsed
        )

    def _claim(self, key, body, start, replayable, nonce):
        return self.store.run(
            fences.claim(
                tenant="a", name=self.name, identity=key, request=BODIES[body], actor="w",
                nonce=nonce, start=start, times=TIMES, replayable=replayable,
                max_attempts=MAX_ATTEMPTS,
            )
        )  # fmt: skip

    def _expected_claim(self, key, body, start, replayable, nonce):  # noqa: PLR0911
        goal = "EFFECT_STARTED" if start else "CLAIMED"
        fence = self.model.get(key)
        if fence is None:
            self.model[key] = Fence(goal, body, nonce)
            return "granted"
        if fence.body != body and fence.state != "RELEASED":
            return "mismatch"
        if fence.state == "SEALED":
            return "repeated" if fence.answer is not None else "expired"
        if fence.state in {"CLAIMED", "EFFECT_STARTED"} and not fence.lapsed:
            return "in_progress"
        if fence.state in {"CLAIMED", "RELEASED"}:
            if fence.state == "RELEASED":
                fence.body, fence.request_kept = body, True
            self._grant(fence, goal, nonce, "free")
            return "granted"
        fence.state = "IN_DOUBT"
        if replayable and fence.attempt < MAX_ATTEMPTS and (fence.lapsed or fence.attempt == 1):
            self._grant(fence, "EFFECT_STARTED", nonce, "replayable")
            return "granted"
        return "in_doubt"

    @staticmethod
    def _grant(fence, state, nonce, why):
        fence.state, fence.holder = state, nonce
        fence.attempt += 1
        fence.lapsed = fence.quiet_over = fence.resolved = False
        fence.grants.append(why)

    def _some(self, data):
        return data.draw(st.sampled_from(self.holds[-3:])) if self.holds else None

    def _holds(self, key, hold):
        fence = self.model.get(key)
        return fence if fence is not None and fence.holder == hold.token.nonce else None

    @rule(data=st.data(), answer=st.sampled_from([b"1", b"1", b"2"]))
    def seal(self, data, answer):
        if (some := self._some(data)) is None:
            return
        key, hold = some
        found = self.store.run(fences.seal(hold, FenceResult("json", answer), TIMES, actor="w"))
        fence = self._holds(key, hold)
        if fence is not None and fence.state in {"CLAIMED", "EFFECT_STARTED", "IN_DOUBT"}:
            assert found.decision == "sealed"
            fence.state, fence.answer, fence.sealed = "SEALED", answer, answer
        elif fence is not None and fence.state == "SEALED" and fence.sealed == answer:
            assert found.decision == "sealed"
        else:
            assert found.decision == "fenced_out"

    @rule(data=st.data(), to=st.sampled_from(["EFFECT_STARTED", "RELEASED", "IN_DOUBT"]))
    def step(self, data, to):
        if (some := self._some(data)) is None:
            return
        key, hold = some
        call = {
            "EFFECT_STARTED": lambda: fences.start(hold, actor="w"),
            "RELEASED": lambda: fences.release(hold, TIMES, actor="w", detail="x"),
            "IN_DOUBT": lambda: fences.doubt(hold, actor="w", detail="x"),
        }[to]()
        answer = self.store.run(call)
        fence = self._holds(key, hold)
        froms = {
            "EFFECT_STARTED": {"CLAIMED"},
            "RELEASED": {"CLAIMED", "EFFECT_STARTED", "IN_DOUBT"},
            "IN_DOUBT": {"EFFECT_STARTED"},
        }[to]
        if fence is not None and fence.state in froms:
            assert answer.decision == "done"
            fence.state, fence.lapsed = to, False
        elif fence is not None and fence.state == to:
            assert answer.decision == "done"
        else:
            assert answer.decision == "fenced_out"

    @rule(data=st.data())
    def renew(self, data):
        if (some := self._some(data)) is None:
            return
        key, hold = some
        lost = self.store.run(fences.renew([hold]))
        fence = self._holds(key, hold)
        if fence is not None and fence.state in {"CLAIMED", "EFFECT_STARTED"}:
            assert lost == []
            fence.lapsed = False
        else:
            assert lost == [hold.key]

    @rule(key=keys, found=st.sampled_from(["applied", "not_applied", "unknown"]))
    def probe(self, key, found):
        fence = self.model.get(key)
        row = self._row(key)
        if fence is None or row is None:
            return
        nonce = secrets.randbits(63)
        answer = FenceResult("json", b"3") if found == "applied" else None
        result = self.store.run(
            fences.probe(row, found, TIMES, actor="p", nonce=nonce, result=answer)
        )
        if fence.state != "IN_DOUBT":
            assert result.decision == "stale"
        elif found == "applied":
            assert result.decision == "sealed"
            fence.state, fence.answer, fence.sealed, fence.holder = "SEALED", b"3", b"3", None
        elif found == "not_applied" and fence.quiet_over:
            assert result.decision == "granted"
            self._grant(fence, "EFFECT_STARTED", nonce, "probed")
            self.holds.append(
                (key, FenceLease(result.key, Token(result.epoch, nonce, result.number)))
            )
        else:
            assert result.decision == "in_doubt"

    @rule(key=keys, applied=st.booleans())
    def resolve(self, key, applied):
        fence = self.model.get(key)
        row = self._row(key)
        if fence is None or row is None:
            return
        answer = FenceResult("json", b"4") if applied else None
        found = self.operator.run(
            fences.resolve(row.key, row.version, TIMES, actor="ann", reason="x", result=answer)
        )
        if fence.state == "EFFECT_STARTED" and fence.lapsed:
            fence.state = "IN_DOUBT"
        if fence.state != "IN_DOUBT":
            assert found.decision == "stale"
            return
        fence.holder, fence.resolved = None, True
        if applied:
            assert found.decision == "sealed"
            fence.state, fence.answer, fence.sealed = "SEALED", b"4", b"4"
        else:
            assert found.decision == "done"
            fence.state = "RELEASED"

    @rule(key=keys, applied=st.booleans())
    def correct(self, key, applied):
        fence = self.model.get(key)
        row = self._row(key)
        if fence is None or row is None:
            return
        result = FenceResult("json", b"5") if applied else None
        reply = self.operator.run(
            fences.resolve(
                row.key, row.version, TIMES, actor="ann", reason="x", result=result, correct=True
            )
        )
        if not fence.resolved or (fence.state == "RELEASED" and not applied):
            assert reply.decision == "stale"
        elif applied:
            assert reply.decision == "sealed"
            fence.state, fence.answer, fence.sealed = "SEALED", b"5", b"5"
        else:
            assert reply.decision == "done"
            fence.state, fence.answer, fence.sealed = "RELEASED", None, None

    # Time and housekeeping.

    @rule(key=keys, what=st.sampled_from(["deadline", "quiet", "answer", "tombstone"]))
    def time_passes(self, key, what):
        fence, row = self.model.get(key), self._row(key)
        if fence is None or row is None:
            return
        if what == "tombstone" and fence.state not in {"SEALED", "RELEASED"}:
            return
        expire(self.database, row.key, **{what: True})
        expire.restate(self.database, row.key)
        if what in {"deadline", "quiet"}:
            fence.lapsed = True
            fence.quiet_over = fence.quiet_over or what == "quiet"
            if what == "deadline":
                fence.quiet_over = False
        elif what == "answer":
            fence.answer = None
        else:
            # The key is new again; writes of its last holder are stale.
            del self.model[key]
            self.holds = [(other, hold) for other, hold in self.holds if other != key]

    @rule()
    def tend(self):
        self.store.run(sweep_fences())
        for fence in self.model.values():
            if fence.lapsed and fence.state == "CLAIMED":
                fence.state = "RELEASED"
            elif fence.lapsed and fence.state == "EFFECT_STARTED":
                fence.state = "IN_DOUBT"
            elif fence.state == "SEALED" and fence.answer is None:
                fence.request_kept = False

    @rule()
    def recover(self):
        self.operator.run(calls.recover(actor="ann", reason="restored"))
        for fence in self.model.values():
            if fence.state in {"CLAIMED", "EFFECT_STARTED"}:
                fence.state = "RELEASED" if fence.state == "CLAIMED" else "IN_DOUBT"
                fence.holder, fence.lapsed, fence.quiet_over = None, False, False
            elif fence.state == "IN_DOUBT":
                fence.holder = None

    @rule()
    def rotate_the_secret(self):
        self.operator.run(calls.rotate_secret())

    # Invariants.

    def _row(self, key):
        rows = self.store.run(fences.list_fences(name=self.name, limit=1_000)).rows
        return next((row for row in rows if row.identity == (key,)), None)

    @invariant()
    def the_states_agree(self):
        for key, fence in self.model.items():
            row = self._row(key)
            assert row is not None
            assert (row.state, row.attempt) == (fence.state, fence.attempt), key

    @invariant()
    def every_grant_after_the_first_had_a_reason(self):
        for fence in self.model.values():
            assert fence.grants[0] == "new"
            assert set(fence.grants[1:]) <= {"free", "replayable", "probed"}


@pytest.mark.timeout(300)
def test_every_history_of_a_fence_matches_the_model(database):
    Lives.database = database
    run_state_machine_as_test(
        Lives,
        settings=settings(
            max_examples=EXAMPLES,
            stateful_step_count=STEPS,
            deadline=None,
            suppress_health_check=list(HealthCheck),
            # A failure prints its steps without shrinking.
            phases=[Phase.generate] if not PROOF else list(Phase),
            database=None,
        ),
    )
    assert len(Lives.seen) >= 3, "a run with fewer than three decisions proves nothing"
    with database.connect("helix_bootstrap") as connection:
        # `check` reports functions that do not belong to the schema, such as those of the tests.
        connection.execute("drop function helix.test_pass_time, helix.test_pass_fence_time")
    with database.connect("helix_migrator") as connection:
        assert [result for result in check(connection) if not result.holds] == []
