"""`helixq letter`: what nobody tries any more, and another chance for it, wherever it is asked."""

from __future__ import annotations

import uuid

import pytest

from helixqueue.cli.exits import Exit
from tests.support.service import Site, serving, settings_for


@pytest.fixture(scope="module")
def site(database):
    with serving(settings_for(database)) as url:
        yield Site(database, url)


@pytest.fixture(params=["database", "service"])
def letter(request, helixq, site):
    """`helixq letter` at a database, and at a service with nothing but a URL and a token."""
    environment = {}
    if request.param == "service":
        environment = {"HELIX_DSN": "", "HELIX_TENANT": "", "HELIX_URL": site.url,
                       "HELIX_TOKEN": site.token()}  # fmt: skip
    return lambda *words: helixq("letter", *words, **environment)


def dead(lab, count=1, prefix="s", **options):
    """The ids of new letters, the newest first."""
    made = lab.submit_many(count, prefix=prefix)
    for lease in lab.claim(count):
        lab.fail(lease, permanent=True, **options)
    return [str(one.receipt.batch_id) for one in reversed(made)]


def test_letters_are_listed_in_pages_by_class_and_time(letter, lab):
    older = dead(lab, 2, prefix="m", failure="OutOfMemory", detail="24 GB")
    newer = dead(lab, 2)
    first = letter("list", "--queue", lab.q, "--limit", "3", "--json").json
    rest = letter("list", "--queue", lab.q, "--after", first["next"], "--json").json
    assert [one["batch_id"] for one in first["letters"] + rest["letters"]] == newer + older
    assert rest["next"] is None
    [row, _] = letter("list", "--queue", lab.q, "--failure", "OutOfMemory").lines
    assert (row[0], row[2:4], row[5:]) == (older[0], ["m00001", "1"], ["w1", "OutOfMemory 24 GB"])
    for words in (["--since", "+1h"], ["--before", "1h"]):
        assert letter("list", "--queue", lab.q, *words, "--json").json["letters"] == []


def test_the_shape_of_a_letter(letter, lab):
    [batch_id] = dead(lab, detail="torn")
    listed = letter("list", "--queue", lab.q, "--json").json["letters"]
    shown = letter("show", "s00000", "--queue", lab.q, "--json").json
    [attempt] = shown.pop("attempts")
    assert (attempt["worker"], attempt["end"], attempt["detail"]) == ("w1", "failed", "torn")
    assert listed == [shown]
    assert shown.pop("failed_at")
    assert shown == {
        "batch_id": batch_id, "tenant": "a", "queue": lab.q, "identity": "s00000", "revision": "",
        "attempt": 1, "failure": "Broken", "detail": "torn", "worker": "w1",
    }  # fmt: skip
    assert "Broken torn" in letter("show", batch_id).out


def test_what_is_no_letter_is_not_shown_as_one(letter, lab):
    [one] = lab.submit("alive")
    done = letter("show", one.receipt.batch_id)
    assert (done.code, "it is PENDING" in done.err) == (Exit.NO, True)
    assert letter("show", uuid.uuid4()).code == Exit.NO


def test_letters_are_redriven_by_name_and_leave_the_list(letter, lab):
    batch_id, _ = dead(lab, 2)
    words = ("redrive", batch_id, "s00000", "--queue", lab.q, "--reason", "a new flow cell")
    done = letter(*words)
    assert (done.code, [line[1:3] for line in done.lines]) == (Exit.OK, [["ok", "PENDING"]] * 2)
    assert letter(*words, "--json").json["verdicts"][0]["answer"] == "repeat"
    assert letter("list", "--queue", lab.q).lines == []
    lab.complete(*lab.claim(2))
    done = letter(*words, "--json")
    assert done.code == Exit.NO
    assert {one["answer"] for one in done.json["verdicts"]} == {"refused"}


def test_a_queue_is_redriven_in_bounded_steps(letter, lab):
    ids = dead(lab, 3)
    dead(lab, prefix="o", failure="Other")
    words = ("redrive", "--queue", lab.q, "--failure", "Broken", "--reason", "x", "--limit", "2")
    first = letter(*words, "--json").json
    assert [one["batch_id"] for one in first["verdicts"]] == ids[:2]
    last = letter(*words, "--after", first["next"])
    assert [line[0] for line in last.lines] == ids[2:]
    assert letter(*words).code == Exit.OK  # and there is nothing left to do
    assert len(letter("list", "--queue", lab.q).lines) == 1


@pytest.mark.parametrize(
    "words",
    [
        ["S-1"],
        ["--reason", "x"],
        ["--queue", "q", "--reason", " "],
        ["S-1", "--failure", "Broken", "--reason", "x"],
        ["--queue", "q", "--limit", "1001", "--reason", "x"],
    ],
    ids=str,
)
def test_a_redrive_without_one_meaning_drives_nothing(helixq, words):
    assert helixq("letter", "redrive", *words).code == Exit.USAGE
