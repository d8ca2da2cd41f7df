"""Queues: their settings, pausing and closing, and work that waits for its time."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta

import pytest

from helixqueue.engine import calls
from helixqueue.errors import NotPermitted, Refused, Retryable
from helixqueue.states import State
from tests.support.lab import WORK_LOCATION, Lab, wait_until

pytestmark = pytest.mark.module_database

LATER = timedelta(hours=1)
WAITING = """select count(*) from pg_locks l join pg_database d on d.oid = l.database
  where d.datname = current_database() and l.relation = 'helix.queue'::regclass and not l.granted"""
EXPIRED = "select clock_timestamp() > expires_at from helix.batch where id = %s"


@pytest.fixture
def lab(database):
    with Lab(database) as lab:
        lab.queue(backoff_seconds=0)
        yield lab


@pytest.fixture
def own(database, lab):
    """A worker of tenant a alone; its claims do the duties that are due."""
    with Lab(database, "app_a", worker="w-own", q=lab.q) as own:
        yield own


def places(lab):
    return dict(
        lab.rows(
            f"select {WORK_LOCATION}, count(*) from helix.work w"
            " join helix.queue q on q.id = w.queue where q.name = %s group by 1",
            lab.q,
        )
    )


# --- settings ----------------------------------------------------------------------------------

SETTINGS = {
    "profile": "lab-id-v1",
    "lease_seconds": 30.0,
    "max_attempts": 7,
    "backoff_seconds": 1.5,
    "backoff_max_seconds": 60.0,
    "key_limit": 4,
    "unknown": "accept",
    "paused": True,
    "closed": True,
    "requires": {"gpus": 1, "labels": {"site": "berlin"}},
}


def test_new_queue_has_the_defaults(lab):
    row = lab.queue(f"{lab.q}-new")
    assert (row.profile, row.lease_seconds, row.max_attempts) == ("text-v1", 120, 5)
    assert (row.backoff_seconds, row.backoff_max_seconds, row.key_limit) == (2, 600, 1)
    assert (row.unknown, row.paused, row.closed, row.requires) == ("refuse", False, False, {})


@pytest.mark.parametrize("name", sorted(SETTINGS.keys() - {"profile"}))
def test_setting_changes_alone_and_stays(lab, name):
    before = lab.queue()
    after = lab.queue(**{name: SETTINGS[name]})
    assert getattr(after, name) == SETTINGS[name]
    for other in SETTINGS.keys() - {name}:
        assert getattr(after, other) == getattr(before, other)
    assert lab.run(calls.queue(tenant="a", queue=lab.q)) == after
    assert lab.queue() == after


def test_profile_cannot_change_and_make_known_identities_new(lab):
    lab.queue()
    lab.submit("\uff21-1")
    with pytest.raises(Refused, match="has batches of profile text-v1"):
        lab.queue(profile="lab-id-v1")
    assert lab.queue(profile="text-v1").profile == "text-v1"


def test_profile_of_an_empty_queue_can_change(lab):
    lab.queue()
    assert lab.queue(profile="lab-id-v1").profile == "lab-id-v1"
    assert lab.submit("A-1", profile="lab-id-v1")[0].decision == "new"


def test_empty_queue_is_deleted_and_another_stays(lab):
    name = f"{lab.q}-gone"
    lab.queue(name)
    delete = {"tenant": "a", "queue": name, "reason": "a typing error"}
    assert lab.run(calls.delete_queue(**delete)) == "deleted"
    assert lab.run(calls.delete_queue(**delete)) == "absent"
    assert lab.run(calls.queue(tenant="a", queue=name)) is None
    lab.queue(name)
    lab.submit("s", queue=name)
    assert lab.run(calls.delete_queue(**delete)) == "not_empty"


def test_submission_in_progress_keeps_its_queue(lab, database):
    """Its transaction has read the queue; a deletion waits for it and then finds its batch."""
    name = f"{lab.q}-used"
    lab.queue(name)
    with database.connect("pool", autocommit=False) as other:
        other.execute(
            "select helix.submit_v1('a', %s, 'x', 'text-v1', array['s'], array['{}'])", (name,)
        )
        with ThreadPoolExecutor(1) as pool:
            call = calls.delete_queue(tenant="a", queue=name, reason="a race")
            deletion = pool.submit(lab.run, call)
            wait_until(lambda: database.value(WAITING) == 1)
            other.commit()
            assert deletion.result() == "not_empty"


def test_deletion_of_a_used_queue_does_not_wait_for_other_tenants(lab, database):
    """It asks for no lock of the table, behind which every submission would wait."""
    name = f"{lab.q}-long"
    lab.queue(name)
    with database.connect("pool", autocommit=False) as other:
        other.execute(
            "select helix.submit_v1('b', %s, 'x', 'text-v1', array['s'], array['{}'])", (lab.q,)
        )
        lab.submit("s")
        delete = {"tenant": "a", "reason": "a typing error"}
        assert lab.run(calls.delete_queue(queue=lab.q, **delete)) == "not_empty"
        # An empty queue needs the lock, and gives up soon: others wait behind it.
        with pytest.raises(Retryable):
            lab.run(calls.delete_queue(queue=name, **delete))
    assert lab.run(calls.delete_queue(queue=name, **delete)) == "deleted"


def test_all_settings_at_once_for_a_new_queue(lab):
    row = lab.queue(f"{lab.q}-all", **SETTINGS)
    assert {name: getattr(row, name) for name in SETTINGS} == SETTINGS


def test_every_change_of_a_setting_is_on_record(lab):
    lab.run(calls.set_queue(tenant="a", queue=lab.q, actor="ann", max_attempts=9))
    [(kind, actor, attempts)] = lab.rows(
        "select kind, actor, detail::json ->> 'max_attempts' from helix.decision "
        "where queue = %s order by id desc limit 1",
        lab.q,
    )
    assert (kind, actor, attempts) == ("setting", "ann", "9")


@pytest.mark.parametrize(
    "bad",
    [
        {"profile": "ascii"},
        {"lease_seconds": 0.01},
        {"lease_seconds": 1e6},
        {"max_attempts": 0},
        {"backoff_seconds": -1.0},
        {"key_limit": 0},
        {"unknown": "perhaps"},
        {"requires": {"gpu": 1}},
    ],
)
def test_setting_out_of_bounds_is_refused(lab, bad):
    before = lab.queue()
    with pytest.raises(Refused):
        lab.queue(**bad)
    assert lab.queue() == before


@pytest.mark.parametrize("name", ["", "Q", "q q", "ü", "q" * 64, "-q"])
def test_invalid_queue_name_is_refused(lab, name):
    with pytest.raises(Refused):
        lab.run(calls.set_queue(tenant="a", queue=name))


def test_unknown_setting_raises_type_error(lab):
    with pytest.raises(TypeError, match=r"unknown queue setting 'max_tries'; known: profile, "):
        lab.queue(max_tries=3)


def test_no_tenant_sets_or_sees_another_tenants_queue(lab, database):
    with Lab(database, "app_b") as other:
        with pytest.raises(NotPermitted):
            other.run(calls.set_queue(tenant="a", queue=lab.q, paused=True))
        assert other.run(calls.queue(tenant="a", queue=lab.q)) is None
    assert lab.queue().paused is False


def test_unknown_queue_is_none(lab):
    assert lab.run(calls.queue(tenant="a", queue="nowhere")) is None


def test_settings_apply_to_existing_batches(lab):
    lab.submit("s1")
    lab.queue(max_attempts=1)
    [lease] = lab.claim()
    assert lab.fail(lease)[0].state is State.FAILED


# --- pause and close ---------------------------------------------------------------------------


def test_paused_queue_yields_nothing_and_everything_after_resume(lab):
    lab.submit_many(6)
    running, assigned, failing = lab.claim(2) + lab.claim(1, start=False)
    lab.queue(paused=True)
    lab.submit_many(3, "new")
    assert lab.claim(10) == []
    # What was under way may end; what goes back waits.
    assert lab.complete(running)[0].answer == "ok"
    assert lab.renew(assigned)[0].answer == "ok"
    assert lab.fail(failing)[0].state is State.PENDING
    assert lab.release(assigned)[0].state is State.PENDING
    assert lab.claim(10) == []
    assert places(lab) == {"outcome": 1, "waiting": 8}
    lab.queue(paused=False)
    lab.run(calls.promote())
    assert len(lab.claim(10)) == 8


def test_resumed_queue_is_served_by_a_worker_alone(lab, own):
    lab.queue(paused=True)
    lab.submit_many(3)
    assert own.claim(5) == []
    lab.queue(paused=False)
    lab.pass_time()
    assert len(own.claim(5)) == 3


def test_resume_before_any_claim_changes_nothing(lab):
    """Rows that stood in ready when the pause came never moved."""
    lab.submit_many(3)
    lab.queue(paused=True)
    lab.queue(paused=False)
    assert len(lab.claim(5)) == 3


def test_pause_writes_no_events(lab):
    [answer] = lab.submit("s1")
    lab.queue(paused=True)
    assert lab.claim() == []
    lab.queue(paused=False)
    lab.run(calls.promote())
    assert lab.history(answer.receipt.batch_id) == [("PENDING", "submitted")]
    assert lab.location(answer.receipt.batch_id) == ("PENDING", 1, 0, "ready")


def test_pause_affects_only_its_tenant(lab):
    lab.queue(tenant="b")
    lab.submit_many(3)
    lab.submit_many(3, tenant="b")
    lab.queue(paused=True)
    assert [lease.tenant for lease in lab.claim(10)] == ["b"] * 3


def test_batch_due_in_a_paused_queue_waits_for_resume(lab, own):
    [answer] = lab.submit("s1", run_at=datetime.now(UTC) + LATER)
    lab.queue(paused=True)
    lab.pass_time(lab.number(answer.receipt.batch_id))
    assert own.claim() == []
    lab.pass_time()
    assert own.claim() == []
    lab.queue(paused=False)
    lab.pass_time()
    assert len(own.claim()) == 1


def test_retry_in_a_paused_queue_waits(lab):
    [answer] = lab.submit("s1")
    lab.fail(*lab.claim(), permanent=True)
    lab.queue(paused=True)
    assert lab.decide("retry", answer.receipt.batch_id)[0].answer == "ok"
    assert lab.claim() == []
    lab.queue(paused=False)
    lab.run(calls.promote())
    assert len(lab.claim()) == 1


def test_paused_backlog_does_not_delay_a_claim(lab):
    """What stands in ready when the pause comes steps aside by thousands, a part in each claim."""
    lab.submit_many(3000)
    lab.queue("beside", profile="text-v1")
    lab.submit("b1", queue="beside")
    lab.queue(paused=True)
    leases = wait_until(lambda: lab.claim(1, queues=[lab.q, "beside"]), seconds=5)
    assert [lease.identity for lease in leases] == ["b1"]
    wait_until(lambda: lab.claim(1) == [] and "ready" not in places(lab), seconds=5)
    lab.queue(paused=False)
    wait_until(lambda: lab.run(calls.promote()) == 0, seconds=5)
    assert places(lab) == {"ready": 3000}


def test_closed_queue_still_serves_its_workers(lab):
    lab.submit_many(2)
    lab.queue(closed=True)
    assert lab.submit("s3")[0].decision == "refused"
    lab.complete(*lab.claim(1))
    assert len(lab.claim(5)) == 1


# --- time --------------------------------------------------------------------------------------


def test_work_waits_for_its_time(lab, own):
    [answer] = lab.submit("s1", run_at=datetime.now(UTC) + LATER)
    batch_id = answer.receipt.batch_id
    assert lab.location(batch_id) == ("PENDING", 1, 0, "waiting")
    assert own.claim() == []
    assert lab.run(calls.promote()) == 0
    lab.pass_time(lab.number(batch_id))
    assert len(own.claim()) == 1
    # Waiting was no step of its life.
    assert len(lab.history(batch_id)) == 3


def test_past_run_at_does_not_delay(lab):
    lab.submit("s1", run_at=datetime.now(UTC) - LATER)
    assert len(lab.claim()) == 1


def test_clock_of_the_database_makes_work_due(lab, own):
    due = datetime.now(UTC) + timedelta(milliseconds=80)
    lab.submit("s1", run_at=due)
    [lease] = wait_until(own.claim)
    assert lease.deadline - timedelta(seconds=lease.lease_seconds) >= due


def test_promotion_respects_its_limit(lab):
    answers = lab.submit("s1", "s2", "s3", run_at=datetime.now(UTC) + LATER)
    lab.pass_time(*[lab.number(answer.receipt.batch_id) for answer in answers])
    assert [lab.run(calls.promote(limit=2)) for _ in range(3)] == [2, 1, 0]


@pytest.mark.parametrize("wait", [False, True])
def test_batch_not_started_before_expiry_is_cancelled(lab, own, wait):
    run_at = datetime.now(UTC) + LATER if wait else None
    [answer] = lab.submit("s1", run_at=run_at, expires_at=datetime.now(UTC) + 2 * LATER)
    batch_id = answer.receipt.batch_id
    lab.pass_time(lab.number(batch_id))
    assert own.claim() == []
    assert lab.location(batch_id) == ("CANCELLED", 2, 0, "outcome")
    assert lab.history(batch_id)[-1] == ("CANCELLED", "expired")
    assert lab.submit("s1")[0].state is State.CANCELLED


def test_claim_never_returns_an_expired_batch(lab):
    """Also a session of all tenants, which does the duty by turns only."""
    [answer, _] = lab.submit("s1", "s2", expires_at=datetime.now(UTC) + LATER)
    lab.pass_time(lab.number(answer.receipt.batch_id))
    assert [lease.identity for lease in lab.claim(5)] == ["s2"]
    assert lab.location(answer.receipt.batch_id)[0] == "CANCELLED"


def test_started_batch_does_not_expire(lab, own):
    lab.submit("s1", expires_at=datetime.now(UTC) + timedelta(milliseconds=500))
    [lease] = lab.claim()
    wait_until(lambda: lab.value(EXPIRED, lease.batch))
    assert own.claim() == []
    assert lab.complete(lease)[0].answer == "ok"


def test_batch_that_expired_while_running_is_not_retried(lab, own):
    lab.submit("s1", expires_at=datetime.now(UTC) + timedelta(milliseconds=300))
    [lease] = lab.claim()
    wait_until(lambda: lab.value(EXPIRED, lease.batch))
    assert lab.fail(lease)[0].state is State.PENDING
    assert own.claim() == []
    assert lab.history(lease.batch_id)[-1] == ("CANCELLED", "expired")
