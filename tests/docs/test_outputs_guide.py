"""docs/guides/outputs.md: its commands and its program run in order, against a directory."""

from __future__ import annotations

import os
import re
import shlex
from pathlib import Path
from unittest import mock

from tests.support.cli import Helixq

GUIDE = Path(__file__).parents[2] / "docs" / "guides" / "outputs.md"
BLOCK = re.compile(r"^```(console|python)\n(.*?)^```", re.MULTILINE | re.DOTALL)


def test_guide_publishes_shows_gets_and_verifies_files(
    fresh_database, tmp_path, monkeypatch, capsys
):
    helixq = Helixq(fresh_database, "operator")
    monkeypatch.chdir(tmp_path)
    text = GUIDE.read_text(encoding="utf-8").replace("/srv/lab", str(tmp_path / "lab"))
    shown = []
    for kind, block in BLOCK.findall(text):
        if kind == "python":
            with mock.patch.dict(os.environ, {"HELIX_DSN": fresh_database.dsn("pool")}):
                exec(compile(block, GUIDE.name, "exec"), {"__name__": "guide"})  # noqa: S102
            continue
        for line in re.findall(r"^\$ helixq (.*)$", block, re.MULTILINE):
            result = helixq(*shlex.split(line))
            assert result.code == 0, (line, result)
            shown.append(result.out)
    assert capsys.readouterr().out == "sealed 2 a/align/Sample-07\n"
    assert "2 files are as their manifest says" in shown[-1]
    file = Path("lab/runs/a/align/Sample-07/reads/aligned.txt")
    assert file.read_text() == Path("results/reads/aligned.txt").read_text() == "ACGT"
