"""Any program as a worker: what it is given, how it ends, what is kept of what it said."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time

import pytest

from helixqueue import NoResult, Queue, State
from tests.support.faults import FaultProxy
from tests.support.lab import wait_until
from tests.support.shift import proven
from tests.worker.conftest import ROOT, lease_end


def started(database, name, command, *options, dsn=None):
    environment = os.environ | {
        "HELIX_DSN": dsn or database.dsn("pool"),
        "HELIX_TENANT": "a",
        "PYTHONPATH": str(ROOT / "src"),
    }
    return subprocess.Popen(
        [
            *(sys.executable, "-m", "helixqueue.cli.main", "work", name, "--json"),
            *("--exec", command, *options),
        ],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def ran(database, name, command, *options):
    """`helixq work NAME --exec COMMAND --until-idle`; what it says of itself."""
    with started(database, name, command, "--until-idle", *options) as process:
        out, err = process.communicate(timeout=60)
    assert process.returncode == 0, err
    return json.loads(out)


LAB = """
import os
from helixqueue import HelixQueue, Queue
app = HelixQueue(os.environ["LAB_DSN"], tenant="a")
queue = Queue("{name}")

@queue.handler
def run(lease):
    return {{"attempt": lease.attempt}}
"""


def test_command_works_the_queues_and_client_of_a_module(helix, database, name, tmp_path):
    (tmp_path / "lab.py").write_text(LAB.format(name=name), encoding="utf-8")
    submitted = helix.submit(Queue(name), identity="s", payload={})
    done = subprocess.run(
        [
            *(sys.executable, "-m", "helixqueue.cli.main", "work", name, "--json"),
            *("--app", "lab:app", "--until-idle"),
        ],
        env=os.environ | {"LAB_DSN": database.dsn("pool"), "PYTHONPATH": str(ROOT / "src")},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["completed"] == 1
    assert helix.result(submitted.receipt) == {"attempt": 1}


def test_program_receives_payload_and_ids_but_not_the_token(helix, database, name):
    queue = Queue(name, max_attempts=1)
    submitted = helix.submit(queue, identity="Sämple-1", payload={"pod5": "a.pod5"}, revision="2")
    code = (
        "import json,os;e=os.environ;p=json.load(open(e['HELIX_PAYLOAD']));"
        "p['env']={k:v for k,v in e.items() if k.startswith('HELIX_')};"
        "json.dump(p,open(e['HELIX_RESULT'],'w'))"
    )
    assert ran(database, name, f'{sys.executable} -c "{code}"')["completed"] == 1
    result = helix.result(submitted.receipt)
    assert result["pod5"] == "a.pod5"
    answer = result["env"]
    assert answer["HELIX_BATCH"] == str(submitted.receipt.batch_id)
    assert answer["HELIX_IDEMPOTENCY_KEY"] == submitted.receipt.key
    assert (answer["HELIX_ATTEMPT"], answer["HELIX_IDENTITY"]) == ("1", "Sämple-1")
    assert "HELIX_DSN" not in answer
    assert not any("TOKEN" in key or "NONCE" in key for key in answer)


ENDS = {
    "exit 3": ("executor", "exit code 3"),
    "kill -SEGV $$": ("executor", "SIGSEGV"),
    "kill -KILL $$": ("out of memory", "SIGKILL"),
    "kill -TERM $$": ("system", "SIGTERM"),
    "echo {broken > $HELIX_RESULT": ("result", "not valid JSON"),
    r"printf 'a\0b\377' >&2; exit 1": ("executor", "a\\0b\\xff"),
    "sleep 30": ("timeout", "longer than 6 s"),
}


def test_exit_status_of_a_program_decides_its_failure_class(helix, database, name):
    queue = Queue(name, max_attempts=1)
    made = {
        script: helix.submit(queue, identity=f"s{n}", payload={"script": script}).receipt
        for n, script in enumerate(ENDS)
    }
    # Out of its JSON, without an interpreter that may take seconds to start on a busy machine.
    run = r"""sh -c "$(sed 's/^{"script":"//; s/"}$//; s/\\\\/\\/g' "$HELIX_PAYLOAD")" """
    done = ran(database, name, f"sh -c '{_quoted(run)}'", "--time-limit", "6", "--slots", "7")
    assert done["failed"] == len(ENDS)
    for script, (failure, words) in ENDS.items():
        with pytest.raises(NoResult) as ended:
            helix.result(made[script])
        assert ended.value.failure == failure, script
        assert words in str(ended.value), script
    proven(database)


def _quoted(text):
    return text.replace("'", "'\"'\"'")


def test_unreadable_payload_fails_permanently(helix, database, name):
    queue = Queue(name, max_attempts=5, backoff=0)
    submitted = helix.submit(queue, identity="s", payload={})
    assert ran(database, name, "sh -c 'exit 65'")["failed"] == 1
    assert helix.state(submitted.receipt) is State.FAILED


def test_captured_output_above_its_limit_keeps_head_and_tail(helix, database, name, tmp_path):
    queue = Queue(name, max_attempts=1)
    submitted = helix.submit(queue, identity="s", payload={})
    script = "echo first; yes flood | head -c 60000000; echo last; exit 1"
    ran(database, name, f"sh -c '{script}'", "--logs", str(tmp_path))
    with pytest.raises(NoResult, match=r"(?s)first.*flood.*last"):
        helix.result(submitted.receipt)
    kept = [file for file in tmp_path.rglob("*") if file.is_file()]
    assert 33_000_000 < sum(file.stat().st_size for file in kept) < 52_000_000


def test_cancelled_batch_kills_its_whole_process_group(helix, database, name, tmp_path):
    queue = Queue(name, lease=1)
    submitted = helix.submit(queue, identity="s", payload={})
    file = tmp_path / "pids"
    command = f"sh -c 'sleep 60 & echo $! > {file}; wait'"
    with started(database, name, command) as process:
        pid = int(wait_until(lambda: file.exists() and file.read_text().strip()))
        helix.cancel(submitted.receipt, reason="not needed")
        wait_until(lambda: not alive(pid))
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 0
        process.communicate()


def test_process_group_is_killed_before_the_lease_of_an_unreachable_worker_expires(
    helix, database, name, tmp_path_factory
):
    """Also a program that does not listen to polite signals.

    Its last sign of life is compared with the end of the lease: this test may look late.
    """
    directory = tmp_path_factory.mktemp("f")
    queue = Queue(name, lease=6, max_attempts=1)
    submitted = helix.submit(queue, identity="s", payload={})
    file = directory / "pids"
    sign = directory / "sign"
    lives = f"(while touch {sign}; do sleep 0.05; done) & echo $! > {file}; wait"
    command = f"sh -c 'trap \"\" TERM; {lives}'"
    with (
        FaultProxy(database.dsn("pool"), directory) as faults,
        started(database, name, command, dsn=faults.dsn) as process,
    ):
        pid = int(wait_until(lambda: file.exists() and file.read_text().strip()))
        faults.freeze()
        wait_until(lambda: not alive(pid))
        assert sign.stat().st_mtime < lease_end(database, submitted.receipt.batch_id)
        assert helix.state(submitted.receipt) is State.RUNNING  # nothing was written
        process.kill()
        faults.thaw()
        process.communicate()


def test_program_exits_with_its_killed_worker(helix, database, name, tmp_path):
    queue = Queue(name)
    helix.submit(queue, identity="s", payload={})
    file = tmp_path / "pids"
    with started(database, name, f"sh -c 'echo $$ > {file}; exec sleep 60'") as process:
        pid = int(wait_until(lambda: file.exists() and file.read_text().strip()))
        time.sleep(0.1)
        process.kill()
        process.communicate()
    wait_until(lambda: not alive(pid))


def alive(pid):
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8") as stat:  # noqa: PTH123
            return stat.read().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_program_that_cannot_be_started_is_a_system_failure(helix, database, name, tmp_path):
    script = tmp_path / "script"
    script.write_text("#!/no/such/interpreter\n", encoding="utf-8")
    script.chmod(0o755)
    submitted = helix.submit(Queue(name, max_attempts=1), identity="s", payload={})
    ran(database, name, str(script))
    with pytest.raises(NoResult) as ended:
        helix.result(submitted.receipt)
    assert ended.value.failure == "system"
