"""`helixq batch`: what stands where, one batch's story, and decisions with their reasons."""

from __future__ import annotations

import json
import re
import uuid
from types import SimpleNamespace

import pytest

from helixqueue.cli import batch_ref, pages
from helixqueue.cli.exits import Exit
from helixqueue.engine import calls
from helixqueue.errors import NoSuchBatch
from helixqueue.operations.instructions import run_instructions
from tests.support.lab import completion

NFC, NFD = "S\u00e4mple-1", "Sa\u0308mple-1"


def zombie(lab, identity=NFD):
    """Bo freezes, ada finishes, bo wakes up and is refused."""
    [submitted] = lab.submit(identity, payload={"pod5": "a"})
    [frozen] = lab.claim(worker="bo")
    lab.pass_time(frozen.batch)
    lab.run(calls.reap(actor="reaper"))
    [second] = lab.claim(worker="ada")
    lab.settle(completion(second), worker="ada")
    lab.settle(completion(frozen), worker="bo")
    return str(submitted.receipt.batch_id)


def test_batch_list_continues_after_its_cursor(helixq, lab):
    lab.submit_many(5)
    first = helixq("batch", "list", "--queue", lab.q, "--limit", "3", "--json")
    assert first.code == Exit.OK
    assert set(first.json) == {"rows", "next"}
    second = helixq("batch", "list", "--queue", lab.q, "--after", first.json["next"], "--json")
    rows = first.json["rows"] + second.json["rows"]
    assert {row["identity"] for row in rows} == {f"s{n:05}" for n in range(5)}
    assert second.json["next"] is None
    result = helixq("batch", "list", "--queue", lab.q, "--limit", "3")
    assert [line[0] for line in result.lines] == [row["batch_id"] for row in rows[:3]]
    assert f"more: --after {first.json['next']}" in result.err


def test_batch_list_json_has_stable_members(helixq, lab):
    lab.submit(("plate", "A01"))
    lab.claim()
    [row] = helixq("batch", "list", "--queue", lab.q, "--json").json["rows"]
    assert set(row) == {
        *("batch_id", "key", "tenant", "queue", "identity", "raw", "revision", "state", "attempt"),
        *("priority", "created_at", "worker", "deadline", "cause", "due", "finished_at"),
        *("finished_by", "failure", "detail", "last_worker", "refused"),
    }
    assert (row["identity"], row["state"], row["worker"]) == (["plate", "A01"], "RUNNING", "w1")


def test_batch_list_applies_filters(helixq, lab):
    zombie(lab)
    lab.submit_many(2)
    lab.claim(worker="ann")

    def found(*filters):
        done = helixq("batch", "list", "--queue", lab.q, *filters, "--json")
        return len(done.json["rows"])

    assert found() == 3
    assert (
        found("--state", "completed") == found("--identity", NFC) == found("--worker", "ann") == 1
    )
    assert found("--state", "PENDING") == 1
    assert found("--since", "1h") == 3
    assert found("--until", "1h") == found("--since", "+1h") == 0


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (["--state", "DONE"], Exit.USAGE),
        (["--limit", "0"], Exit.USAGE),
        (["--since", "yesterday"], Exit.USAGE),
        (["--after", "page-2"], Exit.REFUSED),
        (["--identity", "a\u200bb"], Exit.REFUSED),
        (["--worker", "w", "--state", "pending"], Exit.REFUSED),
        (["--tenant", "B!"], Exit.REFUSED),
    ],
)
def test_invalid_list_filters_are_rejected(helixq, arguments, code):
    done = helixq("batch", "list", *arguments)
    assert (done.code, done.out) == (code, "")
    assert done.err


@pytest.mark.parametrize("spelling", [NFC, NFD])
def test_batch_show_names_both_workers_and_both_spellings(helixq, lab, spelling):
    batch_id = zombie(lab)
    done = helixq("batch", "show", spelling, "--queue", lab.q)
    assert done.code == Exit.OK, done.err
    text = done.out
    assert batch_id in text
    assert (
        "at offset 1: U+0061 LATIN SMALL LETTER A, U+0308 COMBINING DIAERESIS is stored as" in text
    )
    assert [done_line(done, "bo")[0], done_line(done, "bo")[-1]] == ["1", "lost, by reaper"]
    refused = text.partition("Refused writes\n")[2].splitlines()[1].split("\t")
    assert (refused[1], refused[2], refused[4]) == ("bo", "settle", "ada")
    assert "pod5" not in text
    assert "reads" not in text
    assert '{"pod5":"a"}' in helixq("batch", "show", batch_id, "--payload").out


def done_line(done, worker):
    """The line of a worker's lease."""
    leases = done.out.partition("Attempts\n")[2].partition("\n\n")[0]
    [line] = [line.split("\t") for line in leases.splitlines() if line.split("\t")[2] == worker]
    return line


def test_batch_show_json_has_stable_members(helixq, lab):
    story = helixq("batch", "show", zombie(lab), "--json").json
    assert [event["reason"] for event in story["events"]] == [
        *("submitted", "claimed", "started", "lost"),
        *("claimed", "started", "completed"),
    ]
    assert [lease["worker"] for lease in story["attempts"]] == ["bo", "ada"]
    [refusal] = story["refusals"]
    assert (refusal["worker"], refusal["owner"]) == ("bo", "ada")
    assert (story["identity"], story["raw"]) == (NFC, NFD)
    assert (story["has_payload"], story["has_result"]) == (False, False)
    full = helixq("batch", "show", story["key"], "--payload", "--json").json
    assert (full["payload"], full["result"]) == ({"pod5": "a"}, {"reads": 7})


def test_show_list_and_export_agree_on_the_identity(helixq, lab):
    batch_id = zombie(lab)
    shown = helixq("batch", "show", batch_id, "--json").json
    text = helixq("batch", "show", batch_id).out
    [listed] = helixq("batch", "list", "--queue", lab.q, "--json").json["rows"]
    [exported] = map(json.loads, helixq("batch", "export", "--queue", lab.q).out.splitlines())
    assert re.search(rf"^identity +{NFC}$", text, re.MULTILINE)
    assert shown["identity"] == listed["identity"] == exported["identity"] == NFC
    assert shown["raw"] == exported["raw"] == NFD


@pytest.mark.parametrize("name", ["nobody", str(uuid.UUID(int=7)), "v1:" + "0" * 64])
@pytest.mark.parametrize("verb", [("show",), ("cancel", "--reason", "x")])
def test_unknown_batch_exits_with_no(helixq, verb, name):
    done = helixq("batch", *verb, name)
    assert done.code == Exit.NO
    assert (
        "has no batch" in done.err or "no batch matches" in done.err or "no such batch" in done.out
    )


def test_ambiguous_identity_is_refused(helixq, lab):
    lab.submit("twice")
    lab.submit("twice", revision="2")
    done = helixq("batch", "show", "twice", "--queue", lab.q)
    assert done.code == Exit.NO
    assert "matches 2 batches" in done.err
    assert helixq("batch", "show", "twice", "--queue", lab.q, "--revision", "2").code == Exit.OK


def test_short_id_names_a_batch_in_every_command(helixq, lab):
    lab.queue(max_attempts=1)
    [row] = lab.submit("x")
    short = str(row.receipt.batch_id)[:8]
    assert helixq("batch", "show", short, "--json").json["identity"] == "x"
    for verb, state in (("release", "PENDING"), ("retry", "PENDING"), ("cancel", "CANCELLED")):
        if verb == "release":
            lab.claim()
        if verb == "retry":
            lab.fail(*lab.claim())
        done = helixq("batch", verb, short, "--reason", "x", "--json")
        assert done.json["rows"][0]["state"] == state, done.err
    assert helixq("batch", "erase", short.upper(), "--reason", "x").code == Exit.OK
    assert helixq("batch", "show", short[:7]).code == Exit.NO


def test_short_id_of_several_batches_is_refused(monkeypatch):
    first, second = (uuid.UUID(f"deadbeef-0000-8000-8000-00000000000{n}") for n in (1, 2))
    rows = [batch_row(first), batch_row(second)]

    def list_batches(_, *, identity=None, **_filters):
        yield from ()
        return SimpleNamespace(rows=[] if identity else rows, next=None)

    monkeypatch.setattr(batch_ref, "list_batches", list_batches)

    def find():
        return run_instructions(batch_ref.find(None, "deadbeef", queue=None), lambda _: None)

    with pytest.raises(NoSuchBatch, match="matches 2 batches"):
        find()
    rows.pop()
    assert find() == first


def batch_row(batch_id):
    return SimpleNamespace(
        batch_id=batch_id, tenant="a", queue="q", raw=("x",), revision="", state="PENDING"
    )


def test_identity_that_looks_like_a_short_id_wins_over_ids(helixq, lab):
    [row] = lab.submit("deadbeef")
    shown = helixq("batch", "show", "deadbeef", "--queue", lab.q, "--json").json
    assert shown["batch_id"] == str(row.receipt.batch_id)


def test_list_reads_on_after_short_and_empty_pages():
    pages_by_cursor = {None: ([], "1"), "1": (["a"], "2"), "2": ([], "3"), "3": (["b", "c"], None)}

    def read(after, limit):
        rows, cursor = pages_by_cursor[after]
        return SimpleNamespace(rows=rows[:limit], next=cursor)

    assert pages.gather(read, 50, None) == (["a", "b", "c"], None)
    assert pages.gather(read, 1, None) == (["a"], "2")


def test_login_of_another_tenant_sees_nothing(helixq, lab):
    batch_id = zombie(lab)
    found = {"role": "app_b", "HELIX_TENANT": ""}
    assert helixq("batch", "show", batch_id, **found).code == Exit.NO
    assert helixq("batch", "list", "--queue", lab.q, **found).out == ""
    assert helixq("batch", "cancel", batch_id, "--reason", "mine", **found).code == Exit.NO
    for arguments in (["batch", "list"], ["queue", "list"], ["submit", lab.q, "s"]):
        done = helixq(*arguments, role="app_b")
        assert done.code == Exit.REFUSED
        assert "may not act for tenant 'a'" in done.err


def test_batch_actions_record_reason_and_actor(helixq, lab):
    lab.queue(max_attempts=1)
    [submitted] = lab.submit("x")
    lab.fail(*lab.claim())
    name = str(submitted.receipt.batch_id)
    because = ("--reason", "new flow cell", "--actor", "ann")
    done = helixq("batch", "retry", "x", "--queue", lab.q, *because)
    assert (done.code, done.lines[0][:4]) == (Exit.OK, [name, "x", "ok", "PENDING"])
    done = helixq("batch", "cancel", name, *because, "--json")
    [verdict] = done.json["rows"]
    assert verdict == {
        "batch_id": name, "answer": "ok", "state": "CANCELLED", "note": None,
        "queue": lab.q, "identity": "x", "revision": "",
    }  # fmt: skip
    assert helixq("batch", "cancel", name, *because).lines[0][2] == "repeat"
    assert helixq("batch", "erase", name, *because).code == Exit.OK
    events = helixq("batch", "show", name, "--json").json["events"]
    found = [(event["reason"], event["actor"], event["detail"]) for event in events[-2:]]
    assert found == [("retried", "ann", "new flow cell"), ("cancelled", "ann", "new flow cell")]


def test_illegal_batch_actions_exit_with_no(helixq, lab):
    [first, second] = (row.receipt.batch_id for row in lab.submit("1", "2"))
    done = helixq("batch", "retry", first, "--reason", "x")
    assert (done.code, done.lines[0][2]) == (Exit.NO, "illegal")
    assert "not possible for a batch that is" in done.lines[0][4]
    assert helixq("batch", "erase", first, "--reason", "x").code == Exit.NO
    # One that can be cancelled is, though another cannot be found.
    done = helixq("batch", "cancel", second, uuid.uuid4(), "--reason", "x", "--json")
    assert done.code == Exit.NO
    assert [verdict["answer"] for verdict in done.json["rows"]] == ["ok", "refused"]


@pytest.mark.parametrize("verb", ["retry", "cancel", "erase"])
@pytest.mark.parametrize("reason", [(), ("--reason", " ")])
def test_batch_actions_require_a_reason(helixq, verb, reason):
    assert helixq("batch", verb, uuid.uuid4(), *reason).code == Exit.USAGE
