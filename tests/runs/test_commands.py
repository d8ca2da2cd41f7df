"""`helixq run`: one key per command, exit codes, counts, logs and refusals."""

from __future__ import annotations

import itertools
import json
import os
import re

import pytest

from helixqueue import HelixQueue
from helixqueue.runs.spec import load_spec
from tests.support.cli import run_in_process
from tests.support.duties import run_duty
from tests.support.lab import Lab, new_database
from tests.support.service import Site, serving, settings_for

_numbers = itertools.count(1)


@pytest.fixture(scope="module")
def database(server, template, pooler):
    yield from new_database(server, template, pooler)


class Words:
    """A spec over files of a directory, the command line, and a worker's connection."""

    def __init__(self, database, directory):
        self.database, self.directory = database, directory
        self.queue = f"words{next(_numbers)}"
        self.lab = Lab(database, q=self.queue)
        self.lab.queue(backoff_seconds=0)
        (directory / "books").mkdir()
        self.root = f"file://{directory}"
        self.helixq("output", "root", self.root, "--reason", "test", role="operator")

    def helixq(self, *arguments, role="pool", stdin=b""):
        environment = {
            "PATH": os.environ["PATH"], "HELIX_DSN": self.database.dsn(role), "HELIX_TENANT": "a",
        }  # fmt: skip
        return run_in_process(arguments, environment, stdin=stdin)

    def books(self, *names):
        for name in names:
            (self.directory / "books" / name).write_text(name)
        return self

    def spec(self, **changes):
        return {
            "pipeline": {"name": "word_counts"}, "transform": {"cmd": ["wc", "-w"]},
            "input": {"atom": {"URI": f"{self.root}/books", "repo": "books", "glob": "/*"}},
            "egress": {"URI": f"{self.root}/out"}, "queue": self.queue, "pfs": False, **changes,
        }  # fmt: skip

    def start(self, *arguments, spec=None):
        stdin = json.dumps(spec or self.spec()).encode()
        return self.helixq("run", "start", "-", *arguments, stdin=stdin)

    def end(self, **failures):
        """Complete every datum, or fail it with the class given for its name."""
        while leases := self.lab.claim(9):
            for lease in leases:
                name = lease.identity.partition("\x1f")[2]
                if name in failures:
                    self.lab.fail(lease, failure=failures[name], detail=f"{name} is bad")
                else:
                    self.lab.complete(lease, result='{"log":"7 words\\n"}')
        for _ in range(3):
            run_duty(self.lab, "runs")


@pytest.fixture
def words(database, tmp_path):
    made = Words(database, tmp_path)
    with made.lab:
        yield made


def test_run_is_started_shown_and_waited_for(words):
    started = words.books("a.txt", "b.txt").start()
    assert started.code == 0, started.err
    name = started.out.strip()
    assert name.startswith("word-counts-")
    assert words.helixq("run", "wait", name, "--timeout", "1s").code == 12
    words.end()
    waited = words.helixq("run", "wait", name)
    assert (waited.code, waited.out) == (0, "done\n")
    shown = words.helixq("run", "show", name, "--json").json
    assert (shown["datums"], shown["completed"], shown["state"]) == (2, 2, "done")
    assert json.loads(shown["received"]) == words.spec()
    assert words.helixq("run", "logs", name, "books/a.txt").out == "7 words\n"
    assert [line[0] for line in words.helixq("run", "datums", name).lines] == [
        "books/b.txt",
        "books/a.txt",
    ]
    assert name in words.helixq("run", "list").out


def test_spec_is_stored_as_received_and_as_run(words):
    spec = words.books("a.txt").spec(datum_tries=3, transform={"cmd": ["wc"], "env": {"A": "b"}})
    name = words.start("--egress", f"{words.root}/else", spec=spec).out.strip()
    shown = words.helixq("run", "show", name, "--json").json
    assert json.loads(shown["received"]) == spec
    spec["egress"]["URI"] = f"{words.root}/else"
    assert load_spec(shown["spec"]) == load_spec(json.dumps(spec))
    assert load_spec(shown["spec"]).as_run() == shown["spec"]


def test_same_key_is_the_same_run_and_each_command_makes_its_own(words):
    words.books("a.txt")
    first, again = words.start("--key", "mine"), words.start("--key", "mine")
    assert (first.code, first.out) == (again.code, again.out) == (0, first.out)
    assert words.start("--egress", f"{words.root}/else").out != first.out
    other = words.start("--key", "mine", spec=words.spec(datum_tries=2))
    assert other.code == 5
    assert "the spec" in other.err


def test_failed_run_names_its_causes_and_a_retry_completes_it(words):
    name = words.books("a.txt", "b.txt").start().out.strip()
    words.end(**{"books/b.txt": "exit 3"})
    waited = words.helixq("run", "wait", name)
    assert (waited.code, waited.out) == (1, "failed\n")
    assert "1 exit 3" in words.helixq("run", "show", name).out
    assert "books/b.txt is bad" in words.helixq("run", "logs", name).out
    [failed] = words.helixq("run", "datums", name, "--state", "failed").lines
    assert failed[0] == "books/b.txt"
    assert words.helixq("run", "retry", name, "--reason", "fixed").code == 0
    words.end()
    words.end()
    watched = words.helixq("run", "watch", name)
    assert (watched.code, watched.out) == (0, "done\n")


def test_cancelled_run_exits_with_11(words):
    name = words.books("a.txt").start().out.strip()
    assert words.helixq("run", "cancel", name, "--reason", "wrong input").code == 0
    words.end()
    assert words.helixq("run", "wait", name).code == 11
    assert "wrong input" in words.helixq("run", "show", name).out


def test_no_match_is_said_and_the_run_is_done(words):
    started = words.start()
    assert started.code == 0
    assert "no input matches" in started.err
    words.end()
    assert words.helixq("run", "wait", started.out.strip()).code == 0


def test_input_and_egress_outside_of_the_roots_are_refused(words):
    words.books("a.txt")
    assert "below a root" in words.start("--egress", "s3://elsewhere/out").err
    spec = words.spec(input={"atom": {"URI": "file:///etc", "repo": "etc", "glob": "/*"}})
    refused = words.start(spec=spec)
    assert refused.code == 5
    assert "file:///etc" in refused.err


def test_run_that_needs_pfs_is_refused_where_no_worker_shows_it(words):
    words.books("a.txt")
    with HelixQueue(words.database.dsn("pool"), tenant="a"):
        words.lab.rows_as_client("select helix.hello_v1('w-1', '{\"labels\":{}}', 'a')")
    spec = words.spec(pfs=True)
    refused = words.start(spec=spec)
    assert refused.code == 5
    assert "--no-pfs" in refused.err
    assert words.start("--no-pfs", spec=spec).code == 0


def test_scripts_of_falconeri_find_its_words(words):
    words.books("a.txt", "b.txt")
    started = words.helixq("falconeri", "job", "run", "-", stdin=json.dumps(words.spec()).encode())
    name = started.out.strip()
    assert started.out == f"{name}\n"
    listed = words.helixq("falconeri", "job", "list").out.splitlines()
    assert listed[0].split() == ["JOB_NAME", "STATUS", "CREATED_AT"]
    assert [name, "running"] in [line.split()[:2] for line in listed]
    words.end(**{"books/b.txt": "exit 3"})
    waited = words.helixq("falconeri", "job", "wait", name)
    assert (waited.code, waited.out) == (1, "error\n")
    described = words.helixq("falconeri", "job", "describe", name).out
    assert f"Job Name: {name}\nStatus: error\n" in described
    assert "Datum status:\n  done: 1\n  error: 1\n" in described
    [datum] = re.findall(
        r"^ID  FINISHED_AT  ERROR_MESSAGE\n([0-9a-f-]{36})  .*$", described, re.MULTILINE
    )
    described = words.helixq("falconeri", "datum", "describe", datum).out
    assert f"\nInput Files:\n{words.root}/books/b.txt\n" in described
    assert "\nError Message: exit 3\n" in described
    assert "\nOutput:\nbooks/b.txt is bad\n" in described
    retried = words.helixq("falconeri", "job", "retry", name)
    assert retried.out == f"{name}\n"
    words.end()
    words.end()
    assert words.helixq("falconeri", "job", "wait", name).out == "done\n"


def test_token_with_the_scope_run_starts_over_http_and_others_cannot(words):
    words.books("a.txt")
    with serving(settings_for(words.database)) as url:
        site = Site(words.database, url)

        def start(*scopes):
            environment = {
                "PATH": os.environ["PATH"], "HELIX_URL": url, "HELIX_TOKEN": site.token(*scopes),
            }  # fmt: skip
            text = json.dumps(words.spec()).encode()
            arguments = ["run", "start", "-", "--key", "over-http"]
            return run_in_process(arguments, environment, stdin=text)

        refused = start("submit", "work", "read", "operate")
        assert refused.code == 5
        assert "scope run" in refused.err
        started = start("run")
        assert started.code == 0, started.err
        assert start("run").out == started.out
    words.end()
    words.end()
    assert words.helixq("run", "wait", started.out.strip()).out == "done\n"
