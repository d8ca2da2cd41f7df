"""Sources: which deliveries asked for a batch; a source counts once, also after retention."""

from __future__ import annotations

import hashlib
import threading

import pytest

from helixqueue import HelixQueue
from helixqueue.engine import calls, duties, letters, reads
from helixqueue.errors import HelixError
from helixqueue.records.letter import NewLetter
from helixqueue.records.submission import Source, SubmissionRow
from helixqueue.states import State
from tests.support.lab import Lab, end_minute, engine_function, wait_until

pytestmark = pytest.mark.module_database


@pytest.fixture
def lab(database):
    with Lab(database) as lab:
        lab.queue(max_attempts=1)
        yield lab


def source(lab, entry="1-1"):
    """Each test has a stream of its own, named like its queue."""
    return Source("stream", lab.q, entry)


def row(lab, identity, entry, payload="{}"):
    return SubmissionRow(identity, payload, source=source(lab, entry))


def failed_batch(lab, identity="s1", entry="1-1"):
    [made] = lab.submit_rows(row(lab, identity, entry))
    lab.fail(*lab.claim(1))
    assert lab.location(made.receipt.batch_id)[0] == "FAILED"
    return made.receipt.batch_id


def due(lab, duty):
    with engine_function(lab.database) as execute:
        execute(f"update helix.duty set next_at = '-infinity' where duty = '{duty}'")
    while (done := lab.run(duties.run_duty(actor="duty", limit=1_000))) is not None:
        assert done.error is None, done


def test_batch_shows_every_delivery_that_asked_for_it(lab):
    [first] = lab.submit_rows(row(lab, "s1", "1-1"))
    [second] = lab.submit_rows(row(lab, "s1", "2-1"))
    lab.submit_rows(row(lab, "s1", "2-1"))
    [conflict] = lab.submit_rows(row(lab, "s1", "3-1", '{"other":1}'))
    assert (first.decision, second.decision, conflict.decision) == ("new", "duplicate", "conflict")
    detail = lab.run(reads.batch_detail(first.receipt.batch_id))
    assert [(s.kind, s.id, s.decision, s.times) for s in detail.sources] == [
        ("stream", "1-1", "new", 1),
        ("stream", "2-1", "duplicate", 2),
        ("stream", "3-1", "conflict", 1),
    ]


def test_submission_without_a_source_writes_no_source_row(lab):
    lab.submit("s1")
    lab.submit("s1", "s2")
    queued = "select count(*) from helix.source s join helix.queue q on q.id = s.queue"
    assert lab.value(f"{queued} where q.name = %s", lab.q) == 0


def test_submission_without_a_source_runs_no_statement_for_sources(lab, database):
    """The functions that a single and a bulk submit call; those of sources are not among them."""
    call = "select helix.submit_v1('a', %s, null, 'text-v1', %s::text[], %s::text[])"
    with database.connect("helix_bootstrap") as connection:
        connection.execute("set track_functions = 'all'")
        connection.execute("set session authorization pool")
        with connection.transaction():
            connection.execute(call, (lab.q, ["n1"], ["{}"]))
            connection.execute(call, (lab.q, ["n2", "n3"], ["{}", "{}"]))
            rows = connection.execute("select funcname from pg_stat_xact_user_functions").fetchall()
    called = {name for (name,) in rows}
    assert {"submit_one", "submit_many"} <= called
    assert not {name for name in called if "source" in name or "submit_from" in name}


def test_source_with_other_content_is_refused_and_makes_no_batch(lab):
    lab.submit_rows(row(lab, "s1", "1-1"))
    [other, good] = lab.submit_rows(row(lab, "s2", "1-1"), row(lab, "s3", "2-1"))
    assert (other.decision, other.receipt, other.differs) == ("refused", None, ("source",))
    assert "source" in other.note
    assert good.decision == "new"
    # Also when both come in one call, where the first counts.
    [first, second] = lab.submit_rows(row(lab, "s4", "4-1"), row(lab, "s5", "4-1"))
    assert (first.decision, second.decision, second.differs) == ("new", "refused", ("source",))


def test_work_without_identity_is_recognised_by_its_source(lab):
    lab.queue(unknown="accept")
    [first] = lab.submit_rows(row(lab, None, "1-1"))
    [again] = lab.submit_rows(row(lab, None, "1-1"))
    [other] = lab.submit_rows(row(lab, None, "2-1"))
    assert (first.decision, again.decision, other.decision) == ("new", "duplicate", "new")
    assert first.receipt == again.receipt != other.receipt
    [changed] = lab.submit_rows(row(lab, None, "1-1", '{"other":1}'))
    assert changed.decision == "conflict"
    # A redelivery is answered although the queue refuses such work by now.
    lab.queue(unknown="refuse")
    [late] = lab.submit_rows(row(lab, None, "1-1"))
    [new] = lab.submit_rows(row(lab, None, "3-1"))
    assert (late.decision, new.decision) == ("duplicate", "refused")


@pytest.mark.parametrize(
    "identity", ["stream\x1fq\x1f1-1", "\x01stream", "0", "stream/1-1"], ids=repr
)
def test_no_identity_has_the_key_of_a_source(lab, identity):
    lab.queue(unknown="accept")
    [nameless] = lab.submit_rows(row(lab, None, "1-1"))
    [named] = lab.submit_rows(SubmissionRow(identity.replace("q", lab.q), "{}"))
    assert named.decision == "new"
    assert named.receipt != nameless.receipt


def test_new_source_of_a_failed_batch_is_answered_by_default(lab):
    batch = failed_batch(lab)
    [answer] = lab.submit_rows(row(lab, "s1", "2-1"))
    assert (answer.decision, answer.state) == ("duplicate", State.FAILED)
    assert lab.location(batch)[0] == "FAILED"
    with HelixQueue(lab.database.dsn("pool"), tenant="a") as helix:
        repeated = helix.submit(lab.q, identity="s1", payload={}, source=source(lab, "3-1"))
    assert f"helixq batch retry {batch}" in repeated.advice


def test_new_source_retries_a_failed_batch_once_where_the_queue_says_so(lab):
    lab.queue(resubmit_failed="retry")
    batch = failed_batch(lab)
    [seen] = lab.submit_rows(row(lab, "s1", "1-1"))
    [without] = lab.submit("s1")
    assert (seen.state, without.state) == (State.FAILED, State.FAILED)
    [answer] = lab.submit_rows(row(lab, "s1", "2-1"))
    assert (answer.decision, answer.state) == ("duplicate", State.PENDING)
    assert lab.history(batch)[-1] == ("PENDING", "retried")
    lab.fail(*lab.claim(1))
    [again] = lab.submit_rows(row(lab, "s1", "2-1"))
    assert again.state is State.FAILED
    [conflict] = lab.submit_rows(row(lab, "s1", "3-1", '{"other":1}'))
    assert conflict.state is State.FAILED


def test_seen_source_never_reopens_after_retention_of_decisions_and_batches(lab):
    lab.queue(resubmit_failed="retry", keep_decisions_seconds=0.001)
    batch = failed_batch(lab)
    lab.submit_rows(row(lab, "s1", "1-1"))
    end_minute(lab.database)
    due(lab, "retire")
    assert lab.run(reads.batch_detail(batch)).decisions == ()
    [answer] = lab.submit_rows(row(lab, "s1", "1-1"))
    assert answer.state is State.FAILED
    lab.queue(keep_failed_seconds=0.001)
    due(lab, "retire")
    [seen] = lab.submit_rows(row(lab, "s1", "1-1"))
    [tombstone] = lab.submit_rows(row(lab, "s1", "9-1"))
    assert (seen.decision, seen.state, tombstone.state) == (
        "duplicate",
        State.FAILED,
        State.FAILED,
    )
    [reused] = lab.submit_rows(row(lab, "s2", "1-1"))
    assert reused.differs == ("source",)
    assert [s.id for s in lab.run(reads.batch_detail(batch)).sources] == ["9-1"]


def test_erased_failed_batch_is_not_reopened(lab):
    lab.queue(resubmit_failed="retry")
    batch = failed_batch(lab)
    lab.decide("erase", batch)
    [answer] = lab.submit_rows(row(lab, "s1", "2-1"))
    assert answer.state is State.FAILED


def test_look_up_of_sources_does_not_read_every_batch(lab):
    """A plan for empty tables once read the table of batches for each source."""
    lab.submit(*[f"filler-{number}" for number in range(400)])
    rows = [row(lab, f"s{number}", f"{number}-1") for number in range(100)]
    call = calls.submit(tenant="a", queue=lab.q, profile="text-v1", rows=rows)
    read = (
        "select sum(seq_tup_read) + sum(idx_tup_fetch) from pg_stat_xact_user_tables"
        " where relname in ('batch', 'source')"
    )
    with lab.database.connect("pool") as connection, connection.transaction():
        connection.execute(call.sql, call.args)
        [(number,)] = connection.execute(read).fetchall()
    assert number < 10 * len(rows)


def test_concurrent_deliveries_of_one_source_reopen_once(lab, database):
    lab.queue(resubmit_failed="retry")
    batch = failed_batch(lab)
    answers = []

    def deliver():
        with Lab(database, q=lab.q) as other:
            answers.extend(other.submit_rows(row(lab, "s1", "2-1")))

    with lab.database.connect("pool") as first:
        call = calls.submit(
            tenant="a", queue=lab.q, profile="text-v1", rows=[row(lab, "s1", "2-1")]
        )
        with first.transaction():
            first.execute(call.sql, call.args)
            thread = threading.Thread(target=deliver)
            thread.start()
            wait_until(
                lambda: lab.value(
                    "select count(*) from pg_stat_activity where wait_event_type = 'Lock'"
                    " and datname = current_database()"
                )
            )
    thread.join()
    assert [answer.decision for answer in answers] == ["duplicate"]
    assert [reason for _, reason in lab.history(batch)].count("retried") == 1


def letter(entry, body=b"x", **more):
    return NewLetter(
        entry, "json", "no JSON", body, len(body), hashlib.sha256(body).digest(), **more
    )


def write(lab, *new, **options):
    return lab.run(
        letters.write_letters(tenant="a", kind="stream", name=lab.q, letters=new, **options)
    )


def test_redelivered_letter_adds_to_its_count(lab):
    [first] = write(lab, letter("1-1"))
    assert write(lab, letter("1-1")) == [first]
    found = lab.run(letters.letter(first, body=True))
    assert (found.row.deliveries, found.row.status, found.body) == (2, "open", b"x")
    # Other content under the same id is another letter: nothing is dropped.
    [second] = write(lab, letter("1-1", b"y"))
    assert second != first


def test_vanished_entry_that_was_processed_is_no_letter(lab):
    lab.submit_rows(row(lab, "s1", "1-1"))
    nothing = hashlib.sha256(b"").digest()
    gone = [NewLetter(e, "vanished", "deleted", None, 0, nothing) for e in ("1-1", "2-1")]
    [known, lost] = write(lab, *gone)
    assert known is None
    assert lab.run(letters.letter(lost)).row.reason == "vanished"


def redrive(lab, number, **fields):
    fields = {"identity": "s1", "payload": "{}"} | fields
    return lab.run(
        letters.redrive_letter(
            letter=number,
            reason="fixed",
            queue=lab.q,
            profile="text-v1",
            row=SubmissionRow(**fields),
            actor="ann",
        )
    )


def test_redriven_letter_keeps_its_source_and_is_redriven_once(lab):
    [number] = write(lab, letter("1-1"))
    answer = redrive(lab, number)
    assert answer.decision == "new"
    detail = lab.run(reads.batch_detail(answer.receipt.batch_id))
    assert [(s.kind, s.name, s.id) for s in detail.sources] == [("stream", lab.q, "1-1")]
    closed = lab.run(letters.letter(number)).row
    assert (closed.status, closed.batch_id, closed.closed_by, closed.closed_for) == (
        "redriven",
        answer.receipt.batch_id,
        "ann",
        "fixed",
    )
    assert redrive(lab, number).note == "the letter is redriven"


def test_redrive_that_is_refused_leaves_the_letter_open(lab):
    lab.submit("s1", payload={"other": 1})
    [number] = write(lab, letter("1-1"))
    assert redrive(lab, number).decision == "conflict"
    assert lab.run(letters.letter(number)).row.status == "open"
    assert redrive(lab, number, revision="2").decision == "new"


def test_discarded_letter_loses_its_bytes_and_keeps_its_record(lab):
    [number] = write(lab, letter("1-1"))
    discard = letters.discard_letters(letters=[number, 10**9], reason="test data", actor="ann")
    assert lab.run(discard) == {number: "ok", 10**9: "refused"}
    assert lab.run(discard)[number] == "repeat"
    found = lab.run(letters.letter(number, body=True))
    assert (found.row.status, found.body, found.row.complete) == ("discarded", None, False)
    assert write(lab, letter("1-1")) == [number]
    assert lab.run(letters.letter(number, body=True)).body is None


def test_erasing_a_batch_empties_its_letters(lab):
    [made] = lab.submit_rows(row(lab, "s1", "1-1"))
    key = lab.value("select key from helix.batch where id = %s", lab.number(made.receipt.batch_id))
    [conflicting] = write(lab, letter("2-1", key=key))
    lab.complete(*lab.claim(1))
    lab.decide("erase", made.receipt.batch_id)
    found = lab.run(letters.letter(conflicting, body=True))
    assert (found.body, found.row.status, found.row.detail) == (None, "expired", None)


def test_letters_expire_after_the_time_that_their_intake_set(lab):
    [kept] = write(lab, letter("1-1"))
    [gone] = write(lab, letter("2-1"), keep_seconds=0.001)
    due(lab, "retire")
    assert lab.run(letters.letter(kept, body=True)).body == b"x"
    found = lab.run(letters.letter(gone, body=True))
    assert (found.body, found.row.status) == (None, "expired")


def test_letters_are_listed_in_pages_by_status_and_reason(lab):
    numbers = write(lab, *[letter(f"{n}-1") for n in range(5)])
    page = lab.run(letters.letters(tenant="a", status="open", reason="json", limit=3))
    following = lab.run(letters.letters(tenant="a", status="open", after=page.next, limit=2))
    assert [row.letter for row in (*page.rows, *following.rows)] == numbers[::-1]
    assert lab.run(letters.letters(tenant="a", reason="queue")).rows == ()


def test_digest_of_a_whole_message_is_not_left_to_the_caller(lab):
    [number] = write(lab, NewLetter("1-1", "json", "", b"x", 1, b"\0" * 32))
    assert lab.run(letters.letter(number)).row.digest == hashlib.sha256(b"x").hexdigest()


def test_invalid_source_is_refused_by_the_database(lab):
    for bad in (
        Source("Stream", "n", "1"),
        Source("stream", "", "1"),
        Source("stream", "n" * 256, "1"),
    ):
        with pytest.raises(HelixError):
            lab.submit_rows(SubmissionRow("s1", "{}", source=bad))


def test_respelled_identity_of_a_delivery_is_counted(lab):
    lab.submit_rows(
        SubmissionRow("s1", "{}", raw=" s1", source=source(lab, "1-1")),
        SubmissionRow("s2", "{}", raw="s2", source=source(lab, "2-1")),
    )
    counted = lab.rows(
        "select value from helix.metric_change "
        "where name = 'helix_id_normalization_changed_total' and queue = %s",
        lab.q,
    )
    assert counted == [(1,)]
