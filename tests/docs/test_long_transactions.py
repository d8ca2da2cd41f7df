"""The list of transactions that the product keeps open, against the code and the guide."""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "src" / "helixqueue"
OPENS = re.compile(
    r"connection\.transaction\(|autocommit = False|set_autocommit\(False\)|\"begin\""
    r"|limited_transaction(?:_async)?\(database\)|in_caller_transaction=True|def run_within\b"
)
# It opens the transactions of others; test helpers and words of other meaning; a file of SQLite.
HELPERS = {
    *("postgres/transaction_bounds.py", "service/routes/changes.py", "engine/webhooks.py"),
    "runs/spool.py",
}


class LongTransaction(NamedTuple):
    name: str
    opened_in: str  # a module of the package
    limit: str


# All of them; docs/guides/operating.md shows this table.
_OWN_LIMITS = "10 s silent, 60 s in total, 2 s for a row lock"
LONG_TRANSACTIONS = (
    LongTransaction("chunk of an intake", "intake/chunk.py", _OWN_LIMITS),
    LongTransaction(
        "100 or more submissions or ledger events", "client/postgres_backend.py", _OWN_LIMITS
    ),
    LongTransaction(
        "keyed request of the service", "postgres/tenant_sessions.py",
        "time limit of its statements and 1 s silent, 60 s in total",
    ),
    LongTransaction(
        "keyed request in the endpoint's session", "fence/http/session_transaction.py",
        "`ttl.transaction_seconds` of the policy, silent and in total",
    ),
    LongTransaction("`submit --dry-run`", "cli/submit_dry_run.py", "10 s silent, rolled back"),
    LongTransaction(
        "delivery to a mounted webhook", "webhook/receiver.py", "10 s silent"
    ),
    LongTransaction("page of a feed", "ledger/feed.py", "`effect_seconds` (60 s) silent"),
    LongTransaction("`lease.transaction()`", "worker/handler_transaction.py", "the lease, silent"),
    LongTransaction(
        "`lease.within(...)` after its settlement", "transport/handler_transactions.py",
        "the lease, idle",
    ),
    LongTransaction(
        "worker waits for a row of its lease", "transport/direct.py",
        "one statement: its time limit",
    ),
    LongTransaction(
        "`check`, `replay`, `seal`, exports", "postgres/snapshot.py", "1 h idle; reads"
    ),
    LongTransaction("`check` of one query", "operate/check.py", "one statement, rolled back"),
    LongTransaction("`recover`", "operate/recover.py", "one statement"),
    LongTransaction("`migrate`", "engine/migrate.py", "none: an operator watches it"),
    LongTransaction("worker of `helixq demo`", "demo/worker.py", "none: it shows user code"),
    LongTransaction("`within=`", "postgres/caller_transaction.py", "none: the caller's own"),
)  # fmt: skip


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
