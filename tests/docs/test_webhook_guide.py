"""docs/guides/webhooks.md: its commands and its Python parts print what the guide shows."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

from tests.support.cli import HELIXQ
from tests.support.service import Site, serving, settings_for

ROOT = Path(__file__).parents[2]
GUIDE = ROOT / "docs" / "guides" / "webhooks.md"


def test_commands_and_programs_of_the_guide_print_what_it_shows(database, tmp_path):
    text = GUIDE.read_text(encoding="utf-8")
    [sources] = re.findall(r"```yaml\n(.*?)```", text, re.DOTALL)
    (tmp_path / "webhooks.yml").write_text(sources, encoding="utf-8")
    environment = os.environ | {
        "HELIX_DSN": database.dsn("pool"),
        "HELIX_TENANT": "lab",
        "PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'src'}",
        "PATH": f"{HELIXQ.parent}{os.pathsep}{os.environ['PATH']}",
    }
    [block] = re.findall(r"```console\n(.*?)```", text, re.DOTALL)
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
        assert done.returncode == 0, (command, done.stderr)
        shown.append(f"$ {command}\n{done.stdout}")
    assert "".join(shown) == block
    with database.connect("helix_bootstrap") as connection:
        connection.execute("grant create on schema public to pool")
    reader = [sys.executable, "-m", "tests.support.doc_reader", GUIDE]
    with serving(settings_for(database)) as url:
        service = {"HELIX_URL": url, "HELIX_TOKEN": Site(database, url).token(tenant="lab")}
        subprocess.run(reader, cwd=tmp_path, env=environment | service, check=True)
