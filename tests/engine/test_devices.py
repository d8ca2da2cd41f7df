"""Devices: one holder each, chosen and written by the claim, freed by the end of the lease."""

from __future__ import annotations

import json
import threading
import time
import uuid
from concurrent.futures import ThreadPoolExecutor

import psycopg
import pytest

from helixqueue.engine import calls, devices
from helixqueue.records.submission import SubmissionRow
from tests.support.duties import run_duty
from tests.support.lab import Lab, completion, engine_function

pytestmark = pytest.mark.module_database

T4 = {"uuid": "GPU-t4", "index": 0, "model": "Tesla T4", "vram_gb": 16.1, "cc": 7.5}
A100 = {
    "uuid": "GPU-a100",
    "index": 1,
    "model": "NVIDIA A100-SXM4-80GB",
    "vram_gb": 85.9,
    "cc": 8.0,
}
A100_2 = A100 | {"uuid": "GPU-a100-2", "index": 2}


@pytest.fixture
def lab(database):
    with Lab(database) as lab:
        lab.queue(backoff_seconds=0)
        yield lab


@pytest.fixture
def host():
    """A host of its own for each test: hosts are shared by the queues of a database."""
    return f"gpu-{uuid.uuid4().hex[:8]}"


def pool(host, *devices, **members):
    members.setdefault("process", f"boot/1/{host}/1")
    return {"host": host, "devices": devices, "cpu_cores": 8, "ram_gb": 64, **members}


def gpu(count=1, **requires):
    return json.dumps({"gpus": count, **requires})


def held(lab, host):
    return dict(
        lab.rows(
            "select a.device, (a.ended_at is null)::text from helix.allocation a"
            " where a.host = %s and a.device is not null",
            host,
        )
    )


def devices_of(leases):
    return [lease.devices for lease in leases]


def test_two_workers_of_a_host_never_get_one_device(lab, host):
    lab.submit("s1", "s2", "s3", requires=gpu())
    mine = pool(host, T4, A100)
    assert devices_of(lab.claim(5, free=mine)) == [("GPU-t4",)]  # one batch per call
    assert devices_of(lab.claim(5, free=mine, worker="w2")) == [("GPU-a100",)]
    assert lab.claim(5, free=mine) == []
    # The same names on another host are other devices.
    assert devices_of(lab.claim(1, free=pool(f"{host}-b", T4))) == [("GPU-t4",)]


def test_allocation_of_a_held_device_violates_the_unique_index(lab, host, database):
    lab.submit("s1", requires=gpu())
    [lease] = lab.claim(free=pool(host, T4))
    with engine_function(database) as run:
        twice = (
            "insert into helix.allocation (host, device, batch, number, queue, worker, process) "
            f"select host, device, batch + 1, number + 1, queue, 'w9', '' from helix.allocation "
            f"where host = '{host}' and device is not null"
        )
        assert run(twice) == psycopg.errors.UniqueViolation.sqlstate
    assert held(lab, host) == {"GPU-t4": "true"}
    lab.complete(lease)


@pytest.mark.parametrize(
    ("requires", "expected"),
    [
        ({"gpus": 1}, ("GPU-t4",)),  # the smallest that fits
        ({"gpus": 1, "gpu_vram_gb": 40}, ("GPU-a100",)),
        ({"gpu_vram_gb": 40}, ("GPU-a100",)),  # a requirement on a device asks for one
        ({"gpus": 1, "gpu_vram_gb": 100}, None),
        ({"gpus": 1, "gpu_model": ["*V100*", "*a100*"]}, ("GPU-a100",)),
        ({"gpus": 1, "gpu_model": "Tesla T?"}, ("GPU-t4",)),
        ({"gpus": 1, "gpu_model": ["a100"]}, None),  # a glob matches the whole name
        ({"gpus": 1, "gpu_model": ["%"]}, None),
        ({"gpus": 1, "gpu_cc_min": 8.0}, ("GPU-a100",)),
        ({"gpus": 1, "gpu_cc_min": 9}, None),
        ({"gpus": 2, "gpu_vram_gb": 40}, None),  # of each device, not of all together
        ({"gpus": 2}, ("GPU-t4", "GPU-a100")),
        ({"gpus": 3}, None),
        ({"gpus": 1, "cpu_cores": 9}, None),
        ({"gpus": 1, "ram_gb": 64, "labels": {"site": "berlin"}}, ("GPU-t4",)),
        ({"labels": {"site": "paris"}}, None),
        ({"cpu_cores": 8}, ()),
    ],
)
def test_worker_gets_only_work_that_its_devices_fit(lab, host, requires, expected):
    lab.submit("s1", requires=json.dumps(requires))
    leases = lab.claim(free=pool(host, T4, A100, labels={"site": "berlin"}))
    assert devices_of(leases) == ([] if expected is None else [expected])


def test_wide_work_gets_devices_of_one_model(lab, host):
    lab.submit("s1", requires=gpu(2))
    assert devices_of(lab.claim(free=pool(host, T4, A100, A100_2))) == [("GPU-a100", "GPU-a100-2")]


def test_worker_without_described_devices_gets_no_work_that_asks_for_a_model(lab):
    lab.submit("s1", requires=gpu(gpu_model=["*A100*"]))
    lab.submit("s2", requires=gpu(gpu_cc_min=7))
    lab.submit("s3", requires=gpu())
    [lease] = lab.claim(9, free={"gpus": 4, "gpu_vram_gb": 80})
    assert (lease.identity, lease.devices) == ("s3", None)


def test_cores_and_memory_are_shared_by_the_workers_of_a_host(lab, host):
    lab.submit("s1", "s2", "s3", requires=json.dumps({"cpu_cores": 3, "ram_gb": 20}))
    [first] = lab.claim(free=pool(host))
    [second] = lab.claim(free=pool(host), worker="w2")
    assert lab.claim(free=pool(host)) == []
    lab.complete(first)
    assert len(lab.claim(free=pool(host))) == 1
    lab.release(second)


def test_devices_that_are_unhealthy_withdrawn_or_gone_are_not_handed_out(lab, host):
    lab.submit("s1", requires=gpu())
    assert lab.claim(free=pool(host, T4 | {"fault": "ECC errors"})) == []
    lab.rows("select helix.withdraw_device_v1(%s, 'GPU-t4', 'fan')", host)
    assert lab.claim(free=pool(host, T4)) == []
    assert lab.claim(free=pool(host)) == []
    lab.rows("select helix.withdraw_device_v1(%s, 'GPU-t4', null)", host)
    assert devices_of(lab.claim(free=pool(host, T4))) == [("GPU-t4",)]


def test_only_an_operator_of_all_tenants_withdraws_devices(lab, host, database):
    with (
        database.connect("app_a") as client,
        pytest.raises(psycopg.errors.InsufficientPrivilege),
    ):
        client.execute("select helix.withdraw_device_v1(%s, 'GPU-t4', 'spite')", (host,))


def complete(lab, lease):
    lab.complete(lease)


def fail(lab, lease):
    lab.fail(lease, permanent=True)


def release(lab, lease):
    lab.release(lease)


@pytest.mark.parametrize("end", [complete, fail, release])
def test_end_by_the_worker_frees_its_devices_in_the_same_statement(lab, host, end):
    lab.submit("s1", requires=gpu(2))
    [lease] = lab.claim(free=pool(host, T4, A100))
    assert held(lab, host) == {"GPU-t4": "true", "GPU-a100": "true"}
    end(lab, lease)
    assert lab.rows("select 1 from helix.allocation where host = %s", host) == []


def test_settling_and_claiming_in_one_call_reuses_the_device(lab, host):
    lab.submit("s1", "s2", requires=gpu())
    [lease] = lab.claim(free=pool(host, T4))
    [again] = lab.claim(free=pool(host, T4), settle=[completion(lease)])
    assert (again.identity, again.devices) == ("s2", ("GPU-t4",))


def cancel(lab, lease):
    lab.decide("cancel", lease.batch_id)


def lose(lab, lease):
    lab.pass_time(lease.batch)
    lab.claim(queues=["no such queue"])


def release_by_operator(lab, lease):
    lab.decide("release_by_id", lease.batch_id)


@pytest.mark.parametrize("end", [cancel, lose, release_by_operator])
def test_device_of_a_lost_lease_waits_until_its_process_is_gone(lab, host, end):
    [submitted] = lab.submit("s1", requires=gpu())
    [lease] = lab.claim(free=pool(host, T4, process="old"))
    end(lab, lease)
    lab.submit("s2", requires=gpu())
    found = lab.claim_result(free=pool(host, T4), worker="w2", start=True)
    assert found.leases == ()
    assert held(lab, host) == {"GPU-t4": "false"}
    batch_id = str(submitted.receipt.batch_id)
    assert [former[1:] for former in found.former] == [
        ("old", batch_id, None),
        ("old", batch_id, "GPU-t4"),
    ]
    gone = [former.id for former in found.former]
    # Another host cannot know.
    assert lab.claim(free=pool(f"{host}-b", gone=gone)) == []
    assert devices_of(lab.claim(free=pool(host, T4, gone=gone), worker="w2")) == [("GPU-t4",)]


def test_device_of_a_lost_lease_is_handed_out_after_the_grace_time(lab, host):
    lab.submit("s1", requires=gpu())
    [lease] = lab.claim(free=pool(host, T4))
    lose(lab, lease)
    assert lab.claim(free=pool(host, T4, grace_seconds=60), worker="w2") == []
    assert len(lab.claim(free=pool(host, T4, grace_seconds=0), worker="w2")) == 1


def test_worker_of_another_tenant_cannot_vouch_that_a_process_is_gone(lab, host, database):
    lab.submit("s1", requires=gpu())
    [lease] = lab.claim(free=pool(host, T4))
    lose(lab, lease)
    former = lab.claim_result(queues=[lab.q], free=pool(host)).former
    with Lab(database, "app_b") as other:
        other.queue(tenant="b")
        other.submit("x", tenant="b", requires=gpu())
        seen = other.claim_result(free=pool(host, T4, gone=[row.id for row in former]))
        assert (seen.leases, seen.former) == ((), ())


def test_late_settlement_frees_a_device_whose_lease_was_not_reaped(lab, host):
    lab.submit("s1", requires=gpu())
    [lease] = lab.claim(free=pool(host, T4))
    lab.pass_time(lease.batch)
    [answer] = lab.complete(lease)
    assert (answer.answer, answer.late) == ("ok", True)
    assert held(lab, host) == {}


def test_stale_settlement_frees_nothing_of_the_next_lease(lab, host):
    lab.submit("s1", requires=gpu())
    [old] = lab.claim(free=pool(host, T4, A100))
    lose(lab, old)
    [new] = lab.claim(free=pool(host, T4, A100), worker="w2")
    assert [answer.answer for answer in lab.complete(old)] == ["refused"]
    assert held(lab, host) == {"GPU-t4": "false", "GPU-a100": "true"}
    assert new.devices == ("GPU-a100",)


def test_ledger_names_the_devices_of_an_attempt(lab, host):
    [submitted] = lab.submit("s1", requires=gpu(2))
    lab.claim(free=pool(host, T4, A100))
    rows = lab.rows(
        "select h.reason::text, h.detail from helix.history_of(array["
        " (select l.batch from helix.locate(array[%s::uuid]) l)]) h order by h.version",
        submitted.receipt.batch_id,
    )
    assert rows == [
        ("submitted", None),
        ("claimed", None),
        ("started", f"on {host}: GPU-t4, GPU-a100"),
    ]
    # The hash of the text is in the entry.
    assert lab.value(
        "select e.content[1] = helix.content_hash(null, %s, null) from helix.entry e"
        " join helix.work w on w.entry = e.id where w.batch = %s",
        f"on {host}: GPU-t4, GPU-a100",
        lab.number(submitted.receipt.batch_id),
    )


def test_repeat_of_a_claim_returns_the_lease_with_its_devices(lab, host):
    lab.submit("s1", "s2", requires=gpu())
    request = uuid.uuid4()
    mine = pool(host, T4, A100)
    first = lab.claim(free=mine, request=request)
    assert devices_of(lab.claim(free=mine, request=request)) == devices_of(first)
    assert held(lab, host) == {"GPU-t4": "true"}


def test_worker_of_several_tenants_shares_its_device_among_them(lab, host):
    lab.queue(tenant="b")
    for tenant in ("a", "b"):
        lab.submit("s1", "s2", tenant=tenant, requires=gpu())
    tenants = []
    for _ in range(4):
        [lease] = lab.claim(free=pool(host, T4))
        tenants.append(lease.tenant)
        lab.complete(lease)
    assert sorted(tenants) == ["a", "a", "b", "b"]


def test_concurrent_claims_of_a_host_never_share_a_device(lab, host, database):
    lab.submit_many(40, requires=gpu())
    devices = [T4 | {"uuid": f"GPU-{n}", "index": n} for n in range(3)]
    holders = {device["uuid"]: threading.Lock() for device in devices}
    shared = []

    def work(number):
        with Lab(database, worker=f"w{number}", q=lab.q) as mine:
            done = 0
            while leases := mine.claim(free=pool(host, *devices)):
                [device] = leases[0].devices
                if not holders[device].acquire(blocking=False):
                    shared.append(device)
                holders[device].release()
                mine.complete(*leases)
                done += 1
            return done

    with ThreadPoolExecutor(3) as threads:
        assert sum(threads.map(work, range(3))) == 40
    assert shared == []


# --- wide work ------------------------------------------------------------------------------------


def test_wide_work_gets_its_turn_under_a_flood_of_narrow_work(lab, host):
    """T + D: after the waiting time the host holds back what becomes free, one attempt long."""
    devices = [T4, A100]
    mine = pool(host, *devices, reserve_seconds=0)
    lab.submit_many(6, requires=gpu())
    [first] = lab.claim(free=mine)
    [second] = lab.claim(free=mine)
    lab.submit("wide", requires=gpu(2))
    assert lab.claim(free=mine) == []  # nothing is free; the host reserves
    lab.complete(first)
    assert lab.claim(free=mine) == []
    lab.complete(second)
    [wide] = lab.claim(free=mine)
    assert (wide.identity, len(wide.devices)) == ("wide", 2)


def test_wide_work_waits_for_at_most_twice_the_waiting_time_and_an_attempt(lab, host):
    """2 T + D, and time for the calls: narrow attempts of D follow each other without a pause."""
    waiting_time, attempt = 0.3, 0.2
    mine = pool(host, T4, A100, reserve_seconds=waiting_time)
    lab.submit_many(100, requires=gpu())
    lab.submit("wide", requires=gpu(2))
    begun = time.monotonic()
    running = []
    while True:
        for lease in lab.claim(free=mine):
            if lease.identity == "wide":
                assert 2 * waiting_time + attempt + 2.0 > time.monotonic() - begun
                return
            running.append((time.monotonic() + attempt, lease))
        # The two devices are never free at once by themselves.
        if len(running) == 2 or (running and running[0][0] < time.monotonic()):
            end, lease = running.pop(0)
            time.sleep(max(0.0, end - time.monotonic()))
            lab.complete(lease)


def test_wide_work_reserves_nothing_before_its_waiting_time(lab, host):
    mine = pool(host, T4, A100, reserve_seconds=3600)
    lab.submit_many(4, requires=gpu())
    running = [lab.claim(free=mine)[0] for _ in range(2)]
    lab.submit("wide", requires=gpu(2))
    lab.complete(running[0])
    assert [lease.identity for lease in lab.claim(free=mine)] == ["s00002"]


def test_reservation_leaves_devices_to_work_that_does_not_need_them(lab, host):
    mine = pool(host, T4, A100, A100_2, reserve_seconds=0)
    lab.submit("busy", requires=gpu(gpu_vram_gb=40))
    [busy] = lab.claim(free=mine)
    lab.submit("wide", requires=gpu(2, gpu_vram_gb=40))
    lab.submit("narrow", "next", requires=gpu())
    [narrow] = lab.claim(free=mine)
    assert (narrow.identity, narrow.devices) == ("narrow", ("GPU-t4",))
    assert lab.claim(free=mine) == []  # the free A100 is kept for the wide work
    lab.complete(busy)
    assert [lease.identity for lease in lab.claim(free=mine)] == ["wide"]


@pytest.mark.parametrize("end", ["pause", "cancel"])
def test_reservation_of_work_that_is_gone_holds_nothing_back(lab, host, end):
    mine = pool(host, T4, A100, reserve_seconds=0)
    lab.submit("first", requires=gpu())
    [first] = lab.claim(free=mine)
    lab.queue(f"{lab.q}-wide")
    [wide] = lab.submit("wide", queue=f"{lab.q}-wide", requires=gpu(2))
    queues = [lab.q, f"{lab.q}-wide"]
    assert lab.claim(free=mine, queues=queues) == []
    lab.submit("narrow", requires=gpu())
    assert lab.claim(free=mine, queues=queues) == []  # reserved
    if end == "pause":
        lab.queue(f"{lab.q}-wide", paused=True, reason="test")
    else:
        lab.decide("cancel", wide.receipt.batch_id)
    assert [lease.identity for lease in lab.claim(free=mine, queues=queues)] == ["narrow"]
    lab.complete(first)


def test_wide_work_does_not_starve_narrow_work(lab, host):
    """After a reservation was used, the next one waits for the waiting time."""
    mine = pool(host, T4, A100, reserve_seconds=0.3)
    lab.submit("narrow-1", requires=gpu())
    [first] = lab.claim(free=mine)
    lab.submit("wide-1", "wide-2", requires=gpu(2), priority=5)
    lab.submit("narrow-2", requires=gpu(), priority=1)
    time.sleep(0.35)
    assert lab.claim(free=mine) == []
    lab.complete(first)
    [wide] = lab.claim(free=mine)
    assert wide.identity == "wide-1"
    lab.complete(wide)
    assert [lease.identity for lease in lab.claim(free=mine)] == ["narrow-2"]


# --- misfits --------------------------------------------------------------------------------------


@pytest.fixture
def fleet(lab, host):
    """Reports of workers of the lab's queue."""

    def report(name, free):
        free = {**free, "health": {"queues": [lab.q]}}
        lab.run(calls.hello(worker=f"{host}-{name}", free=free))

    return report


def missing(lab, **requires):
    return lab.value("select helix.missing('a', %s, %s)", lab.q, json.dumps(requires))


def test_misfit_names_what_no_worker_has(lab, host, fleet):
    assert missing(lab, gpus=1) is None  # no worker reported: nothing is known
    fleet("cpu", {"cpu_cores": 8.0})
    assert missing(lab, gpus=1) == "gpus 1"
    assert missing(lab, cpu_cores=8) is None
    fleet("gpu", pool(host, T4, A100 | {"fault": "ECC errors"}))
    assert missing(lab, gpus=1) is None
    assert missing(lab, gpus=2) == "gpus 2"
    assert missing(lab, gpus=1, gpu_model=["*A100*"]) == 'gpu_model ["*A100*"]'
    assert missing(lab, gpus=1, labels={"site": "x"}) == 'labels {"site": "x"}'
    fleet("big", {"cpu_cores": 64.0})
    assert missing(lab, gpus=1, cpu_cores=32) == "all of gpus 1, cpu_cores 32"
    lab.rows("select helix.withdraw_device_v1(%s, 'GPU-t4', 'fan')", host)
    assert missing(lab, gpus=1) == "gpus 1"


def test_devices_that_are_held_fit_waiting_work(lab, host, fleet):
    fleet("gpu", pool(host, T4))
    lab.submit("s1", "s2", requires=gpu())
    lab.claim(free=pool(host, T4))
    assert missing(lab, gpus=1) is None


def test_queue_that_refuses_misfits_refuses_new_work_and_answers_repeats(lab, host, fleet):
    fleet("gpu", pool(host, T4))
    [first] = lab.submit("s1", requires=gpu(2))
    lab.queue(misfit="refuse", reason="test")
    rows = [
        *lab.submit("s1", requires=gpu(2)),
        *lab.submit("s2", requires=gpu(2)),
        *lab.submit("s3", requires=gpu()),
        *lab.submit("s4"),
    ]
    assert [row.decision for row in rows] == ["duplicate", "refused", "new", "new"]
    assert rows[0].receipt == first.receipt
    assert rows[1].note == "no_worker_matches: no worker has gpus 2"
    # One row does not affect the others.
    mixed = lab.submit_rows(
        SubmissionRow("s5", "{}", requires=gpu(2)), SubmissionRow("s6", "{}", requires=gpu())
    )
    assert [row.decision for row in mixed] == ["refused", "new"]


def test_queue_refuses_misfits_of_its_own_requirements(lab, host, fleet):
    fleet("gpu", pool(host, T4))
    lab.queue(requires={"gpus": 2}, misfit="refuse", reason="test")
    assert [row.decision for row in lab.submit("s1")] == ["refused"]
    fleet("gpu", pool(host, T4, A100))
    assert [row.decision for row in lab.submit("s1")] == ["new"]


def test_metric_counts_requirements_that_no_worker_has(lab, host, fleet):
    fleet("gpu", pool(host, T4))
    lab.submit("s1", "s2", requires=gpu(2))
    lab.submit("s3", requires=gpu(gpu_cc_min=9))
    lab.submit("s4", requires=gpu())
    run_duty(lab, "metrics")
    assert (
        lab.value(
            "select value from helix.metric where name = 'helix_no_worker_matches' and queue = %s",
            lab.q,
        )
        == 2
    )


# --- reads ----------------------------------------------------------------------------------------


def test_list_of_devices_shows_model_holder_and_faults(lab, host, fleet):
    fleet("gpu", pool(host, T4, A100, A100_2 | {"fault": "ECC errors"}))
    lab.submit("s1", requires=gpu(gpu_vram_gb=40))
    [lease] = lab.claim(free=pool(host, T4, A100))
    rows = [row for row in lab.run(devices.devices(tenant="a")) if row.host == host]
    assert [(row.device, row.model, row.vram_gb, row.status, row.batch_id) for row in rows] == [
        ("GPU-t4", "Tesla T4", pytest.approx(16.1), "free", None),
        ("GPU-a100", A100["model"], pytest.approx(85.9), "held", lease.batch_id),
        ("GPU-a100-2", A100["model"], pytest.approx(85.9), "unhealthy: ECC errors", None),
    ]
    assert (rows[1].identity, rows[1].worker) == (("s1",), "w1")
    lose(lab, lease)
    [row] = [row for row in lab.run(devices.devices(tenant="a"))
             if (row.host, row.device) == (host, "GPU-a100")]  # fmt: skip
    assert row.status == "waits for its former process"


def test_other_tenant_sees_that_a_device_is_held_and_not_by_what(lab, host, database, fleet):
    fleet("all", pool(host, T4))
    lab.submit("secret", requires=gpu())
    lab.claim(free=pool(host, T4))
    with Lab(database, "app_b") as other:
        [row] = [row for row in other.run(devices.devices(tenant="b")) if row.host == host]
    assert (row.status, row.identity, row.batch_id, row.worker) == ("held", (), None, None)
