"""`helixq queue`: settings and counts, pausing and closing."""

from __future__ import annotations

import pytest

from helixqueue.cli.exits import Exit
from helixqueue.cli.queue import COUNTS


def test_queue_can_be_created_changed_and_shown(helixq):
    name = helixq.q
    made = helixq(
        "queue", "set", name, "--reason", "x", "--lease", "30", "--profile", "lab-id-v1", "--json"
    )
    assert made.code == Exit.OK, made.err
    assert (made.json["lease_seconds"], made.json["profile"]) == (30, "lab-id-v1")
    result = helixq(
        "queue", "set", name, "--reason", "x", "--max-attempts", "2", "--requires", '{"gpus": 1}'
    )
    assert result.out == f"queue {name} of tenant a: max_attempts 2, requires {{'gpus': 1}}\n"
    shown = helixq("queue", "show", name, "--json").json
    assert (shown["lease_seconds"], shown["max_attempts"]) == (30, 2)
    assert shown["requires"] == {"gpus": 1}
    lines = helixq("queue", "show", name).lines
    assert ["max_attempts", "2"] in lines
    assert ["lease_seconds", "30"] in lines
    assert ["keep_completed_seconds", "forever"] in lines


def test_queue_show_and_list_count_batches_by_state(helixq, lab):
    lab.submit_many(4)
    lab.complete(*lab.claim())
    lab.claim()
    shown = helixq("queue", "show", lab.q, "--json").json
    numbers = {name: count["number"] for name, count in shown["counts"].items()}
    assert list(numbers.values()) == [2, 0, 0, 1, 1, 0, 0]
    assert list(numbers) == list(COUNTS)
    assert not any(count["more"] for count in shown["counts"].values())
    [line] = [line for line in helixq("queue", "list").lines if line[1] == lab.q]
    assert line == ["a", lab.q, "open", "2", "0", "0", "1", "1", "0", "0"]


def test_paused_queue_assigns_nothing_until_resumed(helixq, lab):
    lab.submit("x")
    assert (
        helixq("queue", "pause", lab.q, "--reason", "x").out
        == f"queue {lab.q} of tenant a: paused yes\n"
    )
    assert lab.claim() == []
    listed = {line[1]: line[2] for line in helixq("queue", "list").lines}
    assert listed[lab.q] == "paused"
    assert helixq("queue", "resume", lab.q, "--reason", "x", "--json").json["paused"] is False
    assert helixq("queue", "show", lab.q).code == Exit.OK


def test_closed_queue_refuses_submissions(helixq, lab):
    helixq("queue", "set", lab.q, "--reason", "x", "--closed")
    done = helixq("submit", lab.q, "x", "--json")
    assert (done.code, done.json["error"]["kind"]) == (Exit.REFUSED, "QueueClosed")
    helixq("queue", "set", lab.q, "--reason", "x", "--open")
    assert helixq("submit", lab.q, "x").code == Exit.OK


def test_missing_queue_is_reported(helixq):
    assert helixq("queue", "show", "nowhere").code == Exit.NO
    assert helixq("queue", "show", "nowhere", "--json").json["error"]["kind"] == "NoSuchQueue"
    for verb in ("pause", "resume"):
        done = helixq("queue", verb, "nowhere", "--reason", "x")
        assert done.code == Exit.NO
        assert "no queue nowhere" in done.err
    listed = helixq("queue", "list", "--json").json["rows"]
    assert "nowhere" not in {queue["name"] for queue in listed}


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (["--profile", "text-v9"], Exit.USAGE),
        (["--unknown", "maybe"], Exit.USAGE),
        (["--lease", "0"], Exit.USAGE),
        (["--max-attempts", "many"], Exit.USAGE),
        (["--requires", "{"], Exit.USAGE),
        (["--requires", "1"], Exit.USAGE),
        (["--requires", '{"gpu": 1}'], Exit.REFUSED),
    ],
)
def test_invalid_queue_settings_are_rejected(helixq, arguments, code):
    done = helixq("queue", "set", helixq.q, "--reason", "x", *arguments)
    assert (done.code, done.out) == (code, "")


def test_login_of_one_tenant_needs_no_tenant_option(helixq):
    done = helixq("queue", "set", helixq.q, "--reason", "x", role="app_b", HELIX_TENANT="")
    assert done.out == f"queue {helixq.q} of tenant b: created\n"
    assert "tenant: b" in done.err
    everybody = helixq("queue", "set", helixq.q, "--reason", "x", HELIX_TENANT="")
    assert everybody.code == Exit.REFUSED
    assert "this login acts for all tenants, such as" in everybody.err
    result = helixq("queue", "set", helixq.q, "--reason", "x", role="stranger", HELIX_TENANT="")
    assert result.code == Exit.REFUSED
    assert "--tenant" in result.err
