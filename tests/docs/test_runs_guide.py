"""docs/guides/runs.md: its commands run in order beside its worker, and its tests exist."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pytest

from helixqueue.worker.private_mounts import problem
from tests.support.cli import HELIXQ

ROOT = Path(__file__).parents[2]
GUIDE = ROOT / "docs" / "guides" / "runs.md"


@pytest.mark.skipif(problem() is not None, reason="this machine permits no mount namespaces")
def test_commands_of_the_guide_print_what_it_shows(fresh_database, tmp_path):
    text = GUIDE.read_text(encoding="utf-8").replace("/srv/lab", str(tmp_path / "lab"))
    books = tmp_path / "lab" / "books"
    books.mkdir(parents=True)
    (tmp_path / "lab" / "results").mkdir()
    (books / "dune.txt").write_text("a beginning is a time")
    (books / "emma.txt").write_text("handsome, clever, and rich")
    [spec] = re.findall(r"```json\n(.*?)```", text, re.DOTALL)
    (tmp_path / "words.json").write_text(spec, encoding="utf-8")
    environment = os.environ | {
        "HELIX_DSN": fresh_database.dsn("operator"),
        "HELIX_TENANT": "lab",
        "PATH": f"{HELIXQ.parent}{os.pathsep}{os.environ['PATH']}",
    }
    [worker] = re.findall(r"```sh\n(.*?)```", text, re.DOTALL)
    helixq, *arguments = worker.split()
    assert helixq == "helixq"
    runner = None
    try:
        for block in re.findall(r"```console\n(.*?)```", text, re.DOTALL):
            shown = []
            for command in re.findall(r"^\$ (.*)$", block, re.MULTILINE):
                if runner is None and "run start" in command:
                    subprocess.run(
                        [HELIXQ, "queue", "set", "runs", "--reason", "guide"],
                        env=environment, check=True, capture_output=True,
                    )  # fmt: skip
                    runner = subprocess.Popen(
                        [HELIXQ, *arguments], cwd=tmp_path, env=environment,
                        stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                    )  # fmt: skip
                done = subprocess.run(
                    ["/bin/sh", "-c", command], cwd=tmp_path, env=environment,
                    capture_output=True, text=True, check=False,
                )  # fmt: skip
                assert done.returncode == 0, (command, done.stderr)
                shown.append(f"$ {command}\n{done.stdout}")
            assert "".join(shown) == block
    finally:
        if runner is not None:
            runner.terminate()
            runner.wait(60)
    assert (tmp_path / "lab" / "results" / "dune.txt").read_text() == "5\n"


def test_every_fault_of_the_table_has_its_test():
    table = re.findall(r"^\| (B\d+) \| .* \| `(test_\w+)` \|$", GUIDE.read_text(), re.MULTILINE)
    assert [fault for fault, _ in table] == [f"B{number}" for number in range(1, 13)]
    tests = "\n".join(path.read_text(encoding="utf-8") for path in ROOT.glob("tests/*/test_*.py"))
    assert [name for _, name in table if f"def {name}(" not in tests] == []
