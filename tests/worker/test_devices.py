"""Workers that own devices: what their programs see, and when a device changes hands.

The devices are described in a file; no NVIDIA driver is needed. A program locks a file for each
device that it sees, so that two at once would be found by the programs themselves.
"""

from __future__ import annotations

import json
import os
import random
import signal
import stat
import subprocess
import time
from itertools import pairwise

import pytest

from helixqueue import HelixClient, Queue, Refused, State
from helixqueue.client.run_worker import work
from helixqueue.records.device import FormerAllocation
from helixqueue.worker.devices import DevicePool, is_gone, process_identity
from helixqueue.worker.handlers import QueueHandler
from helixqueue.worker.program import Program
from tests.support.lab import wait_until
from tests.support.processes import ModuleProcess
from tests.support.service import Site, serving, settings_for
from tests.support.shift import proven
from tests.worker.conftest import ROOT

PROOF = bool(os.environ.get("HELIX_PROOF"))
SHOW = "python3 -c 'import json, os; print(json.dumps(dict(os.environ)))' > $HELIX_RESULT"
CUDA = ("CUDA_DEVICE_ORDER", "CUDA_VISIBLE_DEVICES", "NVIDIA_VISIBLE_DEVICES")
# Locks each device that it sees, or records that another program has it.
LOCKING = """#!/bin/sh
number=3
for device in $(echo "$CUDA_VISIBLE_DEVICES" | tr , ' '); do
  number=$((number + 1))
  eval "exec $number>>'$LOCKS/$LAB_HOST-$device'"
  flock -n $number || { echo "$HELIX_BATCH $device" >> "$LOCKS/shared"; exit 65; }
done
echo "$HELIX_BATCH $CUDA_VISIBLE_DEVICES" >> "$LOCKS/ran"
sleep "$HELIX_PAYLOAD_SECONDS"
"""


def device(number, model="Tesla T4", vram_gb=16.1, cc=7.5):
    return {"uuid": f"GPU-{number}", "index": number, "model": model, "vram_gb": vram_gb, "cc": cc}


@pytest.fixture
def pool_file(tmp_path, name):
    """Writes the description of a host; by default one of this test's own."""

    def write(*devices, host=f"host-{name}", **members):
        file = tmp_path / f"{host}.json"
        file.write_text(json.dumps({"host": host, "devices": devices, **members}), encoding="utf-8")
        return file

    return write


def run(helix, name, command, pool, **options):
    """Work in this process with a program until nothing is left."""
    handler = QueueHandler(name, None, Program(["sh", "-c", command]).run)
    return work(helix, {name: handler}, {"until_idle": True, "pool": pool, **options})


def submit(helix, name, *identities, payload=None, **requires):
    queue = Queue(name, backoff=0, max_attempts=1000, lease=1)
    return [
        helix.submit(queue, identity=item, payload=payload or {}, requires=requires).receipt
        for item in identities
    ]


def cuda(environment):
    return {name: environment.get(name) for name in CUDA}


def test_program_sees_its_devices_by_uuid_and_no_others(helix, name, pool_file, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1,2")
    monkeypatch.setenv("NVIDIA_VISIBLE_DEVICES", "all")
    [two] = submit(helix, name, "two", gpus=2)
    [cpu] = submit(helix, name, "cpu", cpu_cores=0.1)
    run(helix, name, SHOW, pool_file(device(0), device(1), device(2)))
    assert cuda(helix.result(two)) == {
        "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
        "CUDA_VISIBLE_DEVICES": "GPU-0,GPU-1",
        "NVIDIA_VISIBLE_DEVICES": "GPU-0,GPU-1",
    }
    assert cuda(helix.result(cpu)) == {
        "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
        "CUDA_VISIBLE_DEVICES": "",
        "NVIDIA_VISIBLE_DEVICES": "",
    }


def test_worker_without_devices_leaves_the_environment_as_it_is(helix, name, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3")
    [receipt] = submit(helix, name, "s", gpus=1)
    run(helix, name, SHOW, None, free={"gpus": 1})
    assert helix.result(receipt)["CUDA_VISIBLE_DEVICES"] == "3"


APP = """
import os
from helixqueue import Queue
queue = Queue("{name}", run_in="process")

@queue.handler
def handle(lease):
    return [lease.devices, os.environ["CUDA_VISIBLE_DEVICES"], os.getpid()]
"""


def test_handler_process_sees_its_devices_and_is_not_used_again(
    helix, name, pool_file, tmp_path, monkeypatch
):
    monkeypatch.syspath_prepend(tmp_path)
    module = f"app_{name}"
    (tmp_path / f"{module}.py").write_text(APP.format(name=name), encoding="utf-8")
    queue = __import__(module).queue
    receipts = [
        helix.submit(queue, identity=str(n), payload={}, requires=requires).receipt
        for n, requires in enumerate([{"gpus": 1}, {"gpus": 1}, {}, {}])
    ]
    helix.work(queue, until_idle=True, slots=1, pool=pool_file(device(0)))
    results = [helix.result(receipt) for receipt in receipts]
    assert [row[:2] for row in results] == [[["GPU-0"], "GPU-0"]] * 2 + [[[], ""]] * 2
    processes = [row[2] for row in results]
    assert len(set(processes)) == 3  # a process without devices is used again


def test_handler_in_a_thread_gets_no_devices(helix, name, pool_file):
    queue = Queue(name)
    queue.handler(print)
    with pytest.raises(Refused, match='run_in="process"'):
        helix.work(queue, until_idle=True, pool=pool_file(device(0)))


def test_free_adds_cores_and_labels_to_the_pool_of_the_host(pool_file):
    pool = DevicePool(
        None,
        pool_file(device(0), cpu_cores=4, labels={"site": "berlin"}),
        {"cpu_cores": 64, "disk_gb": 9, "labels": {"site": "paris", "pfs": "yes"}},
    )
    described = pool.describe()
    assert (described["cpu_cores"], described["disk_gb"]) == (4, 9)
    assert described["labels"] == {"site": "berlin", "pfs": "yes"}


@pytest.mark.parametrize(
    ("document", "message"),
    [
        ([], "expected a JSON object"),
        ({"gpu": 1}, "gpu: Extra inputs"),
        ({"devices": [{"uuid": "a"}, {"uuid": "a"}]}, "expected different UUIDs"),
        ({"devices": [{"uuid": "a,b"}]}, "devices.0.uuid"),
        ({"cpu_cores": -1}, "cpu_cores"),
    ],
)
def test_wrong_description_of_a_pool_is_refused(tmp_path, document, message):
    file = tmp_path / "pool.json"
    file.write_text(json.dumps(document), encoding="utf-8")
    with pytest.raises(Refused, match=message):
        DevicePool(None, file)


def test_gpus_without_nvml_are_named_only():
    pool = DevicePool("0,GPU-7")
    assert [item["uuid"] for item in pool.describe()["devices"]] == ["0", "GPU-7"]
    with pytest.raises(Refused, match="nvidia-ml-py"):
        DevicePool("all")


# --- former processes -----------------------------------------------------------------------------


def test_process_is_gone_when_it_ended_and_when_its_number_is_used_again():
    with subprocess.Popen(["sleep", "60"]) as process:
        identity = process_identity(process.pid)
        assert not is_gone(identity)
        boot, namespace, number, started = identity.split("/")
        assert is_gone(f"{boot}/{namespace}/{number}/{int(started) - 1}")
        assert is_gone(f"another boot/{namespace}/{number}/{started}")
        # In another container this host cannot know.
        assert not is_gone(f"{boot}/pid:[1]/{number}/{started}")
        process.send_signal(signal.SIGSTOP)
        assert not is_gone(identity)
        process.kill()
        wait_until(lambda: is_gone(identity))


class Floor:
    """Workers that run the locking program, and what the programs recorded."""

    def __init__(self, database, name, directory):
        self.database, self.name, self.directory = database, name, directory
        self.script = directory / "lock.sh"
        self.script.write_text(LOCKING, encoding="utf-8")
        self.script.chmod(stat.S_IRWXU)

    def worker(self, pool):
        """`helixq work --exec` on the host that a file describes."""
        return ModuleProcess(
            "helixqueue.cli.main",
            *("work", self.name, "--exec", str(self.script), "--pool", str(pool), "--slots", "3"),
            environment=os.environ
            | {
                "HELIX_DSN": self.database.dsn("pool"),
                "HELIX_TENANT": "a",
                "PYTHONPATH": str(ROOT / "src"),
                "LAB_HOST": json.loads(pool.read_text())["host"],
                "LOCKS": str(self.directory),
            },
        )

    def lines(self, name):
        """`ran`: a line per start of the program; `shared`: one for each device it met in use."""
        file = self.directory / name
        return file.read_text(encoding="utf-8").splitlines() if file.exists() else []

    def held(self):
        """Devices of the host with the name of the queue, and whether their lease has ended."""
        return self.database.rows(
            "select device, ended_at is not null from helix.allocation"
            " where host = %s and device is not null",
            self.name,
        )


@pytest.fixture
def floor(database, name, tmp_path):
    return Floor(database, name, tmp_path)


def test_device_of_a_killed_worker_is_handed_out_when_its_program_is_gone(
    helix, name, pool_file, floor
):
    pool = pool_file(device(0), host=name)
    [long] = submit(helix, name, "long", payload={"seconds": 60}, gpus=1)
    with floor.worker(pool) as first:
        wait_until(lambda: helix.state(long) is State.RUNNING)
        wait_until(lambda: floor.lines("ran"))
        helix.cancel(long, reason="test")
        wait_until(lambda: not floor.held())  # the worker ended its program and says so
    [again] = submit(helix, name, "again", payload={"seconds": 60}, gpus=1)
    with floor.worker(pool) as first:
        wait_until(lambda: len(floor.lines("ran")) == 2)
        first.signal(signal.SIGKILL)
        first.wait()
        helix.cancel(again, reason="test")
        [short] = submit(helix, name, "short", payload={"seconds": 0}, gpus=1)
        with floor.worker(pool):
            wait_until(lambda: helix.state(short) is State.COMPLETED)
    assert floor.lines("shared") == []


@pytest.mark.parametrize("grace_seconds", [3600, 0])
def test_device_of_a_frozen_worker_waits_for_it_or_for_the_grace_time(
    helix, name, pool_file, floor, grace_seconds
):
    pool = pool_file(device(0), host=name, grace_seconds=grace_seconds)
    [batch] = submit(helix, name, "s", payload={"seconds": 60}, gpus=1)
    with floor.worker(pool) as frozen:
        wait_until(lambda: floor.lines("ran"))
        frozen.signal(signal.SIGSTOP)
        with floor.worker(pool):
            if grace_seconds:
                wait_until(lambda: floor.held() == [("GPU-0", True)])
                wait_until(lambda: helix.state(batch) is State.PENDING)
                time.sleep(2.5)  # two claims of the other worker
                assert len(floor.lines("ran")) == 1
                frozen.signal(signal.SIGCONT)
            # One of the two gets it.
            wait_until(lambda: len(floor.lines("ran")) > 1)
    assert floor.lines("shared") == []


def test_device_that_a_program_without_worker_uses_is_not_gone(tmp_path):
    former = [FormerAllocation(7, "another boot/x/1/1", "batch", f"GPU-{tmp_path.name}")]
    pool = DevicePool("0")
    assert pool.find_gone(former, ()) == [7]
    environment = os.environ | {"HELIX_DEVICES": f"GPU-x,GPU-{tmp_path.name}"}
    with subprocess.Popen(["sleep", "60"], env=environment) as program:
        wait_until(lambda: pool.find_gone(former, ()) == [])
        program.kill()
    assert pool.find_gone(former, ()) == [7]


# --- all of it at once ----------------------------------------------------------------------------

MODELS = {"Tesla T4": (16.1, 7.5), "NVIDIA A100": (85.9, 8.0), "NVIDIA L4": (24.2, 8.9)}
HOSTS = {
    "one": [device(0), device(1)],
    "two": [device(0, "NVIDIA A100", *MODELS["NVIDIA A100"]), device(1)],
    "three": [device(0, "NVIDIA L4", *MODELS["NVIDIA L4"])],
}
REQUIREMENTS = [
    {"gpus": 1},
    {"gpus": 1, "gpu_vram_gb": 20},
    {"gpus": 1, "gpu_model": ["*T4"]},
    {"gpus": 1, "gpu_cc_min": 8.5},
    {"gpus": 2},
    {"cpu_cores": 1},
]


def is_fit(requires, devices):
    return all(
        device["vram_gb"] >= requires.get("gpu_vram_gb", 0)
        and device["cc"] >= requires.get("gpu_cc_min", 0)
        and ("gpu_model" not in requires or device["model"].endswith("T4"))
        for device in devices
    ) and len(devices) == requires.get("gpus", 0)


@pytest.mark.timeout(7_500 if PROOF else 300)
def test_random_claims_with_kills_and_freezes_never_share_or_misfit(helix, name, pool_file, floor):
    """Three hosts with two workers each. The programs lock a file per device; the ledger agrees."""
    chance = random.Random(name)
    count = 10_000 if PROOF else 60
    pools = {
        host: pool_file(*devices, host=f"{name}-{host}", reserve_seconds=2)
        for host, devices in HOSTS.items()
    }
    wanted = {}
    for n in range(count):
        requires = chance.choice(REQUIREMENTS)
        [receipt] = submit(
            helix, name, f"s{n}", payload={"seconds": chance.choice([0, 0.1, 0.3])}, **requires
        )
        wanted[receipt.batch_id] = requires

    workers = [(host, floor.worker(pools[host])) for host in HOSTS for _ in range(2)]
    done = "select count(*) = %s from helix.work w join helix.queue q on q.id = w.queue"
    done += " where q.name = %s and w.state in ('COMPLETED', 'FAILED')"
    deadline = time.monotonic() + (7_200 if PROOF else 120)
    wait_until(lambda: floor.lines("ran"))
    faults = 0
    try:
        while not floor.database.value(done, count, name):
            assert time.monotonic() < deadline
            place = chance.randrange(len(workers))
            host, worker = workers[place]
            faults += 1
            if faults % 2:
                worker.signal(signal.SIGKILL)
                worker.wait()
                workers[place] = (host, floor.worker(pools[host]))
            else:
                worker.signal(signal.SIGSTOP)
                time.sleep(1.5)  # longer than a lease
                worker.signal(signal.SIGCONT)
            time.sleep(1.0)
    finally:
        for _, worker in workers:
            worker.__exit__()
    assert faults >= 2  # a kill and a freeze
    assert floor.lines("shared") == []
    assert all(helix.history(batch)[-1].to_state is State.COMPLETED for batch in list(wanted)[:60])
    check_ledger(floor.database, name, wanted)
    proven(floor.database)


def check_ledger(database, name, wanted):
    """No two attempts held one device at a time, and each had what its batch asked for."""
    rows = database.rows(
        "select helix.public_id(b.key), h.detail, h.at, h.version, h.batch,"
        " lead(h.at) over (partition by h.batch order by h.version)"
        " from helix.history_of(array(select w.batch from helix.work w"
        "   join helix.queue q on q.id = w.queue where q.name = %s)) h"
        " join helix.batch b on b.id = h.batch order by h.batch, h.version",
        name,
    )
    spans = {}
    attempts = 0
    for batch, detail, at, _, _, ended in rows:
        if detail is None or not detail.startswith("on "):
            continue
        attempts += 1
        host, _, names = detail.removeprefix("on ").partition(": ")
        known = {item["uuid"]: item for item in HOSTS[host.removeprefix(f"{name}-")]}
        devices = [known[uuid] for uuid in names.split(", ")] if names else []
        assert is_fit(wanted[batch], devices), (wanted[batch], detail)
        for item in devices:
            spans.setdefault((host, item["uuid"]), []).append((at, ended))
    assert attempts >= len(wanted)
    for held_spans in spans.values():
        held_spans.sort()
        for (_, ended), (begun, _) in pairwise(held_spans):
            assert ended <= begun


def test_worker_over_http_gets_devices(database, name, pool_file):
    with (
        serving(settings_for(database)) as url,
        HelixClient(url, token=Site(database, url).token()) as helix,
    ):
        [receipt] = submit(helix, name, "s", gpus=1)
        run(helix, name, SHOW, pool_file(device(0)))
        assert cuda(helix.result(receipt))["CUDA_VISIBLE_DEVICES"] == "GPU-0"
