"""`helixq` in this process, through its own `main`: what a script sees, without its start-up."""

from __future__ import annotations

import io
import itertools
import json
import os
import subprocess
import sys
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from unittest import mock

import pytest
from typer.main import get_command

from helixqueue.cli.main import VERBS, build, main
from tests.support.lab import Lab, one_database

HELIXQ = Path(sys.executable).with_name("helixq")
_numbers = itertools.count(1)


def commands():
    """Every command by its name, such as `batch list`."""
    found = {}
    for verb in VERBS:
        command = get_command(build(verb)).commands[verb]
        inner = getattr(command, "commands", {})
        found |= {f"{verb} {name}": one for name, one in inner.items()} or {verb: command}
    return found


@dataclass(frozen=True)
class Done:
    code: int
    out: str
    err: str

    @property
    def json(self):
        return json.loads(self.out)

    @property
    def lines(self):
        """The rows of a table; the names of its columns stand before them."""
        return [line.split("\t") for line in self.out.splitlines()][1:]


class Helixq:
    """Runs commands against one database; `q` is a queue of this test alone, of tenant a."""

    def __init__(self, database, role="pool"):
        self.database = database
        self.role = role
        self.q = f"cli{next(_numbers)}"
        self.environment = {"HELIX_TENANT": "a"}

    def __call__(self, *arguments, given=b"", role=None, terminal=False, **environment):
        """In this process; `terminal` is what it takes its standard output for."""
        out, err = (io.TextIOWrapper(io.BytesIO(), "utf-8") for _ in range(2))
        out.isatty = lambda: terminal
        stdin = io.TextIOWrapper(io.BufferedReader(io.BytesIO(given)), "utf-8")
        with (
            mock.patch.dict(os.environ, self._environment(role, environment), clear=True),
            mock.patch("sys.stdin", stdin),
            redirect_stdout(out),
            redirect_stderr(err),
            pytest.raises(SystemExit) as ended,
        ):
            main([str(one) for one in arguments])
        for stream in (out, err):
            stream.flush()
        done = Done(ended.value.code, *(s.buffer.getvalue().decode() for s in (out, err)))
        assert "Traceback" not in done.err, done.err
        return done

    def process(self, *arguments, given=b"", role=None, cwd=None, **environment):
        """In a process of its own."""
        done = subprocess.run(
            [HELIXQ, *map(str, arguments)],
            input=given,
            env=self._environment(role, environment),
            cwd=cwd,
            capture_output=True,
            check=False,
        )
        return Done(done.returncode, done.stdout.decode(), done.stderr.decode())

    def _environment(self, role, more):
        kept = {name: value for name, value in os.environ.items() if not name.startswith("HELIX_")}
        kept |= {"HELIX_DSN": self.database.dsn(role or self.role), "TZ": "UTC"}
        return kept | self.environment | more


@pytest.fixture(scope="module")
def database(server, template, pooler):
    yield from one_database(server, template, pooler)


@pytest.fixture
def helixq(database):
    return Helixq(database)


@pytest.fixture
def lab(database, helixq):
    """A client of the same queue, to do what a command line cannot: claim, complete, fail."""
    with Lab(database, q=helixq.q) as lab:
        lab.queue()
        yield lab
