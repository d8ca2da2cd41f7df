"""What the command of a run gets on a worker: inputs, /pfs, environment, secrets, limits."""

from __future__ import annotations

import asyncio
import hashlib
import itertools
import json
import os
import subprocess
import sys
import uuid
from datetime import UTC, datetime
from pathlib import Path

import pytest

from helixqueue.errors import GiveUp, Refused
from helixqueue.outputs.scratch import survey
from helixqueue.records.lease import LeaseRow, Token
from helixqueue.runs.secret_file import MASK, resolve
from helixqueue.runs.spec import SecretUse, load_spec
from helixqueue.states import State
from helixqueue.worker import private_mounts
from helixqueue.worker.attempt import Attempt
from helixqueue.worker.outcomes import AttemptFailure
from helixqueue.worker.run_program import RunProgram, offered
from tests.support.lab import wait_until

_runs = itertools.count(1)
needs_mounts = pytest.mark.skipif(
    private_mounts.problem() is not None, reason="no mount namespaces on this machine"
)


def children():
    """The processes that this thread started."""
    return set(Path(f"/proc/self/task/{os.getpid()}/children").read_text().split())


class Groups:
    """The worker as the program sees it: it is given the process group."""

    worker = "worker-1"
    group = None

    def set_process_group(self, attempt, group):  # noqa: ARG002
        self.group = group or self.group


@pytest.fixture
def run_datum(words, tmp_path):
    """Runs one datum; returns its result and its output files."""

    def run(
        script, *, inputs=(), pfs=True, during=None, starting=None, transform=(), secrets=None,
        of_run=True, **members,
    ):  # fmt: skip
        tree = dict(transform) | {"cmd": ["sh", "-ec", script]}
        text = json.dumps(words | {"transform": tree, "pfs": pfs} | members)
        spec = load_spec(text).as_run()
        payload = {"datum": "d", "inputs": [{"uri": uri, "path": path} for uri, path in inputs]}
        row = LeaseRow(
            1, Token(1, 2, 3), b"k" * 32, "a", "runs", "run-1\x1fd", "", json.dumps(payload), 2,
            State.RUNNING, datetime.now(UTC), 30.0, run=next(_runs) if of_run else None,
        )  # fmt: skip
        attempt, groups = Attempt(row, 0.0), Groups()
        program = RunProgram(lambda _run: ("run-1", spec), secrets)

        async def execute():
            task = asyncio.create_task(program.run(attempt, None, groups))
            if starting is not None:
                before = children()
                while children() == before:  # noqa: ASYNC110 - a step of the loop at a time
                    await asyncio.sleep(0)
                starting()  # while the loop stands still
                task.cancel()
            if during is not None:
                await asyncio.to_thread(during, groups)
                task.cancel()
            return await task

        try:
            result = asyncio.run(execute())
        finally:
            if attempt.output_directory is not None:
                directory = tmp_path / f"out{row.run}"
                attempt.output_directory.rename(directory)
        files = {file.path: Path(file.source).read_text() for file in survey(directory)}
        return result, files

    return run


@pytest.fixture
def inputs(tmp_path):
    root = tmp_path / "inputs"
    for name in ("a.txt", "dir/b", "dir/deep/c"):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(f"content of {name}\n")
    uri = f"file://{root}"
    return [(f"{uri}/a.txt", "texts/a.txt"), (f"{uri}/dir/", "texts/dir/")]


@needs_mounts
def test_command_reads_inputs_below_pfs_and_writes_outputs_there(run_datum, inputs):
    result, files = run_datum(
        "cat /pfs/texts/a.txt /pfs/texts/dir/b > /pfs/out/joined; touch /scratch/x\n"
        "mkdir /pfs/out/d; cp /pfs/texts/dir/deep/c /pfs/out/d; echo said; echo error >&2",
        inputs=inputs,
    )
    assert files == {
        "joined": "content of a.txt\ncontent of dir/b\n", "d/c": "content of dir/deep/c\n",
    }  # fmt: skip
    assert result == {"log": "said\n\nerror\n"}


@needs_mounts
def test_directories_of_the_machine_are_not_touched(run_datum):
    before = {path: Path(path).exists() for path in ("/pfs", "/scratch", "/ssl")}
    mounts = Path("/proc/self/mountinfo").read_text()
    run_datum("touch /pfs/x /scratch/y /z; mkdir /new")
    assert {path: Path(path).exists() for path in before} == before
    assert not Path("/z").exists()
    assert not Path("/new").exists()
    assert Path("/proc/self/mountinfo").read_text() == mounts


def test_command_without_pfs_finds_the_same_by_environment(run_datum, inputs):
    _, files = run_datum(
        'cp "$HELIX_IN/texts/a.txt" "$HELIX_OUT"; touch "$HELIX_SCRATCH/x"; test ! -e /pfs',
        inputs=inputs, pfs=False,
    )  # fmt: skip
    assert files == {"a.txt": "content of a.txt\n"}


def test_input_on_s3_is_fetched(run_datum, s3):
    import boto3  # noqa: PLC0415 - slow to import

    name = f"fetch-{uuid.uuid4()}/a [1]*?#%41 \u00e9.bin"
    content = os.urandom(9 * 1024 * 1024)  # more than one part
    boto3.client("s3").put_object(Bucket=s3, Key=name, Body=content)
    result, _ = run_datum(
        'sha256sum "$HELIX_IN/r/x" | cut -d" " -f1',
        inputs=[(f"s3://{s3}/{name}", "r/x")], pfs=False,
    )  # fmt: skip
    assert result == {"log": hashlib.sha256(content).hexdigest() + "\n"}


@pytest.mark.parametrize(
    ("uri", "message"),
    [
        ("file:///no/such/file", "input file:///no/such/file does not exist"),
        ("file:///no/such/", "input file:///no/such/ has no files"),
        ("ftp://host/x", "expected a destination with"),
    ],
)
def test_input_that_is_gone_fails_the_attempt_with_its_name(run_datum, uri, message):
    with pytest.raises(AttemptFailure, match=message) as failed:
        run_datum("true", inputs=[(uri, "r/x")], pfs=False)
    assert failed.value.failure == "inputs"
    assert not failed.value.permanent


def test_input_path_outside_of_the_directory_is_refused(run_datum, inputs):
    [(uri, _), _] = inputs
    for path in ("../x", "/etc/x", "r/../../x"):
        with pytest.raises(AttemptFailure, match="expected a path below /pfs"):
            run_datum("true", inputs=[(uri, path)], pfs=False)


def test_environment_is_an_allow_list_with_the_ids_of_the_datum(run_datum, monkeypatch):
    for name in ("AWS_SECRET_ACCESS_KEY", "HELIX_DSN", "MY_TOKEN"):
        monkeypatch.setenv(name, "not for the command")
    monkeypatch.setenv("LC_ALL", "C.UTF-8")
    code = "import json,os;json.dump(dict(os.environ),open(os.environ['HELIX_RESULT'],'w'))"
    found, _ = run_datum(
        f'exec {sys.executable} -c "{code}"', pfs=False, transform={"env": {"VARNAME": "value"}}
    )
    assert "not for the command" not in found.values()
    assert found["VARNAME"] == "value"
    assert found["LC_ALL"] == "C.UTF-8"
    assert (found["HELIX_RUN"], found["HELIX_ATTEMPT"]) == ("run-1", "2")
    assert found["FALCONERI_POD_NAME"] == "worker-1"
    assert found["FALCONERI_NODE_NAME"]
    assert not any("TOKEN" in name for name in found)


def secret_file(tmp_path, mode=0o600):
    path = tmp_path / "secrets.yml"
    path.write_text("s3: {KEY: hunter-two}\nssl: {tls.crt: 'line one\n\n  line two'}\n")
    path.chmod(mode)
    return path


SECRETS = [
    {"name": "s3", "key": "KEY", "env_var": "S3_KEY"},
    {"name": "ssl", "mount_path": "/ssl/deep"},
    {"name": "none", "key": "x", "env_var": "X", "optional": True},
]


@needs_mounts
def test_secrets_reach_the_command_and_no_report(run_datum, tmp_path):
    path = secret_file(tmp_path)
    script = 'test "$S3_KEY" = hunter-two; cat /ssl/deep/tls.crt; test -z "$X"; env'
    result, _ = run_datum(script, transform={"secrets": SECRETS}, secrets=path)
    assert MASK in result["log"]
    assert "hunter-two" not in str(result)
    assert "line one" not in str(result)
    with pytest.raises(AttemptFailure, match=r"exit code 3") as failed:
        run_datum("env >&2; exit 3", transform={"secrets": SECRETS}, secrets=path)
    assert "hunter-two" not in str(failed.value)


def test_secret_as_files_needs_pfs(run_datum, tmp_path):
    with pytest.raises(GiveUp, match="mount_path needs /pfs"):
        run_datum("true", transform={"secrets": SECRETS}, secrets=secret_file(tmp_path), pfs=False)


@pytest.mark.parametrize(
    ("content", "mode", "message"),
    [
        ("s3: {OTHER: x}", 0o600, "expected the secret s3 with the key KEY"),
        ("s3: {KEY: hunter-two}", 0o640, "chmod 600"),
        ("s3: {KEY: 5}", 0o600, "expected texts by key"),
        ("s3: {KEY: 'hunter-two}", 0o600, "cannot be read"),
        ("s3: {../x: hunter-two}", 0o600, "expected texts by key"),
    ],
)
def test_secret_that_is_missing_or_exposed_is_refused_without_its_value(
    tmp_path, content, mode, message
):
    path = tmp_path / "secrets.yml"
    path.write_text(content)
    path.chmod(mode)
    with pytest.raises(Refused, match=message) as refused:
        resolve([SecretUse(name="s3", key="KEY", env_var="X")], path)
    assert "hunter" not in str(refused.value)


def test_secrets_are_read_from_a_directory_as_kubernetes_mounts_them(tmp_path):
    data = tmp_path / "s3" / "..2026"
    data.mkdir(parents=True)
    (data / "KEY").write_text("hunter-two")
    (data / "KEY").chmod(0o400)
    (tmp_path / "s3" / "..data").symlink_to("..2026")
    (tmp_path / "s3" / "KEY").symlink_to("..data/KEY")
    use = [SecretUse(name="s3", key="KEY", env_var="X")]
    assert resolve(use, tmp_path).variables == {"X": "hunter-two"}
    (data / "KEY").chmod(0o444)
    with pytest.raises(Refused, match="chmod o="):
        resolve(use, tmp_path)


def test_batch_of_no_run_is_given_up(run_datum):
    with pytest.raises(GiveUp, match="expected a batch of a run"):
        run_datum("true", of_run=False)


def test_run_with_secrets_needs_a_file_of_secrets():
    with pytest.raises(Refused, match="--secrets FILE"):
        resolve([SecretUse(name="s3", key="KEY", env_var="X")], None)


def test_stdin_and_working_directory_are_those_of_the_spec(run_datum, tmp_path):
    for pfs in {False, private_mounts.problem() is None}:
        result, _ = run_datum(
            "pwd; cat", pfs=pfs, transform={"stdin": ["a", "b"], "working_dir": str(tmp_path)}
        )
        assert result == {"log": f"{tmp_path}\na\nb\n"}


def test_datum_beyond_its_time_limit_is_killed(run_datum, tmp_path):
    file, pfs = tmp_path / "pid", private_mounts.problem() is None
    with pytest.raises(AttemptFailure, match="longer than 3s") as failed:
        run_datum(f"echo $$ > {file}; exec sleep 60", pfs=pfs, datum_timeout="3s")
    assert failed.value.failure == "timeout"
    assert not Path(f"/proc/{file.read_text().strip()}").exists()


@pytest.mark.parametrize("pfs", [False, pytest.param(True, marks=needs_mounts)])
def test_cancelled_datum_loses_its_whole_process_group(run_datum, tmp_path, pfs):
    file = tmp_path / "pid"

    def wait(groups):
        wait_until(lambda: file.exists() and file.read_text().strip() and groups.group)

    with pytest.raises(asyncio.CancelledError):
        run_datum(f"sleep 60 & echo $! > {file}; wait", pfs=pfs, during=wait)
    wait_until(lambda: not Path(f"/proc/{file.read_text().strip()}").exists())


def test_datum_cancelled_while_its_command_starts_leaves_no_process(run_datum, tmp_path):
    """The command runs before the worker has the number of its group."""
    file = tmp_path / "pid"

    def wait():
        wait_until(lambda: file.exists() and file.read_text().strip())

    with pytest.raises(asyncio.CancelledError):
        run_datum(f"sleep 60 & echo $! > {file}; wait", pfs=False, starting=wait)
    wait_until(lambda: not Path(f"/proc/{file.read_text().strip()}").exists())


@pytest.mark.parametrize(
    ("script", "failure", "permanent"),
    [
        ("exit 7", "executor", False),
        ("exit 65", "executor", True),
        ("kill -KILL $$", "out of memory", False),
    ],
)
def test_exit_status_decides_the_failure(run_datum, script, failure, permanent):
    with pytest.raises(AttemptFailure) as failed:
        run_datum(f"echo why >&2; {script}", pfs=False)
    assert (failed.value.failure, failed.value.permanent) == (failure, permanent)
    assert "why" in str(failed.value)


@needs_mounts
def test_secret_below_a_directory_of_the_machine_is_not_created_there(run_datum, tmp_path):
    secrets = [{"name": "ssl", "mount_path": "/etc/helix-no-such-directory"}]
    with pytest.raises(AttemptFailure, match="expected a directory of this machine"):
        run_datum("true", transform={"secrets": secrets}, secrets=secret_file(tmp_path))
    assert not Path("/etc/helix-no-such-directory").exists()


def test_attempt_leaves_no_directory_behind(run_datum, inputs, tmp_path, monkeypatch):
    home = tmp_path / "tmp"
    home.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(home))
    run_datum("mkdir $HELIX_SCRATCH/x; chmod 500 $HELIX_SCRATCH/x", inputs=inputs, pfs=False)
    with pytest.raises(AttemptFailure):
        run_datum("exit 1", inputs=inputs, pfs=False)
    assert list(home.glob("helix-run-*")) == []


@needs_mounts
def test_worker_without_the_privilege_to_mount_uses_a_user_namespace():
    code = "from helixqueue.worker.private_mounts import problem; print(problem())"
    less = [] if os.geteuid() else ["setpriv", "--bounding-set=-sys_admin", "--inh-caps=-sys_admin"]
    done = subprocess.run(
        [*less, sys.executable, "-c", code], capture_output=True, text=True, check=False
    )
    assert done.stdout == "None\n", done.stderr


NOT_ALLOWED = (
    "echo 0 > /proc/sys/user/max_user_namespaces"
    ' && exec setpriv --bounding-set=-sys_admin --inh-caps=-sys_admin "$0" -c "$1"'
)


@needs_mounts
def test_machine_without_namespaces_is_reported_by_doctor_and_not_offered():
    code = (
        "from helixqueue.operate.doctor import _mount_namespaces as examine\n"
        "from helixqueue.worker.run_program import offered\n"
        "found = examine(None)\n"
        "print(found.verdict, found.found, '--no-pfs' in found.remedy, offered({}, 1))"
    )
    in_user_namespace = ["unshare", "--user", "--map-root-user", "sh", "-c", NOT_ALLOWED]
    done = subprocess.run(
        [*in_user_namespace, sys.executable, code], capture_output=True, text=True, check=False
    )
    assert done.stdout.startswith("warn mount namespaces are not allowed here"), done.stderr
    assert done.stdout.endswith(" True {}\n")
    assert "runs that need it wait" in done.stderr


@needs_mounts
def test_machine_with_namespaces_offers_pfs_and_its_share_of_memory():
    free = offered(None, 2)
    assert free["labels"] == {"helix_pfs": "yes"}
    assert free["cpu_cores"] == (os.cpu_count() or 1) / 2
    assert offered({"gpus": 1, "labels": {"a": "b"}}, 1) == {
        "gpus": 1, "labels": {"a": "b", "helix_pfs": "yes"},
    }  # fmt: skip


@needs_mounts
def test_mounts_of_a_command_do_not_reach_a_machine_that_shares_its_mounts():
    code = (
        "from helixqueue.worker.private_mounts import problem\n"
        "def mounts(): return open('/proc/self/mountinfo').read()\n"
        "before = mounts()\n"
        "print(problem(), mounts() == before)"
    )
    shared = ["unshare", "--user", "--map-root-user", "--mount", "--propagation", "shared"]
    done = subprocess.run(
        [*shared, sys.executable, "-c", code], capture_output=True, text=True, check=False
    )
    assert done.stdout == "None True\n", done.stderr
