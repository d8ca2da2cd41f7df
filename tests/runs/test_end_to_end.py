"""Runs from their file to their published outputs, with real workers and stores."""

from __future__ import annotations

import itertools
import json
import os
import signal
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path

import pytest

from helixqueue.worker import private_mounts
from tests.support.cli import run_in_process
from tests.support.duties import make_all_due, run_duty
from tests.support.lab import Lab, new_database, wait_until

ROOT = Path(__file__).parents[2]
_numbers = itertools.count(1)
needs_mounts = pytest.mark.skipif(
    private_mounts.problem() is not None, reason="no mount namespaces on this machine"
)


@pytest.fixture(scope="module")
def database(server, template, pooler):
    yield from new_database(server, template, pooler)


class RunSite:
    """A database, its command line, and workers in processes."""

    def __init__(self, database, home):
        self.database, self.home = database, home
        self.queue = f"site{next(_numbers)}"
        self.lab = Lab(database, q=self.queue)

    def environment(self, role="pool"):
        kept = {name: value for name, value in os.environ.items() if name.startswith("AWS_")}
        return kept | {
            "PATH": os.environ["PATH"], "HELIX_DSN": self.database.dsn(role), "HELIX_TENANT": "a",
            "PYTHONPATH": str(ROOT / "src"), "TMPDIR": str(self.home),
        }  # fmt: skip

    def helixq(self, *arguments, role="pool", stdin=b""):
        return run_in_process(arguments, self.environment(role), stdin=stdin)

    def allow(self, uri, *options):
        done = self.helixq("output", "root", uri, "--reason", "test", *options, role="operator")
        assert done.code == 0, done.err

    def start(self, spec, *arguments):
        stdin = json.dumps(spec).encode()
        return self.helixq("run", "start", "-", "--queue", self.queue, *arguments, stdin=stdin)

    @contextmanager
    def worker(self, *options, slots=1):
        command = [sys.executable, "-m", "helixqueue.cli.main", "work", self.queue, "--runs"]
        process = subprocess.Popen(
            [*command, "--slots", str(slots), "--json", *options],
            env=self.environment(),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        try:
            yield process
        finally:
            process.kill()  # also one that is stopped
            process.communicate()

    def work(self, *options):
        """Let a worker do what there is to do."""
        with self.worker("--until-idle", *options) as process:
            out, err = process.communicate(timeout=120)
        assert process.returncode == 0, err
        run_duty(self.lab, "runs")
        make_all_due(self.lab)
        return json.loads(out)

    def wait(self, name, code=0):
        waited = self.helixq("run", "wait", name, "--timeout", "60s")
        assert waited.code == code, (waited.err, self.helixq("run", "datums", name).out)


@pytest.fixture
def site(database, tmp_path):
    made = RunSite(database, tmp_path)
    with made.lab:
        yield made


class Objects:
    """A prefix of the bucket."""

    def __init__(self, bucket):
        import boto3  # noqa: PLC0415 - slow to import

        self._client, self._bucket = boto3.client("s3"), bucket
        self._prefix = f"e2e{next(_numbers)}"
        self.uri = f"s3://{bucket}/{self._prefix}"

    def write(self, name, text):
        key = f"{self._prefix}/{name}"
        self._client.put_object(Bucket=self._bucket, Key=key, Body=text.encode())

    def read(self, folder):
        """The texts of all objects below a folder, by name."""
        prefix = f"{self._prefix}/{folder}/"
        found = self._client.list_objects_v2(Bucket=self._bucket, Prefix=prefix)
        keys = [item["Key"] for item in found.get("Contents", ())]
        return {
            key.removeprefix(prefix): self._client.get_object(Bucket=self._bucket, Key=key)["Body"]
            .read().decode()
            for key in keys if "/.helix" not in key
        }  # fmt: skip


@pytest.fixture
def objects(s3):
    return Objects(s3)


COUNT_WORDS = """
for file in /pfs/texts/*; do
  tr -cs '[:alpha:]' '\\n' < "$file" | sort | uniq -c | sort -rn > "/pfs/out/$(basename "$file")"
done
"""
WORDS = {
    "pipeline": {"name": "word-frequencies"},
    "transform": {"cmd": ["sh", "-ec", COUNT_WORDS], "image": "example/word-frequencies"},
    "parallelism_spec": {"constant": 2},
    "resource_requests": {"memory": "100Mi", "cpu": 0.2},
    "datum_tries": 3,
    "input": {"atom": {"URI": "s3://lab/{}/texts/", "repo": "texts", "glob": "/*"}},
    "egress": {"URI": "s3://lab/{}/counts/"},
}


@needs_mounts
def test_word_frequencies_of_falconeri_run_on_s3_unchanged(site, objects):
    objects.write("texts/dickens.txt", "it was the best it was")
    objects.write("texts/austen.txt", "truth truth")
    site.allow(objects.uri)
    prefix = objects.uri.removeprefix("s3://lab/")
    spec = json.loads(json.dumps(WORDS).replace("{}", prefix))
    first = site.start(spec)
    assert first.code == 0, first.err
    assert site.work()["completed"] == 2
    site.wait(first.out.strip())
    counted = objects.read("counts")
    assert counted.keys() == {"austen.txt", "dickens.txt"}
    assert counted["austen.txt"].split() == ["2", "truth"]

    again = site.start(spec, "--egress", f"{objects.uri}/again")
    assert again.code == 0, again.err
    assert site.work()["completed"] == 2
    site.wait(again.out.strip())
    assert objects.read("again") == counted == objects.read("counts")

    refused = site.start(spec)
    assert refused.code == 5
    assert "dickens.txt" in refused.err
    assert first.out.strip() in refused.err
    assert "--egress" in refused.err


EXTRACT = """
test -f /pfs/categories/list.txt
test "$VARNAME" = value
test "$AWS_ACCESS_KEY_ID" = of-the-secret
cp /ssl/ca.pem /scratch/ca.pem
for book in /pfs/books/*; do
  cat /pfs/categories/list.txt "$book" > "/pfs/out/$(basename "$book")"
done
"""
GENERAL = {
    "pipeline": {"name": "book_words"},
    "transform": {
        "cmd": ["sh", "-ec", EXTRACT],
        "image": "somerepo/my_python_nlp",
        "image_pull_policy": "IfNotPresent",
        "env": {"VARNAME": "value"},
        "secrets": [
            {"name": "ssl", "mount_path": "/ssl"},
            {"name": "s3", "key": "AWS_ACCESS_KEY_ID", "env_var": "AWS_ACCESS_KEY_ID"},
        ],
        "service_account": "example-service",
    },
    "parallelism_spec": {"constant": 10},
    "resource_requests": {"memory": "500Mi", "cpu": 1.2},
    "datum_tries": 3,
    "job_timeout": "5m",
    "node_selector": {"node_type": "falconeri_worker"},
    "input": {
        "cross": [
            {"pfs": {"URI": "gs://example/categories/", "repo": "categories", "glob": "/"}},
            {"union": [
                {"atom": {"URI": "gs://example/books/", "repo": "books", "glob": "/*"}},
                {"atom": {"URI": "gs://example/more-books", "repo": "books", "glob": "/*"}},
            ]},
        ]
    },
    "egress": {"URI": "gs://example/words/"},
}  # fmt: skip
FREE = '{"cpu_cores": 2, "ram_gb": 2, "labels": {"node_type": "falconeri_worker"}}'


@needs_mounts
def test_general_example_of_falconeri_runs_where_its_bucket_is_mapped(site, objects):
    for name in ("categories/list.txt", "books/a.txt", "books/b.txt", "more-books/c.txt"):
        objects.write(name, f"{name}\n")
    site.allow("gs://example", "--stored-at", objects.uri)
    secrets = site.home / "secrets.yml"
    secrets.write_text("ssl: {ca.pem: certificate}\ns3: {AWS_ACCESS_KEY_ID: of-the-secret}\n")
    secrets.chmod(0o600)
    started = site.start(GENERAL)
    assert started.code == 0, started.err
    assert site.work("--free", FREE, "--secrets", str(secrets))["completed"] == 3
    site.wait(started.out.strip())
    assert objects.read("words") == {
        f"{name}.txt": f"categories/list.txt\n{folder}/{name}.txt\n"
        for folder, name in (("books", "a"), ("books", "b"), ("more-books", "c"))
    }
    assert not Path("/pfs").exists() or not any(Path("/pfs").iterdir())

    assert site.start(GENERAL, "--egress", "gs://example/words-2").code == 0
    refused = site.start(GENERAL)
    assert refused.code == 5
    assert "a.txt" in refused.err


def test_two_datums_that_write_one_name_fail_for_good_naming_both(site):
    inputs = site.home / "inputs"
    inputs.mkdir()
    for name in ("a", "b"):
        (inputs / name).write_text(name)
    site.allow(f"file://{site.home}")
    spec = {
        "pipeline": {"name": "clobber"}, "datum_tries": 3, "pfs": False,
        "transform": {"cmd": ["sh", "-c", 'echo "$HELIX_IDENTITY" > "$HELIX_OUT/same"']},
        "input": {"atom": {"URI": f"file://{inputs}", "repo": "r", "glob": "/*"}},
        "egress": {"URI": f"file://{site.home}/out"},
    }  # fmt: skip
    name = site.start(spec).out.strip()
    done = site.work()
    assert (done["completed"], done["failed"]) == (1, 1)  # the second was not tried again
    site.wait(name, code=1)
    log = site.helixq("run", "logs", name).out
    assert "r/a" in log
    assert "r/b" in log


BASECALL = """
touch "{home}/started-$FALCONERI_POD_NAME"
while [ ! -e {home}/go ]; do sleep 0.05; done
for read in "$HELIX_IN"/pod5/*; do
  echo "$(cat "$read") attempt $HELIX_ATTEMPT" > "$HELIX_OUT/$(basename "$read").fastq"
done
"""


def test_killed_and_frozen_workers_leave_exactly_the_files_of_granted_attempts(site):
    """A worker is killed and one is frozen while they compute; the frozen one continues later."""
    inputs, names = site.home / "pod5", [f"sample-{number}" for number in range(8)]
    inputs.mkdir()
    for name in names:
        (inputs / name).write_text(name)
    site.allow(f"file://{site.home}")
    site.lab.queue(lease_seconds=3, backoff_seconds=0)
    spec = {
        "pipeline": {"name": "basecall"}, "datum_tries": 5, "pfs": False,
        "transform": {"cmd": ["sh", "-ec", BASECALL.format(home=site.home)]},
        "input": {"atom": {"URI": f"file://{inputs}", "repo": "pod5", "glob": "/*"}},
        "egress": {"URI": f"file://{site.home}/fastq"},
    }  # fmt: skip
    run = site.start(spec).out.strip()

    with site.worker("--name", "killed", slots=2) as killed:
        wait_until(lambda: list(site.home.glob("started-killed-*")))
        killed.kill()
    with site.worker("--name", "frozen", slots=2) as frozen:
        wait_until(lambda: list(site.home.glob("started-frozen-*")))
        frozen.send_signal(signal.SIGSTOP)
        (site.home / "go").touch()
        with site.worker("--name", "steady", slots=2):
            site.wait(run)
            frozen.send_signal(signal.SIGCONT)
        frozen.send_signal(signal.SIGTERM)
        frozen.wait(60)
    rows = site.helixq("run", "datums", run).lines
    shown = {row[0].removeprefix("pod5/"): int(row[2]) for row in rows}
    assert shown.keys() == set(names)
    assert max(shown.values()) > 1, "no attempt was lost: nothing was tried"
    found = {path.name: path.read_text() for path in (site.home / "fastq").glob("*.fastq")}
    assert found == {f"{name}.fastq": f"{name} attempt {shown[name]}\n" for name in names}


def test_a_worker_has_one_kind_of_work(site):
    for options in (["--runs", "--exec", "true"], ["--secrets", "x", "--exec", "true"], []):
        refused = site.helixq("work", site.queue, *options)
        assert (refused.code, "expected" in refused.err) == (2, True), refused.err
