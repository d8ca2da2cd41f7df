"""Every Python block of every document runs and prints the output that the document shows."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.support.doc_reader import blocks
from tests.support.service import Site, serving, settings_for

ROOT = Path(__file__).parents[2]
# Run after their commands: test_webhook_guide.py, test_outputs_guide.py, test_gpus_guide.py.
AFTER_COMMANDS = {"webhooks.md", "outputs.md", "gpus.md"}
DOCUMENTS = [
    path
    for path in [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]
    if blocks(path.read_text(encoding="utf-8")) and path.name not in AFTER_COMMANDS
]


# Set for documents: the DSN of a program, and the URL and a token of a service.
VARIABLES = ("HELIX_DSN", "HELIX_URL", "HELIX_TOKEN")
FENCE = re.compile(r"^\s*```\s*(?:py|python|python3|pycon)\b", re.MULTILINE | re.IGNORECASE)


def run_document(document, directory, **environment):
    return subprocess.run(
        [sys.executable, "-W", "error", "-m", "tests.support.doc_reader", document],
        cwd=directory,
        env={
            **os.environ,
            **dict.fromkeys(VARIABLES, ""),
            **environment,
            "PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'src'}",
        },
        capture_output=True,
        text=True,
        check=False,
        timeout=110,
    )


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_document_runs_and_prints_its_output(document, database, tmp_path):
    with ExitStack() as stack:
        environment = {"HELIX_DSN": database.dsn("pool")}
        if "HELIX_URL" in document.read_text(encoding="utf-8"):
            site = Site(database, stack.enter_context(serving(settings_for(database))))
            environment |= {"HELIX_URL": site.url, "HELIX_TOKEN": site.token(tenant="lab")}
        done = run_document(document, tmp_path, **environment)
    assert (done.returncode, done.stderr) == (0, ""), done.stderr


def test_documents_with_code_are_collected():
    names = {path.name for path in DOCUMENTS}
    assert {"README.md", "quickstart.md", "sqlalchemy.md"} <= names


def test_every_python_fence_is_collected():
    """A fence spelled `Python` or `py`, or an indented one, would not run."""
    for path in [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]:
        text = path.read_text(encoding="utf-8")
        fences = FENCE.findall(text)
        assert len(fences) == len(blocks(text)), path


BAD = {
    "raises": ("```python\n1 / 0\n```\n", "ZeroDivisionError"),
    "prints something else": ("```python\nprint(1)\n```\n\n```text\n2\n```\n", "expected\n2\n"),
    "prints nothing": ("```python\npass\n```\n```text\n2\n```\n", "expected\n2\n"),
}


@pytest.mark.parametrize("case", BAD)
def test_wrong_document_fails_with_its_line(case, tmp_path):
    text, words = BAD[case]
    (tmp_path / "wrong.md").write_text("# Wrong\n\n" + text)
    done = run_document(tmp_path / "wrong.md", tmp_path)
    assert done.returncode != 0
    assert words in done.stderr
    assert "wrong.md:4" in done.stderr or 'wrong.md", line 4' in done.stderr


def test_blocks_share_one_namespace(tmp_path):
    text = "```python\nn = 1\n```\ntext\n```python\nprint(n)\n```\n\n```text\n1\n```\n"
    (tmp_path / "right.md").write_text(text)
    assert run_document(tmp_path / "right.md", tmp_path).returncode == 0
    assert [block.line for block in blocks(text)] == [1, 5]
