"""docs/guides/proof.md: an auditor verifies work from a seal, an export and a public key.

Every command of the guide runs in its order; output that is shown is compared.
"""

from __future__ import annotations

import re
import shlex
import subprocess
from pathlib import Path
from string import Template

import pytest

from tests.support.cli import Helixq

GUIDE = Path(__file__).parents[2] / "docs" / "guides" / "proof.md"
BLOCK = re.compile(r"```console\n(.*?)```", re.DOTALL)
# Ids of keys, how many settings a new database has, times, worker names, widths of columns.
CHANGING = [
    (r"key [0-9a-f]{16}", "key ..."),
    (r"\d+ decision", "... decision"),
    (r"\d{4}-\d\d-\d\dT[\d:.]+Z", "..."),
    (r"sequencer-1-[0-9a-f]{6}", "sequencer-1-..."),
    (r"[\t ]+", " "),
]


def examples():
    """Command, expected exit code and expected output of each example."""
    for block in BLOCK.findall(GUIDE.read_text(encoding="utf-8")):
        for example in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]:
            line, _, output = example.partition("\n")
            command, _, code = line.partition("# exits with ")
            yield command.strip(), int(code or 0), output


def masked(text):
    for pattern, instead in CHANGING:
        text = re.sub(pattern, instead, text)
    return text


@pytest.fixture
def environment(database):
    return {
        "HELIX_DSN": database.dsn("pool"),
        "OWNER_DSN": database.dsn("helix_migrator"),
        "HELIX_TENANT": "a",
    }


def test_auditor_verifies_a_seal_an_export_and_a_public_key(
    database, environment, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    helixq = Helixq(database)
    commands = list(examples())
    assert len(commands) >= 10
    for command, code, output in commands:
        text, _, target = command.partition(" > ")
        if text.startswith("helixq work"):  # has signals of its own
            words = shlex.split(text)[1:]
            done = helixq.process(*words, **environment)
        elif text.startswith("helixq "):
            words = shlex.split(Template(text).substitute(environment))[1:]
            done = helixq(*words, **environment)
        else:
            subprocess.run(["/bin/sh", "-c", command], check=True)
            continue
        assert done.code == code, (command, done.out, done.err)
        if target:
            Path(target).write_text(done.out, encoding="utf-8")
        else:
            assert masked(done.out) == masked(output), command
