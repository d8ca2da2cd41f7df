"""Random lives of batches, held against a model after every step.

Hypothesis makes up the calls: submissions that repeat and contradict each other, workers that come
too late, time that passes, people who change their minds. After each call the database must answer
and stand as the model says, and the ledger, folded and hashed again, must say the same.
HELIX_PROOF=1 looks ten times as long.
"""

from __future__ import annotations

import itertools
import os
import random
import uuid
from collections import Counter
from datetime import UTC, datetime, timedelta

import psycopg
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from helixqueue.engine import calls
from helixqueue.ledger.chain import LedgerEntry, microseconds
from helixqueue.ledger.fold import REASONS, fold
from helixqueue.ledger.replay import replay
from helixqueue.records.lease import LeaseRef, Settlement
from helixqueue.records.submission import SubmissionRow
from helixqueue.states import FINISHED, State
from tests.support.engine_model import KEY_LIMIT, LEASED, MAX_ATTEMPTS, Model
from tests.support.lab import WORK_LOCATION, Lab

pytestmark = pytest.mark.module_database

LONGER = 10 if os.environ.get("HELIX_PROOF") else 1
EXAMPLES = 20 * LONGER
STEPS = 30
WALKS = 2 * LONGER
WALK_STEPS = 250
PAYLOADS = ['{"tube":1}', '{"tube":2}']
FAR = timedelta(days=1)

# The columns of an entry as `fold` wants them. Examples follow each other, so what comes after the
# first entry of one is its own.
ENTRIES = """
select id, part, at, position, epoch, from_state::text, to_state::text, reason::text, late, hash,
       actor, array_send(batch), array_send(queue), array_send(version), array_send(attempt),
       array_send(before), array_send(content)
from helix.entry where id > %s order by id, part
"""
HISTORY = """
select batch, version, reason::text, from_state::text, to_state::text
from helix.history_of(%s) order by batch, version
"""
STANDS = f"""
select b.identity, b.id, w.state::text, w.version, w.attempt, {WORK_LOCATION},
       case when w.state in ('ASSIGNED', 'RUNNING') then w.actor end,
       case when w.state in ('ASSIGNED', 'RUNNING') then w.number end, w.entry
from helix.batch b join helix.work w on w.batch = b.id join helix.queue q on q.id = b.queue
where q.name = %s
"""
RESULTS = [None, "{}", '{"reads":7}']
_examples = itertools.count(1)

# A run in which these did not happen proves nothing, and fails.
MUST_BE_SEEN = {
    ("submit", "new"),
    ("submit", "duplicate"),
    ("submit", "conflict"),
    ("claim", "leased"),
    ("claim again", "leased"),
    ("settle in a claim", "ok"),
    ("settle in a claim", "refused"),
    *itertools.product(("start", "settle", "release"), ("ok", "repeat", "refused")),
    ("settle", "illegal"),
    *itertools.product(("renew",), ("ok", "refused")),
    *itertools.product(("cancel", "retry", "erase"), ("ok", "repeat", "illegal")),
    ("reap", "lost"),
    ("retire", "gone"),
}

rows = st.lists(
    st.tuples(
        st.integers(0, 11),  # identity
        st.sampled_from([0, 0, 0, 1]),  # payload
        st.sampled_from([0, 5, 9]),  # priority
        st.sampled_from([None, None, "k1", "k2"]),
        st.sampled_from([False, False, False, True]),  # delayed
        st.sampled_from([False, False, False, True]),  # expires
    ),
    min_size=1,
    max_size=5,
)
VERBS = [
    "start", "start", "renew", "complete", "fail", "fail for good", "fail and wait", "release"
]  # fmt: skip
DECISIONS = ["cancel", "retry", "retry", "erase", "erase"]
KINDS = ["live", "unstarted", "any"]
picks = st.integers(0, 59)
kinds = st.sampled_from(KINDS)
states = st.sampled_from(State)
WORKERS = ["w1", "w2", "w3"]
workers = st.sampled_from(WORKERS)


class Lives(RuleBasedStateMachine):
    def __init__(self, lab: Lab, seen: Counter[tuple[str, str]]) -> None:
        super().__init__()
        self.lab = lab
        # Examples have a queue each and so do not meet.
        lab.q = f"lives-{next(_examples)}"
        lab.queue(
            max_attempts=MAX_ATTEMPTS,
            key_limit=KEY_LIMIT,
            backoff_seconds=3600,
            backoff_max_seconds=3600,
            lease_seconds=36_000,
        )
        self.model = Model()
        self.first_entry = lab.value("select coalesce(max(id), 0) from helix.entry")
        self.leases = []  # all that ever were, with their batch and their worker
        self.last_claim = None
        self.seen = seen

    def teardown(self):
        """Leave nothing overdue or expired behind for the duties of the next example to find."""
        self.lab.pass_time()
        self.lab.claim(0)

    def lease(self, pick, kind):
        """One that owns its batch, one that has not started, or any: most of those are stale."""
        live = [lease for lease in self.leases if lease[0].token == tuple(lease[1].token)]
        unstarted = [lease for lease in live if lease[0].state is State.ASSIGNED]
        found = {"live": live, "unstarted": unstarted, "any": []}[kind] or self.leases
        return found[pick % len(found)]

    def batch(self, pick, state):
        every = list(self.model.batches.values())
        found = [batch for batch in every if batch.state is state] or every
        return found[pick % len(found)]

    # --- calls ---------------------------------------------------------------------------------

    @initialize(rows=rows.filter(lambda rows: len(rows) > 2), worker=workers, start=st.booleans())
    def begin(self, rows, worker, start):
        self.submit_all(rows)
        self.claim_and_settle(worker, 2, start=start, settle=[])

    @rule(rows=rows)
    def submit(self, rows):
        self.submit_all(rows)

    def submit_all(self, rows):
        later = datetime.now(UTC) + FAR
        answers = self.lab.submit_rows(
            *[
                SubmissionRow(
                    f"s{identity}",
                    PAYLOADS[payload],
                    priority=priority,
                    limit_key=key,
                    run_at=later if delayed else None,
                    expires_at=later if expires else None,
                )
                for identity, payload, priority, key, delayed, expires in rows
            ]
        )
        for (identity, payload, priority, key, delayed, expires), answer in zip(
            rows, answers, strict=True
        ):
            decision, batch = self.model.submit(
                f"s{identity}", payload, priority, key, delayed=delayed, expires=expires
            )
            assert (answer.decision, answer.state) == (decision, batch.state)
            self.seen["submit", decision] += 1
            gone = batch.erased or batch.retired
            stored = None if decision != "conflict" or gone else PAYLOADS[batch.payload]
            assert answer.stored_payload == stored
            if decision == "new":
                batch.receipt = answer.receipt
                batch.number = self.lab.number(answer.receipt.batch_id)
            assert answer.receipt == batch.receipt

    @rule(worker=workers, count=st.sampled_from([0, 1, 1, 2, 4, 10]), start=st.booleans())
    def claim(self, worker, count, start):
        self.claim_and_settle(worker, count, start=start, settle=[])

    @precondition(lambda self: self.leases)
    @rule(
        pick=picks,
        kind=kinds,
        good=st.booleans(),
        count=st.integers(0, 3),
        start=st.booleans(),
        again=st.booleans(),
    )
    def settle_and_claim(self, *, pick, kind, good, count, start, again):
        lease = self.lease(pick, kind)
        self.claim_and_settle(lease[2], count, start=start, settle=[(lease, good)])
        if again:
            self.repeat_the_last_claim()

    def claim_and_settle(self, worker, count, *, start, settle):
        request = uuid.uuid4()
        expected = [
            self.model.complete(batch, row.token, "{}")
            if good
            else self.model.fail(batch, row.token, permanent=False, wait=False)
            for (batch, row, _), good in settle
        ]
        states = [batch.state for (batch, _, _), _ in settle]
        self.tend()
        could, number = self.model.claimable(), self.model.claim_count(count)
        claimed = self.lab.claim_result(
            count,
            worker=worker,
            request=request,
            start=start,
            settle=[
                Settlement(row.batch, row.token, "completed", result="{}")
                if good
                else Settlement(row.batch, row.token, "failed", failure="F", after_seconds=0)
                for (_, row, _), good in settle
            ],
        )
        assert [(a.answer, a.late) for a in claimed.settled] == expected
        assert [a.state for a in claimed.settled] == states
        assert [a.mismatch for a in claimed.settled] == [
            word == "repeat" and good and batch.result != "{}"
            for ((batch, _, _), good), (word, _) in zip(settle, expected, strict=True)
        ]
        self.seen.update(("settle in a claim", a.answer) for a in claimed.settled)
        assert len(claimed.leases) == number
        made = []
        for row in sorted(claimed.leases, key=lambda row: row.identity):
            batch = self.model.batches[row.identity]
            assert batch in could
            self.model.claim(batch, worker, tuple(row.token), start=start)
            assert (row.batch, row.attempt) == (batch.number, batch.attempt)
            assert (row.state, row.payload) == (batch.state, PAYLOADS[batch.payload])
            made.append((batch, row, worker))
            self.seen["claim", "leased"] += 1
        assert self.model.unjust([batch for batch, _, _ in made], could) == []
        if made:
            self.last_claim = (request, worker, start, made)
            self.leases += made

    def tend(self):
        """The next claim does all duties, so that there is no chance in when."""
        self.lab.pass_time()
        self.model.tend()

    def repeat_the_last_claim(self):
        if self.last_claim is None:
            return
        request, worker, start, made = self.last_claim
        self.tend()
        again = self.lab.claim(5, worker=worker, request=request, start=start)
        assert {(row.batch, row.token) for row in again} == {
            (row.batch, row.token) for batch, row, _ in made if batch.token == tuple(row.token)
        }
        self.seen["claim again", "leased"] += len(again)

    # Few rules, each with a choice inside: Hypothesis leaves rules out at random, and with one rule
    # a call it would seldom have all of those that make a life.
    @precondition(lambda self: self.leases)
    @rule(
        pick=picks,
        kind=kinds,
        verb=st.sampled_from(VERBS),
        times=st.sampled_from([1, 1, 2]),
        derived=st.booleans(),
        result=st.sampled_from(RESULTS),
    )
    def write(self, *, pick, kind, verb, times, derived, result):
        self.derived, self.result = derived, result
        lease = self.lease(pick, kind)
        for _ in range(times):
            match verb:
                case "fail for good":
                    self.fail(lease, permanent=True)
                case "fail and wait":
                    self.fail(lease, wait=True)
                case _:
                    getattr(self, verb)(lease)

    def answered(self, verb, lease, answers, expected, *, completes=False):
        batch, row, _ = lease
        [answer] = answers
        word, late = expected
        self.seen[verb, word] += 1
        assert (answer.batch, answer.answer, answer.late) == (row.batch, word, late)
        assert answer.state == batch.state
        mismatch = answer.answer == "repeat" and answer.mismatch
        assert mismatch == (completes and word == "repeat" and batch.result != self.result)
        if word == "refused" and batch.worker is not None:
            assert answer.owner == batch.worker

    def token(self, row):
        """The token inside the worker's process, or the one that may leave it."""
        return row.own_token if self.derived else row.token

    def start(self, lease):
        batch, row, worker = lease
        answers = self.lab.start(row._replace(token=self.token(row)), worker=worker)
        self.answered("start", lease, answers, self.model.start(batch, row.token))

    def renew(self, lease):
        batch, row, worker = lease
        answers = self.lab.renew(row._replace(token=self.token(row)), worker=worker)
        self.answered("renew", lease, answers, self.model.renew(batch, row.token))

    def complete(self, lease):
        batch, row, worker = lease
        answers = self.lab.settle(
            Settlement(row.batch, self.token(row), "completed", result=self.result), worker=worker
        )
        expected = self.model.complete(batch, row.token, self.result)
        self.answered("settle", lease, answers, expected, completes=True)

    def fail(self, lease, *, permanent=False, wait=False):
        batch, row, worker = lease
        settlement = Settlement(
            row.batch,
            self.token(row),
            "failed",
            failure="F",
            permanent=permanent,
            after_seconds=None if wait else 0,
        )
        answers = self.lab.settle(settlement, worker=worker)
        expected = self.model.fail(batch, row.token, permanent=permanent, wait=wait)
        self.answered("settle", lease, answers, expected)

    def release(self, lease):
        batch, row, worker = lease
        held = [LeaseRef(row.batch, self.token(row))]
        answers = self.lab.run(calls.release(worker=worker, leases=held))
        self.answered("release", lease, answers, self.model.release(batch, row.token))

    @rule(pick=picks, state=states, then=st.sampled_from(["", "reap", "promote"]))
    def time_passes(self, pick, state, then):
        batch = self.batch(pick, state)
        self.lab.pass_time(batch.number)
        self.model.pass_time(batch)
        if then == "reap":
            number = self.lab.run(calls.reap(actor="reaper"))
            assert number == self.model.reap()
            self.seen["reap", "lost"] += number
        elif then == "promote":
            self.lab.run(calls.promote())

    @rule(
        pick=picks,
        state=states,
        verb=st.sampled_from(DECISIONS),
        times=st.integers(1, 2),
    )
    def decide(self, pick, state, verb, times):
        batch = self.batch(pick, State.FAILED if verb == "retry" else state)
        for _ in range(times):
            [verdict] = self.lab.decide(verb, batch.receipt.batch_id)
            word = getattr(self.model, verb)(batch)
            assert (verdict.answer, verdict.state) == (word, batch.state)
            self.seen[verb, word] += 1

    @rule(paused=st.sampled_from([False, False, True]))
    def pause(self, paused):
        self.lab.queue(paused=paused)
        self.model.paused = paused

    @rule(state=st.sampled_from([State.COMPLETED, State.CANCELLED, State.RUNNING]))
    def retire(self, state):
        before = datetime.now(UTC) + FAR
        call = calls.retire(tenant="a", queue=self.lab.q, state=state, before=before)
        number = self.lab.run(call)
        assert number == self.model.retire(state)
        self.seen["retire", "gone"] += number

    # --- what must hold after every step -------------------------------------------------------

    @invariant()
    def every_batch_stands_where_the_model_says(self):
        alive = {b.identity: b for b in self.model.batches.values() if not b.retired}
        found = self.lab.rows(STANDS, self.lab.q)
        assert len(found) == len(alive)
        for identity, number, state, version, attempt, place, worker, token, entry in found:
            batch = alive[identity]
            batch.entry = entry
            assert (number, state, version, attempt) == (
                batch.number,
                batch.state,
                batch.version,
                batch.attempt,
            )
            assert (worker, token) == (batch.worker, batch.token and batch.token[2])
            if batch.state is State.PENDING:
                assert place in ("ready", "waiting")
                assert place == "waiting" or not batch.delayed
            else:
                assert place == ("active" if batch.state in LEASED else "outcome")

    @invariant()
    def the_ledger_folds_to_the_same_and_its_chain_holds(self):
        every = {b.number: b for b in self.model.batches.values()}
        folded = fold(
            LedgerEntry(*row)._replace(at=microseconds(row[2]))
            for row in self.lab.rows(ENTRIES, self.first_entry)
        )
        assert folded.violations == []
        assert folded.heads.keys() == every.keys()
        for number, head in folded.heads.items():
            batch = every[number]
            assert (head.state, head.version, head.attempt) == (
                batch.state,
                batch.version,
                batch.attempt,
            )
            assert head.entry == batch.entry

    @invariant()
    def every_batch_tells_its_history(self):
        every = {b.number: b for b in self.model.batches.values()}
        found = {number: [] for number in every}
        for number, version, reason, before, after in self.lab.rows(HISTORY, list(every)):
            found[number].append(reason)
            assert version == len(found[number])
            assert (before and State(before), State(after)) in REASONS[reason]
        assert found == {number: batch.reasons for number, batch in every.items()}

    @invariant()
    def what_was_retired_keeps_its_head(self):
        gone = {b.number: b for b in self.model.batches.values() if b.retired}
        found = self.lab.rows(
            "select id, state::text, version, attempt, entry, payload, identity from helix.batch "
            "where queue in (select id from helix.queue where name = %s)"
            " and retired_at is not null",
            self.lab.q,
        )
        assert sorted(found) == sorted(
            (number, b.state, b.version, b.attempt, b.entry, None, None)
            for number, b in gone.items()
        )

    @invariant()
    def every_refusal_is_on_record_and_no_other(self):
        every = {b.number: b for b in self.model.batches.values()}
        found = self.lab.rows(
            "select batch, number, operation, times from helix.refusal where batch = any (%s)",
            list(every),
        )
        assert sorted(found) == sorted(
            (number, token, operation, times)
            for number, b in every.items()
            for (token, operation), times in b.refusals.items()
        )

    @invariant()
    def limit_keys_count_their_leases(self):
        counted = dict(
            self.lab.rows(
                "select k.key, k.held from helix.key_limit k join helix.queue q on q.id = k.queue"
                " where q.name = %s and k.held > 0",
                self.lab.q,
            )
        )
        live = Counter(
            b.limit_key for b in self.model.batches.values() if b.limit_key and b.state in LEASED
        )
        assert counted == live
        assert all(number <= KEY_LIMIT for number in live.values())


def assert_replay_is_clean(database):
    with psycopg.connect(database.dsn("helix_bootstrap"), autocommit=True) as connection:
        replayed = replay(connection)
    assert replayed.clean, replayed.violations


@pytest.mark.timeout(120 * LONGER)
def test_generated_lives_match_the_model(database):
    found = Counter()
    with Lab(database, "app_a") as lab:
        run_state_machine_as_test(
            lambda: Lives(lab, found),
            settings=settings(
                max_examples=EXAMPLES,
                stateful_step_count=STEPS,
                deadline=None,
                suppress_health_check=list(HealthCheck),
                print_blob=True,
            ),
        )
    assert found["claim", "leased"] > EXAMPLES // 2
    assert_replay_is_clean(database)


def some_rows(rng):
    return [
        (
            rng.randrange(40),
            rng.choice([0, 0, 0, 1]),
            rng.choice([0, 5, 9]),
            rng.choice([None, None, "k1", "k2"]),
            rng.random() < 0.2,
            rng.random() < 0.2,
        )
        for _ in range(rng.randint(1, 4))
    ]


def walk(lives, rng):
    """One random step; the weights are such that everything happens."""
    every, yes_or_no = range(60), [True, False]
    steps = [
        (3, lives.submit_all, {"rows": [some_rows(rng)]}),
        (5, lives.claim, {"worker": WORKERS, "count": [0, 1, 2, 4, 10], "start": yes_or_no}),
        (1, lives.pause, {"paused": [False, False, True]}),
        (0.3, lives.retire, {"state": sorted(FINISHED)}),
    ]
    if lives.model.batches:
        then = ["", "reap", "promote"]
        steps += [
            (2, lives.time_passes, {"pick": every, "state": list(State), "then": then}),
            (
                2,
                lives.decide,
                {"pick": every, "state": list(State), "verb": DECISIONS, "times": [1, 2]},
            ),
        ]
    if lives.leases:
        which = {"pick": every, "kind": KINDS}
        steps += [
            (
                7,
                lives.write,
                {
                    **which,
                    "verb": VERBS,
                    "times": [1, 1, 2],
                    "derived": yes_or_no,
                    "result": RESULTS,
                },
            ),
            (
                3,
                lives.settle_and_claim,
                {
                    **which,
                    "good": yes_or_no,
                    "count": range(4),
                    "start": yes_or_no,
                    "again": yes_or_no,
                },
            ),
        ]
    [(_, step, choices)] = rng.choices(steps, [weight for weight, _, _ in steps])
    step(**{name: rng.choice(values) for name, values in choices.items()})
    lives.every_batch_stands_where_the_model_says()
    lives.the_ledger_folds_to_the_same_and_its_chain_holds()
    lives.every_batch_tells_its_history()
    lives.what_was_retired_keeps_its_head()
    lives.every_refusal_is_on_record_and_no_other()
    lives.limit_keys_count_their_leases()


@pytest.mark.timeout(120 * LONGER)
def test_long_random_lives_match_the_model(database):
    """Further than Hypothesis goes: hundreds of calls on one queue, with everything happening."""
    found = Counter()
    with Lab(database, "app_a") as lab:
        for seed in range(WALKS):
            rng = random.Random(seed)
            lives = Lives(lab, found)
            for step in range(WALK_STEPS):
                try:
                    walk(lives, rng)
                except AssertionError as error:
                    error.add_note(f"in step {step} of the walk with seed {seed}")
                    raise
            lives.teardown()
    assert MUST_BE_SEEN - found.keys() == set()
    assert_replay_is_clean(database)
