"""docs/guides/ledgers.md: its commands print what the guide shows, after its Python parts."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

from tests.support.cli import HELIXQ
from tests.support.service import Site, serving, settings_for

ROOT = Path(__file__).parents[2]
GUIDE = ROOT / "docs" / "guides" / "ledgers.md"


def test_commands_of_the_guide_print_what_it_shows(database, tmp_path):
    environment = os.environ | {
        "HELIX_DSN": database.dsn("pool"),
        "HELIX_TENANT": "lab",
        "PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'src'}",
        "PATH": f"{HELIXQ.parent}{os.pathsep}{os.environ['PATH']}",
    }
    reader = [sys.executable, "-m", "tests.support.doc_reader", GUIDE]
    with serving(settings_for(database)) as url:
        service = {"HELIX_URL": url, "HELIX_TOKEN": Site(database, url).token(tenant="lab")}
        subprocess.run(reader, cwd=tmp_path, env=environment | service, check=True)
    [block] = re.findall(r"```console\n(.*?)```", GUIDE.read_text(encoding="utf-8"), re.DOTALL)
    shown = []
    for command in re.findall(r"^\$ (.*)$", block, re.MULTILINE):
        done = subprocess.run(
            ["/bin/sh", "-c", command],
            cwd=tmp_path,
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        shown.append(f"$ {command}\n{re.sub(r'key [0-9a-f]{8,}', 'key ...', done.stdout)}")
    assert "".join(shown) == block
