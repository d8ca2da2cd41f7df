"""Claim: the right batches, in the right order, to a worker that can run them, and repeatable."""

from __future__ import annotations

import uuid
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta

import psycopg
import pytest

from helixqueue.engine import calls
from helixqueue.errors import Refused
from helixqueue.ledger.chain import LedgerEntry, entry_hash, microseconds
from helixqueue.records.claim_hints import SWEEP_EVERY_SECONDS, Hint, Hints
from helixqueue.records.lease import Settlement, Token
from helixqueue.states import State
from tests.support.engine_traffic import wait_until_blocked
from tests.support.lab import Lab, completion, failure, wait_until

pytestmark = pytest.mark.module_database


@pytest.fixture
def lab(database):
    with Lab(database) as lab:
        lab.queue()
        yield lab


def names(leases):
    return [lease.identity for lease in leases]


def one_by_one(lab, count, **options):
    """Claim singly, so that the order shows."""
    return [lease for _ in range(count) for lease in lab.claim(1, **options)]


# --- what a lease says -------------------------------------------------------------------------


def test_lease_carries_everything_a_worker_needs(lab):
    [submitted] = lab.submit(("run-7", "Sämple"), payload={"pod5": "a.pod5"}, revision="r2")
    before = datetime.now(UTC)
    [lease] = lab.claim(start=False)
    assert lease.batch_id == submitted.receipt.batch_id
    assert "v1:" + lease.key[1:].hex() == submitted.receipt.key
    assert (lease.tenant, lease.queue) == ("a", lab.q)
    assert (lease.identity, lease.revision) == ("run-7\x1fSämple", "r2")
    assert lease.payload == '{"pod5":"a.pod5"}'
    assert (lease.attempt, lease.state) == (1, State.ASSIGNED)
    assert lease.lease_seconds == 120
    assert timedelta(seconds=119) < lease.deadline - before < timedelta(seconds=180)
    assert lab.location(lease.batch_id) == ("ASSIGNED", 2, 1, "active")


def test_claim_may_ask_for_another_length_of_lease(lab):
    lab.queue(lease_seconds=30)
    lab.submit("s1", "s2")
    assert lab.claim()[0].lease_seconds == 30
    [lease] = lab.claim(lease_seconds=7)
    assert lease.lease_seconds == 7
    # A renewal prolongs by what the claim asked for.
    lab.renew(lease)
    left = lab.value(
        "select deadline - clock_timestamp() from helix.work where batch = %s", lease.batch
    )
    assert timedelta(seconds=2) < left <= timedelta(seconds=7)


# The columns of an entry as `entry_hash` wants them.
ENTRIES = """
select e.id, e.part, e.at, e.position, e.epoch, e.from_state::text, e.to_state::text,
  e.reason::text,
       e.late, e.hash, e.actor, array_send(e.batch), array_send(e.queue), array_send(e.version),
       array_send(e.attempt), array_send(e.before), array_send(e.content)
from helix.entry e
where e.id in (select v.entry from helix.event v where v.batch = %s) order by e.id
"""


def test_claim_that_starts_takes_both_steps_in_one_entry_of_the_chain(lab):
    [submitted] = lab.submit("s1")
    [lease] = lab.claim(start=True)
    assert lease.state is State.RUNNING
    assert lab.location(lease.batch_id) == ("RUNNING", 3, 1, "active")
    assert lab.history(submitted.receipt.batch_id) == [
        ("PENDING", "submitted"),
        ("ASSIGNED", "claimed"),
        ("RUNNING", "started"),
    ]
    first, second = (
        entry._replace(at=microseconds(entry.at))
        for entry in (LedgerEntry(*row) for row in lab.rows(ENTRIES, lease.batch))
    )
    assert first.hash == entry_hash([], first)
    assert second.hash == entry_hash([first.hash], second)
    # The number of a lease is the entry of its claim.
    assert (second.id, second.epoch) == (lease.token.number, lease.token.epoch)
    assert lab.rows(
        "select version, from_state::text, entry, epoch, number, actor, attempt"
        " from helix.history_of(array[%s::bigint]) order by version",
        lease.batch,
    ) == [
        (1, None, first.id, None, None, "pool", 0),
        (2, "PENDING", second.id, lease.token.epoch, lease.token.number, "w1", 1),
        (3, "ASSIGNED", second.id, lease.token.epoch, lease.token.number, "w1", 1),
    ]


def test_token_nonce_is_not_readable_anywhere(lab):
    lab.submit("s1")
    [lease] = lab.claim()
    assert str(lease.token.nonce) not in repr(lease)
    for role in ("pool", "app_a", "operator"):
        with (
            Lab(lab.database, role) as reader,
            pytest.raises(psycopg.errors.InsufficientPrivilege, match="permission denied"),
        ):
            reader.rows_as_client("select nonce from helix.work")


# --- order -------------------------------------------------------------------------------------


def test_claim_returns_most_urgent_batches_first(lab):
    for priority in (9, 5, 0, 3):
        lab.submit(f"p{priority}-1", f"p{priority}-2", priority=priority)
    assert names(one_by_one(lab, 8)) == [
        "p0-1", "p0-2", "p3-1", "p3-2", "p5-1", "p5-2", "p9-1", "p9-2"
    ]  # fmt: skip


def test_one_claim_crosses_priorities_from_the_most_urgent(lab):
    for priority in (9, 0, 5):
        lab.submit(f"p{priority}-1", f"p{priority}-2", priority=priority)
    assert sorted(names(lab.claim(5)))[:4] == ["p0-1", "p0-2", "p5-1", "p5-2"]


def test_batches_of_a_tenant_are_claimed_in_submission_order(lab):
    for n in range(3):
        lab.submit(*[f"s{n}{m}" for m in range(4)])
    assert names(one_by_one(lab, 6)) == ["s00", "s01", "s02", "s03", "s10", "s11"]
    assert sorted(names(lab.claim(6))) == ["s12", "s13", "s20", "s21", "s22", "s23"]


def test_later_batches_follow_earlier_ones_during_claims(lab):
    taken = []
    for n in range(12):
        lab.submit(f"s{2 * n:02}", f"s{2 * n + 1:02}")
        taken += names(lab.claim(1))
    taken += names(one_by_one(lab, 12))
    assert taken == [f"s{n:02}" for n in range(24)]


@pytest.mark.parametrize("at_a_time", [1, 4])
def test_backlog_of_a_tenant_does_not_delay_another(lab, at_a_time):
    lab.queue(tenant="b")
    lab.submit_many(500)
    # The backlog is being worked off when the other comes.
    for _ in range(3):
        lab.claim(20)
    lab.submit(*[f"b{n}" for n in range(5)], tenant="b")
    served = [lease.tenant for _ in range(12 // at_a_time + 1) for lease in lab.claim(at_a_time)]
    assert Counter(served[:12])["b"] == 5


def test_claims_rotate_between_three_tenants(lab):
    for tenant in ("a", "b", "c"):
        lab.queue(tenant=tenant)
        lab.submit(*[f"{tenant}{n}" for n in range(10)], tenant=tenant)
    served = Counter(lease.tenant for lease in one_by_one(lab, 9))
    assert served == {"a": 3, "b": 3, "c": 3}


def test_released_batch_takes_the_next_turn_not_the_last(lab):
    lab.submit_many(10)
    [lease] = lab.claim(1)
    lab.release(lease)
    assert lease.batch in {again.batch for again in one_by_one(lab, 2)}


def test_several_queues_are_served_alike(lab):
    others = [f"{lab.q}-{n}" for n in range(3)]
    for queue in others:
        lab.queue(queue)
        lab.submit_many(8, queue=queue)
    leases = lab.claim(12, queues=others)
    assert Counter(lease.queue for lease in leases) == dict.fromkeys(others, 4)
    assert names(lab.claim(12, queues=others[:1])) != []
    assert lab.claim(12, queues=[lab.q, "no-such-queue"]) == []


def test_more_lanes_than_one_pass_visits_are_all_served(lab):
    """A pass looks at 64 lanes; what it leaves, the next pass or the next claim takes."""
    queues = [f"{lab.q}-{n:03}" for n in range(90)]
    for queue in queues:
        lab.queue(queue)
        lab.submit("only", queue=queue)
    served = []
    while leases := lab.claim(100, queues=queues):
        served += [lease.queue for lease in leases]
    assert sorted(served) == queues


# --- what fits ---------------------------------------------------------------------------------

GPU = {"gpus": 1, "gpu_vram_gb": 24.0, "cpu_cores": 4, "ram_gb": 16}


def test_claim_returns_only_batches_that_fit(lab):
    lab.submit("cpu")
    lab.submit("one-gpu", requires='{"gpus":1}')
    lab.submit("two-gpus", requires='{"gpus":2}')
    lab.submit("big-vram", requires='{"gpus":1,"gpu_vram_gb":80}')
    lab.submit("ram", requires='{"ram_gb":64}')
    lab.submit("disk", requires='{"disk_gb":1}')
    assert sorted(names(lab.claim(10, free=GPU))) == ["cpu", "one-gpu"]
    assert names(lab.claim(10)) == []
    assert names(lab.claim(10, free={"gpus": 1, "gpu_vram_gb": 80})) == ["big-vram"]
    everything = {"gpus": 8, "ram_gb": 64, "disk_gb": 5.5}
    wait_until(lambda: lab.claim(1, free=everything) == [])
    assert (
        lab.value(
            "select count(*) from helix.work w join helix.queue q on q.id = w.queue"
            " where q.name = %s and w.state in ('ASSIGNED', 'RUNNING')",
            lab.q,
        )
        == 6
    )


def test_resources_are_used_up_within_one_call(lab):
    lab.submit_many(10, requires='{"gpus":1,"cpu_cores":2}')
    assert len(lab.claim(10, free={"gpus": 4, "cpu_cores": 64})) == 4
    assert len(lab.claim(10, free={"gpus": 8, "cpu_cores": 5})) == 2


def test_device_memory_is_a_threshold_and_not_consumed(lab):
    lab.submit_many(3, requires='{"gpus":1,"gpu_vram_gb":24}')
    assert lab.claim(3, free={"gpus": 3, "gpu_vram_gb": 16}) == []
    assert len(lab.claim(3, free={"gpus": 3, "gpu_vram_gb": 24})) == 3


def test_two_classes_share_free_resources(lab):
    lab.submit_many(4, "one", requires='{"gpus":1}')
    lab.submit_many(4, "two", requires='{"gpus":2}')
    leases = []
    free = {"gpus": 6}
    while got := lab.claim(8, free=free):
        leases += got
        free["gpus"] -= sum(1 if name.startswith("one") else 2 for name in names(got))
    assert free["gpus"] == 0
    assert len(leases) >= 3


def test_claim_is_not_short_while_fitting_work_is_left(lab):
    """A lane that this very call has emptied must not take the share of one that has more."""
    for round_ in range(8):
        lab.submit(f"x{round_}", requires='{"gpus":1,"labels":{"x":1}}')
        lab.submit(*[f"y{round_}{n}" for n in range(3)], requires='{"gpus":1}')
        leases = lab.claim(4, free={"gpus": 4, "labels": {"x": 1}})
        assert len(leases) == 4


def test_claim_requires_every_label(lab):
    lab.submit("site", requires='{"labels":{"site":"berlin","gpu":["a100","h100"]}}')
    assert lab.claim(free={"labels": {"site": "berlin"}}) == []
    assert lab.claim(free={"labels": {"site": "paris", "gpu": ["a100", "h100"]}}) == []
    free = {"labels": {"site": "berlin", "gpu": ["a100", "h100", "l4"], "more": True}}
    assert names(lab.claim(free=free)) == ["site"]


def test_queue_requirement_applies_to_batches_without_one(lab):
    lab.queue(requires={"gpus": 2})
    lab.submit("default")
    lab.submit("own", requires="{}")
    assert names(lab.claim(5)) == ["own"]
    assert names(lab.claim(5, free={"gpus": 2})) == ["default"]


def test_unknown_word_in_a_requirement_is_refused(lab):
    """A misspelt "gpu" would otherwise run anywhere."""
    with pytest.raises(Refused, match=r"unknown requirement 'gpu'.*gpus"):
        lab.submit("s1", requires='{"gpu":1}')
    with pytest.raises(Refused, match="unknown requirement 'cores'"):
        lab.queue(requires={"cores": 1})


# --- the call ----------------------------------------------------------------------------------


def test_repeated_claim_returns_the_same_leases(lab):
    lab.submit_many(5)
    request = uuid.uuid4()
    first = lab.claim(3, request=request)
    again = lab.claim(3, request=request)
    assert sorted(again, key=lambda lease: lease.batch) == sorted(
        first, key=lambda lease: lease.batch
    )
    # Nothing more was taken, and what has ended since is not given out again.
    lab.complete(first[0])
    assert {lease.batch for lease in lab.claim(3, request=request)} == {
        lease.batch for lease in first[1:]
    }
    assert len(lab.claim(5)) == 2


@pytest.mark.parametrize("count", [1, 3])
def test_repeat_of_a_running_claim_waits_and_returns_the_same_leases(lab, database, count):
    """The answer was lost with the connection, and the server has not noticed yet."""
    lab.submit_many(10)
    request = uuid.uuid4()
    with Lab(database, q=lab.q) as again, ThreadPoolExecutor(1) as pool:
        with lab.store.connection.transaction():
            first = lab.claim(count, request=request)
            repeated = pool.submit(again.claim, count, request=request)
            wait_until_blocked(database, 1, "claim_v1")
        leases = repeated.result(30)
    assert sorted(leases, key=lambda lease: lease.batch) == sorted(
        first, key=lambda lease: lease.batch
    )
    assert len(lab.claim(10)) == 10 - count


def test_repeat_of_a_rolled_back_claim_is_a_new_claim(lab, database):
    lab.submit_many(4)
    request = uuid.uuid4()
    with Lab(database, q=lab.q) as again, ThreadPoolExecutor(1) as pool:
        with lab.store.connection.transaction(force_rollback=True):
            first = lab.claim(2, request=request)
            repeated = pool.submit(again.claim, 2, request=request)
            wait_until_blocked(database, 1, "claim_v1")
        leases = repeated.result(30)
    assert [lease.batch for lease in leases] == [lease.batch for lease in first]
    assert {lease.token for lease in leases}.isdisjoint({lease.token for lease in first})
    assert {lease.attempt for lease in leases} == {1}


def test_another_worker_gets_nothing_by_repeating_a_request(lab):
    lab.submit_many(5)
    request = uuid.uuid4()
    lab.claim(3, request=request)
    assert lab.claim(3, request=request, worker="thief") == []
    assert len(lab.claim(5)) == 2


def test_repeat_answers_its_settlements_as_repeats(lab):
    lab.submit_many(4)
    [item, second] = lab.claim(2)
    request = uuid.uuid4()
    settle = [completion(item), failure(second, permanent=True)]
    first = lab.claim_result(1, request=request, settle=settle)
    again = lab.claim_result(1, request=request, settle=settle)
    assert [answer.answer for answer in first.settled] == ["ok", "ok"]
    assert [answer.answer for answer in again.settled] == ["repeat", "repeat"]
    assert first.leases[0].batch == again.leases[0].batch
    assert len(again.leases) == 1


def test_claim_that_finds_nothing_writes_nothing(lab):
    """An idle worker must not cost commits. Duties come due every 250 ms; between them, nothing."""
    request = uuid.uuid4()

    def wrote():
        with lab.store.connection.transaction():
            assert lab.claim(5, request=request) == []
            return lab.rows_as_client("select pg_current_xact_id_if_assigned() is not null") == [
                (True,)
            ]

    wait_until(lambda: not wrote())
    assert lab.database.value("select count(*) from helix.request where id = %s", request) == 0


def test_claim_for_zero_batches_settles_and_claims_nothing(lab):
    lab.submit("s1", "s2")
    [lease] = lab.claim()
    answer = lab.claim_result(0, settle=[completion(lease)])
    assert (answer.leases, answer.settled[0].answer) == ((), "ok")
    assert lab.claim(-1) == []
    with pytest.raises(ValueError, match="at most 1000 rows"):
        lab.claim(1001)


def test_claim_of_a_thousand_batches_succeeds(lab):
    lab.submit_many(1100)
    assert len(lab.claim(1000)) == 1000
    assert len(lab.claim(1000)) == 100


def test_settle_claim_and_start_in_one_commit(lab):
    lab.submit_many(4)
    good, bad, stale, held = lab.claim(4)
    lab.release(stale)
    [assigned] = lab.claim(1, start=False)
    assert assigned.batch == stale.batch
    lab.submit_many(4, "t")
    answer = lab.claim_result(
        2,
        start=True,
        settle=[
            completion(good),
            failure(bad, permanent=True),
            completion(stale),
            completion(assigned),
            Settlement(10**12, Token(1, 1, 1), "completed"),
        ],
    )
    found = {(a.batch, a.answer, a.state) for a in answer.settled}
    assert found == {
        (good.batch, "ok", State.COMPLETED),
        (bad.batch, "ok", State.FAILED),
        (stale.batch, "refused", State.ASSIGNED),
        (assigned.batch, "illegal", State.ASSIGNED),
        (10**12, "refused", None),
    }
    assert [lease.state for lease in answer.leases] == [State.RUNNING] * 2
    assert not {lease.batch for lease in answer.leases} & {
        item.batch for item in (good, bad, stale, held)
    }


def test_worker_sees_only_its_tenants(database):
    with Lab(database) as pool, Lab(database, "app_b", q=pool.q) as other:
        pool.queue()
        pool.queue(tenant="b")
        pool.submit("s1", "s2")
        pool.submit("s3", tenant="b")
        assert names(other.claim(5)) == ["s3"]
        assert sorted(names(pool.claim(5))) == ["s1", "s2"]


def test_tenants_of_one_queue_name_do_not_take_each_others_work(database):
    with (
        Lab(database) as pool,
        Lab(database, "app_a", q=pool.q, worker="of a") as a,
        Lab(database, "app_b", q=pool.q, worker="of b") as b,
    ):
        for tenant in ("a", "b"):
            pool.queue(tenant=tenant)
            pool.submit_many(20, tenant, tenant=tenant)
        for _ in range(7):
            assert {lease.tenant for lease in a.claim(2)} == {"a"}
            assert {lease.tenant for lease in b.claim(1)} == {"b"}
        # What is left is for those who may have both, in turns.
        left = [lease.tenant for lease in pool.claim(40)]
        assert Counter(left) == {"a": 6, "b": 13}
        assert a.claim(5) == b.claim(5) == []


@pytest.mark.parametrize("role", ["pool", "app_a"])
def test_claims_of_one_batch_follow_the_rules_of_larger_claims(database, role):
    """They have a path of their own, for all tenants and for one."""
    with Lab(database) as pool, Lab(database, role, q=pool.q) as lab:
        pool.queue()
        pool.submit("late", priority=9)
        pool.submit("limited-1", "limited-2", priority=1, limit_key="device")
        pool.submit("gone", priority=2, expires_at=datetime.now(UTC) + timedelta(days=1))
        pool.submit("urgent", priority=0)
        [gone] = pool.rows("select id from helix.batch where identity = 'gone' order by id desc")[0]
        pool.pass_time(gone)
        request = uuid.uuid4()
        first, repeat = (lab.claim_result(request=request).leases for _ in range(2))
        assert first == repeat
        taken = [first[0].identity] + [lease.identity for _ in range(3) for lease in lab.claim()]
        assert taken == ["urgent", "limited-1", "late"]  # limited-2 waits, gone was cancelled


@pytest.mark.parametrize("backlog", [100, 1000])
def test_tenant_that_comes_later_has_every_other_turn(lab, backlog):
    """Whatever the other has waiting, and however it was submitted."""
    lab.queue(tenant="b")
    lab.submit_many(backlog)
    for number in range(10):
        lab.submit(f"b{number}", tenant="b")
    served = [lease.tenant for lease in one_by_one(lab, 20)]
    assert Counter(served) == {"a": 10, "b": 10}
    assert served[:2] != ["a", "a"] or served[2:4] != ["a", "a"]


def test_unbound_role_claims_nothing(database):
    with Lab(database) as pool, Lab(database, "stranger", q=pool.q) as stranger:
        pool.queue()
        pool.submit("s1")
        assert stranger.claim(5) == []


def test_service_claims_for_the_tenant_it_names(database):
    with Lab(database) as pool, Lab(database, "service", q=pool.q) as service:
        for tenant in ("a", "b"):
            pool.queue(tenant=tenant)
            pool.submit("s1", tenant=tenant)
        assert service.claim(5) == []
        with service.store.connection.transaction():
            service.rows_as_client("select set_config('helix.tenant', 'b', true)")
            [lease] = service.claim(5)
        assert lease.tenant == "b"
        assert service.claim(5) == []


# --- hints -------------------------------------------------------------------------------------


def test_hints_keep_the_furthest_mark_of_each_lane():
    hints = Hints()
    assert hints.now(100.0) == ()
    hints.learn([Hint(1, 5, 9), Hint(1, 4, 8), Hint(2, 1, 1)], short=False)
    assert set(hints.now(100.1)) == {Hint(1, 5, 9), Hint(2, 1, 1)}
    hints.learn([Hint(1, 5, 10)], short=False)
    assert set(hints.now(100.2)) == {Hint(1, 5, 10), Hint(2, 1, 1)}


def test_hints_are_dropped_every_second_and_after_a_short_claim():
    hints = Hints()
    hints.now(100.0)
    hints.learn([Hint(1, 5, 9)], short=False)
    assert hints.now(100.0 + SWEEP_EVERY_SECONDS / 2) != ()
    assert hints.now(100.0 + SWEEP_EVERY_SECONDS) == ()
    hints.learn([Hint(1, 5, 9)], short=False)
    assert hints.now(101.2) != ()
    hints.learn([], short=True)
    assert hints.now(101.3) == ()


def test_batch_hidden_by_a_hint_is_found_by_the_next_sweep(lab):
    lab.submit_many(6)
    claimed = lab.claim_result(1, start=True)
    [first] = claimed.leases
    [looked] = claimed.hints
    assert (looked.turn, looked.batch) == (1, first.batch)
    hint = Hint(looked.lane, 4, 2**62)
    assert len(lab.claim(10, hints=[hint])) == 2
    assert lab.claim(10, hints=[hint]) == []
    assert len(lab.claim(10)) == 3


def test_client_with_hints_drains_everything(lab):
    """Also what was submitted or given back behind its marks."""
    hints = Hints()
    clock = 0.0
    found = set()
    lab.submit_many(40)
    for round_ in range(30):
        clock += 0.01
        claimed = lab.claim_result(3, start=True, hints=hints.now(clock))
        leases = claimed.leases
        hints.learn(claimed.hints, short=len(leases) < 3)
        found |= {lease.batch for lease in leases}
        if round_ == 5:
            lab.submit_many(10, "late")
        if leases and round_ < 5:
            lab.release(leases[0])
    assert len(found) == 50


def test_hints_for_other_lanes_are_ignored(lab):
    lab.submit_many(3)
    assert len(lab.claim(3, hints=[Hint(10**6, 10**9, 10**9)])) == 3


def test_hello_records_the_worker(lab):
    lab.rows_as_client(
        "select helix.hello_v1('w9', '{\"gpus\":1}'), helix.hello_v1('w9', '{\"gpus\":2}')"
    )
    assert lab.rows("select role, free from helix.worker where name = 'w9'") == [
        ("pool", {"gpus": 2})
    ]


def test_too_large_claim_names_the_limit():
    with pytest.raises(ValueError, match="claim: expected at most 1000 rows per call, got 1001"):
        calls.claim(worker="w", request=uuid.uuid4(), queues=["q"], count=1001)
