"""Texts such as `unknown` are no identity: they never make two samples one batch."""

from __future__ import annotations

import pytest

from helixqueue import HelixQueue, InvalidIdentity
from helixqueue.records.submission import SubmissionRow
from tests.support.lab import BATCHES, Lab

pytestmark = pytest.mark.module_database


@pytest.fixture
def lab(database):
    with Lab(database) as lab:
        lab.queue()
        yield lab


def decisions(answers):
    return [answer.decision for answer in answers]


@pytest.mark.parametrize("identity", ["unknown", "UnKnown", "N/A", ("none", "NULL")])
def test_samples_labelled_unknown_never_become_one_batch(lab, identity):
    """Two tubes whose form says `unknown` are two samples: the second would be called a repeat."""
    [refused] = lab.submit(identity)
    assert (refused.decision, refused.receipt) == ("refused", None)
    assert "is a placeholder" in refused.note
    lab.queue(unknown="accept")
    answers = [*lab.submit(identity, identity), *lab.submit(identity)]
    assert decisions(answers) == ["new"] * 3
    assert all(answer.is_unnamed for answer in answers)
    assert len({answer.receipt.batch_id for answer in answers}) == 3
    assert [lease.identity for lease in lab.claim(3)] == [None] * 3
    named = identity if isinstance(identity, str) else "\x1f".join(identity)
    raws = "select b.raw from helix.batch b join helix.queue q on q.id = b.queue where q.name = %s"
    assert lab.rows(raws, lab.q) == [(named,)] * 3


def test_identity_of_which_one_part_is_unknown_is_an_identity(lab):
    answers = lab.submit(("run7", "unknown"), ("run7", "unknown"), "unknown-7", "unknownx")
    assert decisions(answers) == ["new", "duplicate", "new", "new"]
    assert not any(answer.is_unnamed for answer in answers)


def test_placeholders_of_a_queue_are_compared_after_canonicalisation_and_case_folding(lab):
    lab.queue(placeholders=["  ohne a\u0308nderung ", "TBD"])
    assert decisions(lab.submit("Ohne Änderung", " tbd", "unknown")) == [
        "refused",
        "refused",
        "new",
    ]
    lab.queue(placeholders=[])
    assert decisions(lab.submit("tbd")) == ["new"]


def test_redelivered_message_labelled_unknown_is_recognised_by_its_source(lab):
    lab.queue(unknown="accept")
    rows = [
        SubmissionRow("unknown", "{}", source=("stream", "intake", entry))
        for entry in ("1-0", "2-0", "1-0")
    ]
    assert decisions(lab.submit_rows(*rows)) == ["new", "new", "duplicate"]


def test_reused_request_key_does_not_merge_work_labelled_unknown(lab):
    """A client may use its keys again after their time; the fence knows which are repeats."""
    lab.queue(unknown="accept")
    row = SubmissionRow("unknown", "{}", source=("http", "uploader", "key-1"))
    assert decisions([*lab.submit_rows(row), *lab.submit_rows(row)]) == ["new", "new"]


def test_client_with_outdated_settings_cannot_merge_work_labelled_unknown(database, lab, caplog):
    """The engine decides; what a client remembers of the queue only spares a call."""
    lab.queue(unknown="accept", placeholders=[])
    with HelixQueue(database.dsn("pool"), tenant="a") as helix:
        assert not helix.submit(lab.q, identity="s1", payload=1).without_identity
        lab.queue(placeholders=["unknown"])
        answers = [helix.submit(lab.q, identity="unknown", payload=n) for n in (1, 1)]
        assert decisions(answers) == ["new", "new"]
        assert all(answer.without_identity for answer in answers)
        assert sum("without_identity" in record.message for record in caplog.records) == 2
        lab.queue(unknown="refuse")
        with pytest.raises(InvalidIdentity, match="placeholder"):
            helix.submit(lab.q, identity="unknown", payload=1)
    assert lab.value(BATCHES, lab.q) == 3
