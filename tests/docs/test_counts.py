"""Numbers of the code in documents are written from it: `HELIX_WRITE_DOCS=1` writes them."""

import os
import re
from pathlib import Path

from helixqueue.operate.check import invariants

ROOT = Path(__file__).parents[2]
OPERATING = ROOT / "docs" / "guides" / "operating.md"
DUTIES = ROOT / "src" / "helixqueue" / "engine" / "sql" / "75_duty.sql"
DUTY = re.compile(r"\('(\w+)', +'([^']+)', (true|false)\)[,;] +-- (.*)")
INVARIANTS = re.compile(r"\b\d+ of \d+ invariants hold")
DOCUMENTS = sorted([ROOT / "README.md", *(ROOT / "docs").rglob("*.md")])


def compare(document, text, wanted):
    if os.environ.get("HELIX_WRITE_DOCS"):
        document.write_text(wanted, encoding="utf-8")
    assert text == wanted, "run HELIX_WRITE_DOCS=1 pytest tests/docs/test_counts.py"


def test_guide_lists_every_duty_with_its_interval(database):
    duties = DUTY.findall(DUTIES.read_text(encoding="utf-8"))
    assert {name for name, *_ in duties} == {
        name for (name,) in database.rows("select duty from helix.duty")
    }
    by = {"true": "claims, a service", "false": "a service"}
    rows = [f"| `{name}` | {every} | {by[of]} | {what} |" for name, every, of, what in duties]
    table = "\n".join(["| duty | every | run by | |", "|---|---|---|---|", *rows, ""])
    text = OPERATING.read_text(encoding="utf-8")
    head, begin, rest = text.partition("<!-- duties -->\n")
    _, end, tail = rest.partition("<!-- /duties -->")
    compare(OPERATING, text, head + begin + table + end + tail)


def test_documents_name_the_number_of_invariants():
    number = len(invariants())
    for document in DOCUMENTS:
        text = document.read_text(encoding="utf-8")
        wanted = INVARIANTS.sub(f"{number} of {number} invariants hold", text)
        compare(document, text, wanted)
