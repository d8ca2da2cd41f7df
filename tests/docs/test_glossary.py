"""docs/glossary.md has one line for each state and for each term of the design and the code."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

from helixqueue.states import FenceState, State

GLOSSARY = Path(__file__).parents[2] / "docs" / "glossary.md"
DESIGN = """
tenant, queue, batch, chunk, identity, revision, source, attempt, lease, token, worker, event,
ledger, receipt, fence, output, run, twin, refusal, dead letter, failed batch, request log
"""
CODE = """
lane, turn, entry, epoch, heartbeat, claimer, executor, settlement, admission, seal, doubt,
tombstone, duty, key, fingerprint, profile, decision, arrow, guard, cause, probe, principal,
scope, quota, cursor, transport, claim hint, attempt token, API token, requirement class, limit key
"""


def test_every_term_has_one_line() -> None:
    text = GLOSSARY.read_text(encoding="utf-8")
    lines = re.findall(r"^\| ([^|]+) \| [^|]+ \|$", text, re.MULTILINE)
    terms = Counter(line for line in lines if line not in {"term", "---"})
    named = [" ".join(term.split()) for term in f"{DESIGN},{CODE}".split(",")]
    expected = [*named, *State, *FenceState]
    assert [term for term in expected if term not in terms] == []
    assert [term for term, count in terms.items() if count > 1] == []
