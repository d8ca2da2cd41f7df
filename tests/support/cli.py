"""Runs `helixq` in this process through `main`, or in a process of its own."""

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

HELIXQ = Path(sys.executable).with_name("helixq")
# Without LINES, rich takes a dumb terminal for one of 80 columns, whatever COLUMNS says.
TERMINAL = {"TERM": "dumb", "LINES": "24"}
_queue_numbers = itertools.count(1)


def commands():
    """Every command by its full name, such as `batch list`."""
    by_name = {}

    def add(name, command):
        for below, sub in getattr(command, "commands", {}).items():
            add(f"{name} {below}", sub)
        if not hasattr(command, "commands"):
            by_name[name] = command

    for verb in VERBS:
        add(verb, get_command(build(verb)).commands[verb])
    return by_name


@dataclass(frozen=True)
class CommandResult:
    code: int
    out: str
    err: str

    @property
    def json(self):
        return json.loads(self.out)

    @property
    def lines(self):
        """The rows of a table, without its header."""
        return [line.split("\t") for line in self.out.splitlines()][1:]


def run_in_process(arguments, environment, *, stdin=b"", terminal=False):
    """Run `helixq` in this process: a process of its own takes a second to start."""
    out, err = (io.TextIOWrapper(io.BytesIO(), "utf-8") for _ in range(2))
    out.isatty = lambda: terminal
    stream = io.TextIOWrapper(io.BufferedReader(io.BytesIO(stdin)), "utf-8")
    with (
        mock.patch.dict(os.environ, environment, clear=True),
        mock.patch("sys.stdin", stream),
        redirect_stdout(out),
        redirect_stderr(err),
        pytest.raises(SystemExit) as ended,
    ):
        main([str(argument) for argument in arguments])
    for output in (out, err):
        output.flush()
    texts = (output.buffer.getvalue().decode() for output in (out, err))
    result = CommandResult(ended.value.code, *texts)
    assert "Traceback" not in result.err, result.err
    return result


def printed_on_a_terminal(print_it):
    """What a function prints to standard output where that claims to be a terminal."""
    out = io.StringIO()
    out.isatty = lambda: True
    with mock.patch.dict(os.environ, TERMINAL), redirect_stdout(out):
        print_it()
    return out.getvalue()


class Helixq:
    """Runs commands against one database; `q` is a queue name that only this test uses."""

    def __init__(self, database, role="pool"):
        self.database = database
        self.role = role
        self.q = f"cli{next(_queue_numbers)}"
        self.default_environment = {"HELIX_TENANT": "a"}

    def __call__(self, *arguments, stdin=b"", role=None, terminal=False, **environment):
        """Run in this process; with `terminal`, standard output claims to be a terminal."""
        return run_in_process(
            arguments, self.environment(role, **environment), stdin=stdin, terminal=terminal
        )

    def process(self, *arguments, stdin=b"", role=None, cwd=None, **environment):
        """Run in a process of its own."""
        done = subprocess.run(
            [HELIXQ, *map(str, arguments)],
            input=stdin,
            env=self.environment(role, **environment),
            cwd=cwd,
            capture_output=True,
            check=False,
        )
        return CommandResult(done.returncode, done.stdout.decode(), done.stderr.decode())

    def environment(self, role=None, **more):
        kept = {name: value for name, value in os.environ.items() if not name.startswith("HELIX_")}
        kept |= {"HELIX_DSN": self.database.dsn(role or self.role), "TZ": "UTC"}
        return kept | self.default_environment | more
