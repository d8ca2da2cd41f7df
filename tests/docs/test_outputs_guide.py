"""docs/guides/outputs.md: its commands and its program run in order, against a directory."""

from __future__ import annotations

import os
import re
import shlex
from pathlib import Path
from unittest import mock

from tests.support.cli import Helixq

GUIDE = Path(__file__).parents[2] / "docs" / "guides" / "outputs.md"
BLOCK = re.compile(r"^```(console|python|text)\n(.*?)^```", re.MULTILINE | re.DOTALL)


def test_guide_prints_what_it_shows_and_publishes_files(
    fresh_database, tmp_path, monkeypatch, capsys
):
    helixq = Helixq(fresh_database, "operator")
    monkeypatch.chdir(tmp_path)
    text = GUIDE.read_text(encoding="utf-8").replace("/srv/lab", str(tmp_path / "lab"))
    for kind, block in BLOCK.findall(text):
        if kind == "python":
            with mock.patch.dict(os.environ, {"HELIX_DSN": fresh_database.dsn("pool")}):
                exec(compile(block, GUIDE.name, "exec"), {"__name__": "guide"})  # noqa: S102
        elif kind == "text":
            assert capsys.readouterr().out == block
        else:
            printed = []
            for line, command, cut in re.findall(
                r"^(\$ helixq (.*?)( \| cut -f1)?)$", block, re.MULTILINE
            ):
                result = helixq(*shlex.split(command), HELIX_TENANT="lab")
                assert result.code == 0, (line, result)
                printed += [
                    line,
                    *(x.split("\t")[0] if cut else x for x in result.out.splitlines()),
                ]
            assert printed == block.splitlines()
    file = Path("lab/runs/lab/align/Sample-07/reads/aligned.txt")
    assert file.read_text() == Path("results/reads/aligned.txt").read_text() == "ACGT"
