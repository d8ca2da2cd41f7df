"""docs/cli.md shows what the commands print: each example is run, on a terminal, in its order.

`HELIX_WRITE_DOCS=1 pytest tests/cli/test_docs.py` writes the answers of today into the document.
"""

from __future__ import annotations

import os
import pty
import re
import shlex
import string
import subprocess
from pathlib import Path

import pytest

from helixqueue.cli.main import VERBS
from helixqueue.engine import calls
from tests.support.cli import HELIXQ
from tests.support.duties import run_all_duties
from tests.support.lab import Lab, completion, wait_until

DOCUMENT = Path(__file__).parents[2] / "docs" / "cli.md"
BLOCK = re.compile(r"```console\n(.*?)```", re.DOTALL)
COLUMNS = 80
TIME = re.compile(r"(?:\d{4}-\d\d-\d\d )?\d\d:\d\d:\d\d(?P<fraction>\.\d+)?")
# Colours, blanks at line ends, which socket it was, what is made by chance.
NOISE = [
    (re.compile(r"\x1b\[[0-9;]*m"), ""),
    (re.compile(r"[ \t]+$", re.MULTILINE), ""),
    (re.compile(r"^(database|tenant): .*\n", re.MULTILINE), ""),
    (re.compile(r'"fingerprint": "[0-9a-f]{64}"'), '"fingerprint": "..."'),
    (re.compile(r"scanner-[0-9a-f]{6}"), "scanner-7b1d34"),
    (re.compile(r"\b\d+ (s|min) ago"), "2 s ago"),
    (re.compile(r"\b20\d\d-\d\d-\d\d(?=T|\b)"), "2026-03-01"),
]


# Pipes, files and the like; whatever has none runs in this process, which starts no other. Workers
# have signals and logs of their own.
FOR_A_SHELL = re.compile(r"[|>\\]|\$\(|^cat |^head |^helixq (work|batch export|webhook) ")


def masked(text):
    """As it stands in the document: every moment is the same, and as wide as it was."""
    for pattern, instead in NOISE:
        text = pattern.sub(instead, text)
    return TIME.sub(_one_moment, text)


def _one_moment(found):
    zeros = re.sub(r"\d", "0", found["fraction"] or "")
    day = "2026-03-01 " if "-" in found[0] else ""
    return f"{day}08:00:00{zeros}"


def squeezed(text):
    """For comparing: a time with one digit less makes a column narrower."""
    text = re.sub(r"\.0+\b", ".0", text)
    return re.sub(r"[─\s]+", " ", text)


def ran(command, helixq, cwd, environment):
    """Standard output as a terminal gets it, and the code."""
    if FOR_A_SHELL.search(command):
        return ran_by_a_shell(command, cwd, environment)
    _, *words = shlex.split(string.Template(command).substitute(environment), comments=True)
    done = helixq(*words, terminal=True, **environment)
    return done.out, done.code


def ran_by_a_shell(command, cwd, environment):
    leader, follower = pty.openpty()
    with subprocess.Popen(
        ["/bin/sh", "-c", command],
        cwd=cwd,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=follower,
        stderr=subprocess.DEVNULL,
    ) as process:
        os.close(follower)
        pieces = []
        while True:
            try:
                pieces.append(os.read(leader, 65536))
            except OSError:  # the terminal's other end is closed
                break
            if not pieces[-1]:
                break
        os.close(leader)
    return b"".join(pieces).decode().replace("\r\n", "\n"), process.returncode


def answered(block, helixq, cwd, environment):
    """The block again, with the answers of today."""
    lines = []
    for example in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]:
        command, _, shown = example.partition("\n")
        file = cwd / command.removeprefix("cat ")
        if re.fullmatch(r"cat [\w.]+", command) and not file.exists():
            file.write_text(shown, encoding="utf-8")
        out, code = ran(command, helixq, cwd, environment)
        expected = re.search(r"# ends with (\d)$", command)
        assert code == (int(expected[1]) if expected else 0), (command, out)
        lines.append(f"$ {command}\n{masked(out)}")
        if out and not out.endswith("\n"):
            lines.append("\n")
    return "".join(lines)


def work(database):
    """Between the submits and the lists: bo freezes with a batch, and ada finishes it."""
    with Lab(database, q="basecall") as lab:
        [frozen] = lab.claim(worker="bo", lease_seconds=0.05)
        wait_until(lambda: lab.run(calls.reap(actor="ada")))
        [second] = lab.claim(worker="ada")
        lab.settle(completion(second), worker="ada")
        lab.settle(completion(frozen), worker="bo")


@pytest.mark.usefixtures("durable")
def test_cli_examples_print_what_the_document_shows(database, helixq, tmp_path):
    environment = helixq.environment(HELIX_TENANT="lab", COLUMNS=str(COLUMNS))
    environment |= {
        "OWNER_DSN": database.dsn("helix_migrator"),
        "OPERATOR_DSN": database.dsn("operator"),
        "PATH": f"{HELIXQ.parent}:{os.environ['PATH']}",
        "NO_COLOR": "1",
        "TERM": "xterm",
        "LC_ALL": "C.UTF-8",
    }
    with database.connect("helix_bootstrap") as connection:
        # `check` finds strangers in the schema, and this one is the tests' own.
        connection.execute("drop function helix.test_pass_time")
    run_all_duties(database)
    text = written = DOCUMENT.read_text(encoding="utf-8")
    for found in BLOCK.finditer(text):
        if 'pod5": "run42/b1' in found[1]:
            work(database)
        today = answered(found[1], helixq, tmp_path, environment)
        written = written.replace(found[0], f"```console\n{today}```", 1)
    if os.environ.get("HELIX_WRITE_DOCS"):
        DOCUMENT.write_text(written, encoding="utf-8")
    assert squeezed(written) == squeezed(text)


def test_cli_document_has_an_example_of_every_command():
    text = DOCUMENT.read_text(encoding="utf-8")
    nouns = {
        "batch": "list show retry cancel erase",
        "queue": "list show set pause resume",
    }
    for verb in VERBS:
        inner = nouns.get(verb)
        wanted = (
            [f"helixq {verb}"] if inner is None else [f"helixq {verb} {x}" for x in inner.split()]
        )
        assert [item for item in wanted if item not in text] == []
