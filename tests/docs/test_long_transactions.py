"""The list of transactions that the product keeps open, against the code and the guide."""

from __future__ import annotations

import re
from pathlib import Path

from helixqueue.postgres.transaction_bounds import LONG_TRANSACTIONS

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "src" / "helixqueue"
OPENS = re.compile(
    r"connection\.transaction\(|autocommit = False|set_autocommit\(False\)|\"begin\""
    r"|limited_transaction(?:_async)?\(database\)|in_caller_transaction=True|def run_within\b"
)
# It opens the transactions of others; test helpers and words of other meaning.
HELPERS = {"postgres/transaction_bounds.py", "service/routes/changes.py"}


def test_list_names_every_module_that_opens_a_transaction():
    modules = {
        path.relative_to(PACKAGE).as_posix()
        for path in PACKAGE.rglob("*.py")
        if not path.stem.endswith("_async")  # its sync twin is listed
        and OPENS.search(path.read_text(encoding="utf-8"))
    }
    listed = {transaction.opened_in for transaction in LONG_TRANSACTIONS}
    assert listed - {"transport/handler_transactions.py"} == modules - HELPERS


def test_guide_shows_the_list():
    rows = [
        "| transaction | limit |",
        "|---|---|",
        *(f"| {transaction.name} | {transaction.limit} |" for transaction in LONG_TRANSACTIONS),
    ]
    guide = (ROOT / "docs" / "guides" / "operating.md").read_text(encoding="utf-8")
    assert "\n".join(rows) + "\n" in guide, "\n".join(rows)
