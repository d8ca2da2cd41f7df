"""docs/guides/lab.md: a sheet of 200 rows, worked by a shell script while a worker is killed.

The commands of the guide run in one shell, on a terminal of 80 columns; output that is shown is
compared. `HELIX_WRITE_DOCS=1 pytest tests/docs/test_lab.py` writes the output into the guide.
"""

from __future__ import annotations

import csv
import os
import pty
import re
import shutil
import subprocess
import termios
import unicodedata
from pathlib import Path

import pytest

from tests.support.cli import HELIXQ
from tests.support.duties import run_all_duties

ROOT = Path(__file__).parents[2]
GUIDE = ROOT / "docs" / "guides" / "lab.md"
EXAMPLE = ROOT / "examples" / "lab"
BLOCK = re.compile(r"```console\n(.*?)```", re.DOTALL)
MARK = "=== exit code "
COLUMNS = 80
# Progress bars, styles, the database of this test, and the shell's message about the killed worker.
NOISE = re.compile(
    r"\x1b\[\?25l.*?\x1b\[1A\x1b\[2K|\x1b\[[0-9;]*m"
    r"|^(?:database|tenant|guide\.bash): .*?\n|^\d+ more were skipped\n",
    re.MULTILINE | re.DOTALL,
)
# Numbers that differ from run to run.
CHANGING = re.compile(r"\b[\d.]+ (?=completed|events|s\b|of \d|invariants)")


def commands():
    """Command, expected exit code and shown output of each example."""
    for block in BLOCK.findall(GUIDE.read_text(encoding="utf-8")):
        for example in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]:
            line, _, output = example.partition("\n")
            code = re.search(r"# exits with (\d+)$", line)
            yield line, int(code[1]) if code else 0, output


def masked(text):
    return CHANGING.sub("N ", text)


def run_in_a_shell(lines, directory, environment):
    """Exit code and output of each line, from one shell on a terminal."""
    script = "".join(f"{line}\nprintf '{MARK}%d\\n' $?\n" for line in lines)
    (directory / "guide.bash").write_text(script, encoding="utf-8")
    leader, follower = pty.openpty()
    termios.tcsetwinsize(follower, (24, COLUMNS))
    with subprocess.Popen(
        ["bash", "guide.bash"],
        cwd=directory,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=follower,
        stderr=follower,
    ):
        os.close(follower)
        pieces = []
        while True:
            try:
                pieces.append(os.read(leader, 65536))
            except OSError:  # the other end is closed
                break
        os.close(leader)
    text = b"".join(pieces).decode().replace("\r\n", "\n")
    *results, _ = re.split(rf"{MARK}(\d+)\n", text)
    outputs = [
        re.sub(r" +$", "", NOISE.sub("", output), flags=re.MULTILINE) for output in results[::2]
    ]
    return list(zip(map(int, results[1::2]), outputs, strict=True))


@pytest.mark.timeout(120)
def test_lab_guide_works_a_sheet_once_although_a_worker_is_killed(database, tmp_path):
    run_all_duties(database)
    shutil.copytree(EXAMPLE, tmp_path, dirs_exist_ok=True)
    environment = {
        "PATH": f"{HELIXQ.parent}:{os.environ['PATH']}",
        "HOME": str(tmp_path),
        "HELIX_DSN": database.dsn("pool"),
        "LC_ALL": "C.UTF-8",
        "TERM": "xterm",
        "NO_COLOR": "1",
    }
    guide = list(commands())
    found = run_in_a_shell([line for line, _, _ in guide], tmp_path, environment)
    if os.environ.get("HELIX_WRITE_DOCS"):
        write_guide([output for _, output in found])
    for (line, code, output), (found_code, found_output) in zip(guide, found, strict=True):
        assert found_code == code, (line, found_output)
        assert masked(found_output) == masked(output), line
    results = read_csv(tmp_path / "results.csv")
    assert len(results) == len({row["identity"] for row in results}) == 170
    assert {row["state"] for row in results} == {"COMPLETED"}
    assert any(row["attempt"] == "2" for row in results)  # held by the killed worker


def read_csv(file):
    return list(csv.DictReader(file.read_text(encoding="utf-8").splitlines()))


def write_guide(outputs):
    text = GUIDE.read_text(encoding="utf-8")
    remaining = iter(outputs)

    def answered(block):
        lines = [
            f"$ {example.partition(chr(10))[0]}\n{next(remaining)}"
            for example in re.split(r"^\$ ", block[1], flags=re.MULTILINE)[1:]
        ]
        return f"```console\n{''.join(lines)}```"

    GUIDE.write_text(BLOCK.sub(answered, text), encoding="utf-8")


def test_sheet_has_duplicates_twins_and_invalid_names():
    rows = read_csv(EXAMPLE / "sheet.csv")
    names = [row["sample"] for row in rows]
    assert len(names) == 200
    twins = {name for name in names if unicodedata.normalize("NFC", name) != name}
    assert len(twins) == 8
    assert {unicodedata.normalize("NFC", name) for name in twins} <= set(names)
    assert len(names) - len(set(names)) == 16  # 12 repeated rows and 4 with another payload
