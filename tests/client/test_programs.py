"""Ten programs as people write them: they run, and both type checkers agree with them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PROGRAMS = Path(__file__).parent / "programs"

OUTPUT = {
    "typed": ["/pod5", "True new duplicate new"],
    "untyped": ["True", "new PENDING", "duplicate PENDING", "[('a.txt',)]"],
    "gathered": ["5 5", "new [('x',)]"],
    "threads": ["10 10"],
    "forked_server": [
        "['new', 'new', 'new', 'duplicate', 'duplicate', 'duplicate'] True",
        "duplicate",
    ],
    "notebook": ["new duplicate duplicate True", "[('s1',)]"],
    "sheet": [
        "25000 [('duplicate', 999), ('new', 23996), ('refused', 5)]",
        "[0, 5000, 10000, 15000, 20000] InvalidIdentity",
    ],
    "dataclass_app": [
        '{"adapter":"ACGT","files":["a.fq"]} COMPLETED 7',
        "('COMPLETED', 'bench')",
    ],
    "alchemy_app": ["new", "new", "['s1']", "[('order', '1')]"],
    "later": ["True", "9 FAILED", "NoReference"],
}


def test_every_example_program_has_a_case():
    assert {path.stem for path in PROGRAMS.glob("*.py")} == OUTPUT.keys()
    assert len(OUTPUT) == 10


@pytest.mark.parametrize("program", OUTPUT)
def test_example_program_runs_without_warnings(database, program):
    done = subprocess.run(
        [sys.executable, "-W", "error", PROGRAMS / f"{program}.py", database.dsn("pool")],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines() == OUTPUT[program]


WRONG = """
from pydantic import BaseModel
from helixqueue import AsyncLease, HelixQueue, Lease, Queue

class Basecall(BaseModel):
    pod5: str

class Reads(BaseModel):
    reads: int

basecall = Queue("basecall", payload=Basecall, result=Reads)

def wrong(helix: HelixQueue) -> None:
    helix.submit(basecall, identity="s", payload=Reads(reads=1))  # another model
    helix.submit(basecall, identity=7, payload=Basecall(pod5="a"))  # no identity
    helix.submit(basecall, identity="s", payload=Basecall(pod5="a"), priorty=1)  # misspelt
    done = helix.submit(basecall, identity="s", payload=Basecall(pod5="a"))
    text: str = helix.result(done.receipt)  # not a text
    Queue("basecall", profile="lab")  # no such profile

@basecall.handler  # returns a text
def wrong_result(lease: Lease[Basecall, Reads]) -> str:
    return "7"

@basecall.handler  # takes another payload
def wrong_lease(lease: Lease[Reads, Reads]) -> Reads:
    return Reads(reads=1)

@basecall.handler  # a coroutine gets another lease
async def wrong_kind(lease: Lease[Basecall, Reads]) -> Reads:
    return Reads(reads=1)

@basecall.handler
async def right(lease: AsyncLease[Basecall, Reads]) -> Reads:
    return Reads(reads=len(lease.payload.pod5))

def refunds(helix: HelixQueue) -> None:
    @helix.fence("refund", key=lambda order, cents: order)
    def refund(order: str, cents: int) -> Reads:
        return Reads(reads=cents)

    good: int = refund.outcome("o-1", cents=5).result.reads + refund("o-1", 5).reads
    refund.outcome("o-1")  # no amount
    text: str = refund.outcome("o-1", 5).result  # not a text
"""
WRONG_LINES = {number for number, line in enumerate(WRONG.splitlines(), 1) if "  # " in line}


def test_mypy_accepts_correct_programs_and_rejects_wrong_ones(tmp_path):
    (tmp_path / "wrong.py").write_text(WRONG)
    # In the repository, for its warm cache: a cold one takes most of a minute.
    done = subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", *PROGRAMS.glob("*.py"), tmp_path / "wrong.py"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    errors = [line.split(": error:")[0] for line in done.stdout.splitlines() if ": error:" in line]
    places = {(Path(place.split(":")[0]).name, int(place.split(":")[1])) for place in errors}
    assert places == {("wrong.py", line) for line in WRONG_LINES}, done.stdout + done.stderr


def test_pyright_accepts_correct_programs_and_rejects_wrong_ones(tmp_path):
    (tmp_path / "wrong.py").write_text(WRONG)
    (tmp_path / "pyrightconfig.json").write_text(
        f'{{"include": ["{PROGRAMS}", "wrong.py"], "extraPaths": ["{ROOT / "src"}"],'
        f' "typeCheckingMode": "standard", "pythonVersion": "3.11"}}'
    )
    done = subprocess.run(
        [Path(sys.executable).with_name("basedpyright"), "--pythonpath", sys.executable],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
        timeout=110,
    )
    errors = [line.strip() for line in done.stdout.splitlines() if " - error:" in line]
    places = {(Path(line.split(":")[0]).name, int(line.split(":")[1])) for line in errors}
    assert places == {("wrong.py", line) for line in WRONG_LINES}, done.stdout + done.stderr
