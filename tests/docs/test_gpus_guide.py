"""docs/guides/gpus.md: its commands and programs run in order, on devices of its file."""

from __future__ import annotations

import os
import re
import shlex
import stat
from pathlib import Path
from unittest import mock

from tests.support.cli import Helixq

GUIDE = Path(__file__).parents[2] / "docs" / "guides" / "gpus.md"
BLOCK = re.compile(r"^```(console|python|text|json|sh)\n(.*?)^```", re.MULTILINE | re.DOTALL)


def filtered(text, pipe):
    """What `grep -c` and `grep -o` leave of a command's output."""
    if not pipe:
        return text.splitlines()
    _, option, pattern = shlex.split(pipe)
    found = re.findall(pattern.replace(".*", "[^\n]*"), text)
    return (
        [str(sum(bool(re.search(pattern, x)) for x in text.splitlines()))]
        if "c" in option
        else found
    )


def test_guide_shows_devices_by_uuid_and_what_no_worker_has(
    fresh_database, tmp_path, monkeypatch, capsys
):
    helixq = Helixq(fresh_database, "operator")
    monkeypatch.chdir(tmp_path)
    blocks = BLOCK.findall(GUIDE.read_text(encoding="utf-8"))
    [pool] = [block for kind, block in blocks if kind == "json"]
    [script] = [block for kind, block in blocks if kind == "sh" and block.startswith("#!")]
    Path("pool.json").write_text(pool, encoding="utf-8")
    Path("basecall.sh").write_text(script, encoding="utf-8")
    Path("basecall.sh").chmod(stat.S_IRWXU)
    scope = {"__name__": "guide"}
    for kind, block in blocks:
        if kind == "python":
            with mock.patch.dict(os.environ, {"HELIX_DSN": fresh_database.dsn("pool")}):
                exec(compile(block, GUIDE.name, "exec"), scope)  # noqa: S102
        elif kind == "text":
            assert capsys.readouterr().out == block
        elif kind == "console":
            printed = []
            for line, command, joined, pipe in re.findall(
                r"^(\$ helixq (.*?)( 2>&1)?(?: \| (.*))?)$", block, re.MULTILINE
            ):
                result = helixq(*shlex.split(command), HELIX_TENANT="lab")
                assert result.code == 0, (line, result)
                printed += [line, *filtered(result.out + (result.err if joined else ""), pipe)]
            assert printed == block.splitlines()
