"""Four faults of a naive scheduler, reproduced beside HelixQueue on the same servers.

`make reproduce` prints both outcomes side by side.
"""

from __future__ import annotations

import signal
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from helixqueue import HelixQueue
from helixqueue.errors import HelixError
from tests.reproduce.naive import TABLES, NaiveScheduler
from tests.support.streams import intake_process

CLAIMERS = 50
COMPOSED, DECOMPOSED = "Sämple-1", "Sa\u0308mple-1"
# The outcomes of this run: the fault, what the naive scheduler did, what HelixQueue did.
OUTCOMES: list[tuple[str, str, str]] = []


@pytest.fixture(scope="module", autouse=True)
def table():
    """Print what happened, for people who run `make reproduce`."""
    yield
    rows = [("fault", "naive", "HelixQueue"), *OUTCOMES]
    print()  # noqa: T201
    for fault, naive, ours in rows:
        print(f"{fault:<44} {naive:<18} {ours}")  # noqa: T201


@pytest.fixture
def naive(database):
    with database.connect("helix_bootstrap") as connection:
        connection.execute(TABLES)
        yield NaiveScheduler(connection)


def count(database, query: str) -> int:
    return database.value(query)


def test_sample_in_two_spellings_makes_one_batch(database, naive):
    for spelling in (COMPOSED, DECOMPOSED):
        naive.submit(spelling)
    with HelixQueue(database.dsn("app_a"), tenant="a") as helix:
        first, second = (
            helix.submit("twins", identity=spelling, payload={}, create=True)
            for spelling in (COMPOSED, DECOMPOSED)
        )
    doubled = count(database, "select count(*) from naive.batch")
    ours = count(database, "select count(*) from helix.batch")
    OUTCOMES.append(("(a) one sample in NFC and NFD", f"{doubled} batches", f"{ours} batch"))
    assert (doubled, ours) == (2, 1)
    assert first.receipt == second.receipt
    assert second.decision == "duplicate"


def test_fifty_claimers_of_one_batch_get_one_lease(database, naive):
    """The window between look and act is as wide as the slowest claimer."""
    naive.submit("S-1")
    window = threading.Barrier(CLAIMERS)

    def claim_naively(number: int) -> None:
        with database.connect("helix_bootstrap") as connection:
            NaiveScheduler(connection).claim(f"gpu-{number}", window)

    with HelixQueue(database.dsn("app_a"), tenant="a", connections=CLAIMERS) as helix:
        helix.submit("race", identity="S-1", payload={}, create=True)

        def claim(number: int) -> int:
            window.wait()
            return len(helix.claim(f"gpu-{number}", ["race"]))

        with ThreadPoolExecutor(CLAIMERS) as pool:
            list(pool.map(claim_naively, range(CLAIMERS)))
            leases = sum(pool.map(claim, range(CLAIMERS)))
    assigned = count(database, "select count(*) from naive.assignment")
    OUTCOMES.append(("(b) 50 claimers of one batch", f"{assigned} assignments", f"{leases} lease"))
    assert assigned == CLAIMERS
    assert leases == 1


def test_message_redelivered_after_a_crash_makes_one_batch(database, naive, stream, tmp_path):
    """The consumer dies after its commit and before XACK; the message is delivered again."""
    stream.redis.xgroup_create(stream.stream, "naive", id="0", mkstream=True)
    stream.add("S-1")
    naive.consume(stream.redis, stream.stream, "dead")
    acknowledged = naive.consume(stream.redis, stream.stream, "alive")
    stream.redis.xack(stream.stream, "naive", *acknowledged)

    killed = intake_process(
        stream,
        tmp_path,
        HELIX_FAILPOINTS="intake.committed=kill",
        HELIX_FAILPOINT_FILE=str(tmp_path / "point"),
    )
    killed.communicate(timeout=60)
    assert killed.returncode == -signal.SIGKILL
    assert (tmp_path / "point.fired").exists()
    stream.drain()
    doubled = count(database, "select count(*) from naive.batch")
    OUTCOMES.append(
        ("(c) crash after commit, before XACK", f"{doubled} batches", f"{stream.batches} batch")
    )
    assert (doubled, stream.batches) == (2, 1)
    assert stream.is_drained()


def test_fault_between_assignment_and_audit_leaves_neither(database, naive):
    """The audit row cannot be written. Naively the assignment is already committed."""
    naive.submit("S-1")

    def fail() -> None:
        raise OSError("the disk of the audit table is full")

    with pytest.raises(OSError, match="audit"):
        naive.assign(1, "gpu-1", fail)
    with HelixQueue(database.dsn("app_a"), tenant="a") as helix:
        accepted = helix.submit("audited", identity="S-1", payload={}, create=True)
        with database.connect("helix_bootstrap") as connection:
            connection.execute(
                "create function naive.full() returns trigger language plpgsql as "
                "$$ begin raise 'no space left' using errcode = 'disk_full'; end $$"
            )
            connection.execute(
                "create trigger full_disk before insert on helix.entry for each row "
                "when (new.reason in ('claimed', 'started')) execute function naive.full()"
            )
            connection.execute("alter table helix.entry enable always trigger full_disk")
        with pytest.raises(HelixError, match="no space left"):
            helix.claim("gpu-1", ["audited"])
        state = helix.state(accepted.receipt)
        events = [event.reason for event in helix.history(accepted.receipt)]
    orphans = count(
        database,
        "select count(*) from naive.assignment a "
        "where not exists (select from naive.audit u where u.batch = a.batch)",
    )
    OUTCOMES.append(
        ("(d) fault between assignment and audit", f"{orphans} without audit", "0 without audit")
    )
    assert orphans == 1
    assert (state, events) == ("PENDING", ["submitted"])
