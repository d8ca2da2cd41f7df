"""`helixq batch list --state failed` and `helixq batch retry`, at a database and at a service."""

from __future__ import annotations

import pytest

from helixqueue.cli.exits import Exit
from tests.support.service import Site, serving, settings_for


@pytest.fixture(scope="module")
def site(database):
    with serving(settings_for(database)) as url:
        yield Site(database, url)


@pytest.fixture(params=["database", "service"])
def batch(request, helixq, site):
    """`helixq batch` at a database, and at a service with only a URL and a token."""
    environment = {}
    if request.param == "service":
        environment = {"HELIX_DSN": "", "HELIX_TENANT": "", "HELIX_URL": site.url,
                       "HELIX_TOKEN": site.token()}  # fmt: skip
    return lambda *words: helixq("batch", *words, **environment)


def fail_batches(lab, count=1, prefix="s", **options):
    """Submit batches and fail them; their ids, the latest failure first."""
    rows = lab.submit_many(count, prefix=prefix)
    for lease in lab.claim(count):
        lab.fail(lease, permanent=True, **options)
    return [str(row.receipt.batch_id) for row in reversed(rows)]


def test_failed_batches_are_listed_in_pages_by_failure_class_and_time(batch, lab):
    older = fail_batches(lab, 2, prefix="m", failure="OutOfMemory", detail="24 GB")
    newer = fail_batches(lab, 2)
    words = ("list", "--queue", lab.q, "--state", "failed")
    first = batch(*words, "--limit", "3", "--json").json
    rest = batch(*words, "--after", first["next"], "--json").json
    assert [row["batch_id"] for row in first["rows"] + rest["rows"]] == newer + older
    assert rest["next"] is None
    [row, _] = batch("list", "--queue", lab.q, "--failure", "OutOfMemory").lines
    assert (row[0], row[2:5]) == (older[0], ["m00001", "FAILED", "1"])
    assert row[6].endswith("by w1: OutOfMemory 24 GB")
    for more in (["--since", "+1h"], ["--until", "1h"]):
        assert batch(*words, *more, "--json").json["rows"] == []


def test_json_of_a_failed_batch_has_failure_worker_and_time(batch, lab):
    [batch_id] = fail_batches(lab, detail="torn")
    [row] = batch("list", "--queue", lab.q, "--state", "failed", "--json").json["rows"]
    assert row["finished_at"]
    named = ("batch_id", "tenant", "queue", "identity", "revision", "attempt", "failure", "detail",
             "finished_by", "last_worker")  # fmt: skip
    assert {name: row[name] for name in named} == {
        "batch_id": batch_id, "tenant": "a", "queue": lab.q, "identity": "s00000", "revision": "",
        "attempt": 1, "failure": "Broken", "detail": "torn", "finished_by": "w1",
        "last_worker": "w1",
    }  # fmt: skip
    shown = batch("show", "s00000", "--queue", lab.q, "--json").json
    [attempt] = shown["attempts"]
    assert (attempt["worker"], attempt["end"], attempt["detail"]) == ("w1", "failed", "torn")
    assert "Broken torn" in " ".join(batch("show", batch_id).out.split())


def test_batches_are_retried_by_name_and_leave_the_list(batch, lab):
    batch_id, _ = fail_batches(lab, 2)
    words = ("retry", batch_id, "s00000", "--queue", lab.q, "--reason", "a new flow cell")
    done = batch(*words)
    assert done.code == Exit.OK
    assert [line[1:4] for line in done.lines] == [
        ["s00001", "ok", "PENDING"], ["s00000", "ok", "PENDING"],
    ]  # fmt: skip
    assert batch(*words, "--json").json["rows"][0]["answer"] == "repeat"
    assert batch("list", "--queue", lab.q, "--state", "failed").lines == []
    lab.complete(*lab.claim(2))
    done = batch(*words, "--json")
    assert done.code == Exit.NO
    assert {row["answer"] for row in done.json["rows"]} == {"illegal"}


def test_batches_are_retried_by_filter_up_to_a_limit(batch, lab):
    ids = fail_batches(lab, 3)
    fail_batches(lab, prefix="o", failure="Other")
    words = ("retry", "--queue", lab.q, "--failure", "Broken", "--reason", "x")
    first = batch(*words, "--limit", "2", "--json").json
    assert [row["batch_id"] for row in first["rows"]] == ids[:2]
    last = batch(*words, "--limit", "2", "--after", first["next"])
    assert [line[0] for line in last.lines] == ids[2:]
    assert batch(*words).code == Exit.OK  # nothing is left
    assert len(batch("list", "--queue", lab.q, "--state", "failed").lines) == 1


def test_retry_without_limit_takes_all_that_match(batch, lab):
    ids = fail_batches(lab, 600)
    words = ("retry", "--queue", lab.q, "--reason", "x")
    preview = batch(*words, "--dry-run", "--json").json
    assert [row["batch_id"] for row in preview["rows"]] == ids
    assert {(row["answer"], row["state"]) for row in preview["rows"]} == {("ok", "FAILED")}
    assert [row["batch_id"] for row in batch(*words, "--json").json["rows"]] == ids
    assert batch("list", "--queue", lab.q, "--state", "failed").lines == []


def test_dry_run_lists_identities_and_changes_nothing(batch, lab):
    fail_batches(lab, 2)
    done = batch("retry", "--queue", lab.q, "--reason", "x", "--dry-run")
    assert (done.code, "nothing was changed" in done.err) == (Exit.OK, True)
    assert [line[1:4] for line in done.lines] == [
        ["s00001", "ok", "FAILED"], ["s00000", "ok", "FAILED"],
    ]  # fmt: skip
    assert len(batch("list", "--queue", lab.q, "--state", "failed").lines) == 2


def test_batches_are_cancelled_by_filter(batch, lab):
    lab.submit_many(2)
    words = ("cancel", "--queue", lab.q, "--state", "pending", "--reason", "x")
    assert [line[2:4] for line in batch(*words, "--dry-run").lines] == [["ok", "PENDING"]] * 2
    assert [line[2:4] for line in batch(*words).lines] == [["ok", "CANCELLED"]] * 2
    assert batch("cancel", "--queue", lab.q, "--reason", "x").code == Exit.REFUSED


@pytest.mark.parametrize(
    "words",
    [
        ["S-1"],
        ["--reason", "x"],
        ["--queue", "q", "--reason", " "],
        ["S-1", "--failure", "Broken", "--reason", "x"],
        ["S-1", "S-2", "--limit", "1", "--reason", "x"],
        ["--queue", "q", "--limit", "100001", "--reason", "x"],
    ],
    ids=str,
)
def test_ambiguous_retry_is_a_usage_error(helixq, words):
    assert helixq("batch", "retry", *words).code == Exit.USAGE
