"""`helixq ledger` and `helixq feed`: append, show, replay, seal, verify, and operate feeds."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from helixqueue import HelixQueue
from helixqueue.cli.exits import Exit
from helixqueue.fence import key_file
from tests.support.lab import POOLED

MACHINE = '{"REQUESTED": ["CONFIRMED", "CANCELLED"], "CONFIRMED": ["LAUNCHED"]}'


@pytest.fixture
def ledger(helixq):
    """A ledger with two entities."""
    name = f"l-{helixq.q}"
    assert helixq("ledger", "declare", name, "--machine", MACHINE).code == 0
    for entity, seq, kind in (("x", 1, "REQUESTED"), ("x", 2, "CONFIRMED"), ("y", 1, "REQUESTED")):
        payload = json.dumps({"n": seq})
        assert helixq("ledger", "append", name, entity, seq, kind, "--payload", payload).code == 0
    return name


@pytest.fixture
def key(tmp_path):
    key_file.create(tmp_path / "helixq.key")
    return str(tmp_path / "helixq.key")


def tamper(database, statement, *args):
    """As a superuser who disables the guards."""
    with database.connect("helix_bootstrap") as connection:
        connection.execute("alter table helix.ledger_event disable trigger all")
        assert connection.execute(statement, args).rowcount > 0
        connection.execute("alter table helix.ledger_event enable trigger all")


def test_ledger_append_answers_and_its_code_says_whether_the_event_is_stored(helixq, ledger):
    again = helixq("ledger", "append", ledger, "x", 1, "REQUESTED", "--payload", '{"n": 1}')
    assert (again.code, again.out) == (0, "duplicate_suppressed_by_db; the entity is CONFIRMED\n")
    conflict = helixq("ledger", "append", ledger, "x", 1, "REQUESTED", "--payload", '{"n": 9}')
    assert (conflict.code, conflict.out) == (Exit.NO, "conflict (/n); the entity is CONFIRMED\n")
    illegal = helixq("ledger", "append", ledger, "x", 5, "LAUNCHED", "--json")
    assert (illegal.code, illegal.json["rules"]) == (Exit.NO, ["gap"])
    unknown = helixq("ledger", "append", ledger, "x", 3, "EXPLODED")
    assert (unknown.code, "kind: expected one of" in unknown.err) == (Exit.REFUSED, True)
    zero = helixq("ledger", "append", ledger, "x", 0, "LAUNCHED")
    assert (zero.code, "seq: expected" in zero.err) == (Exit.REFUSED, True)
    missing = helixq("ledger", "append", "nothing", "x", 1, "REQUESTED")
    assert (missing.code, "no ledger" in missing.err) == (Exit.NO, True)


def test_ledger_append_reads_a_file_and_counts_what_is_stored(helixq, ledger):
    lines = [
        {"entity": ["z", "1"], "seq": 1, "kind": "REQUESTED"},
        {"entity": ["z", "1"], "seq": 1, "kind": "REQUESTED"},
        {"entity": "z", "seq": 4, "kind": "LAUNCHED"},
    ]
    text = "\n".join(json.dumps(line) for line in lines).encode()
    done = helixq("ledger", "append", ledger, "--file", "-", stdin=text)
    assert done.code == Exit.NO
    assert done.out == "illegal (gap, initial)\n2 of 3 events are stored\n"
    assert helixq("ledger", "show", ledger, "z", "1", "--json").json["state"] == "REQUESTED"


def test_ledger_show_and_list(helixq, ledger):
    shown = helixq("ledger", "show", ledger, "x")
    assert shown.out.startswith("x: CONFIRMED, seq 2, 2 events\n")
    assert [line[:2] for line in shown.lines[1:]] == [["1", "REQUESTED"], ["2", "CONFIRMED"]]
    assert helixq("ledger", "show", ledger, "nobody").code == Exit.NO
    assert ledger in [line[1] for line in helixq("ledger", "list", "--limit", "500").lines]


def test_replay_recomputes_every_key_hash_and_state(helixq, ledger, database):
    done = helixq("ledger", "replay", ledger, "--json")
    assert (done.code, done.json["states"], done.json["faults"]) == (
        *(0, {"CONFIRMED": 1, "REQUESTED": 1}),
        0,
    )
    tamper(
        database,
        "update helix.ledger_event e set payload = '{\"n\":7}' from helix.ledger l"
        " where l.id = e.ledger and l.name = %s and e.entity = 'x' and e.seq = 1",
        ledger,
    )
    found = helixq("ledger", "replay", ledger, "--json")
    assert (found.code, found.json["faults"]) == (Exit.NO, 1)
    [witness] = found.json["witnesses"]
    assert (witness["entity"], witness["version"], witness["rule"]) == ("x", 1, "hash")


def test_sealed_ledger_verifies_after_more_events_and_offline(helixq, ledger, key, tmp_path):
    heads, export, public = (tmp_path / name for name in ("heads", "events.jsonl", "lab.pub"))
    seal = ("ledger", "seal", ledger, "--to", heads)
    assert "head 1" in helixq(*seal, HELIX_KEY=key).out
    assert helixq("ledger", "append", ledger, "y", 2, "CANCELLED").code == 0
    assert "head 2" in helixq(*seal, HELIX_KEY=key).out
    assert helixq("ledger", "append", ledger, "w", 1, "REQUESTED").code == 0
    verified = helixq("ledger", "verify", ledger, "--against", heads, HELIX_KEY=key)
    assert (verified.code, verified.out) == (0, "2 heads, 5 events: as sealed\n"), verified.err

    # An auditor has the public key, the heads and an export, and no database.
    assert helixq("ledger", "replay", ledger, "--export", export).code == 0
    public.write_text(helixq("key", "public", HELIX_KEY=key).out)
    offline = ("ledger", "verify", ledger, "--against", heads, "--exported", export)
    nowhere = {"HELIX_DSN": "postgresql:///nowhere?host=/nonexistent"}
    assert helixq(*offline, "--public-key", public, **nowhere).code == 0
    export.write_text(export.read_text().replace('{\\"n\\":2}', '{\\"n\\":3}'))
    edited = helixq(*offline, "--public-key", public, **nowhere)
    assert (edited.code, "x, version 2: hash" in edited.out) == (Exit.NO, True)


REWRITTEN = """
    with recursive chain as (
      select e.ledger, e.entity, e.version, null::bytea as before, helix.event_hash(null, e.key,
             e.version, e.at, e.position, e.feed_position, e.fingerprint, e.node, 'mallory',
             e.violations, convert_to(e.payload::text, 'UTF8')) as hash
      from helix.ledger_event e join helix.ledger l on l.id = e.ledger
      where l.name = %s and e.entity = 'x' and e.version = 1
      union all
      select e.ledger, e.entity, e.version, c.hash, helix.event_hash(c.hash, e.key, e.version, e.at,
             e.position, e.feed_position, e.fingerprint, e.node, 'mallory', e.violations,
             convert_to(e.payload::text, 'UTF8'))
      from chain c join helix.ledger_event e
        on e.ledger = c.ledger and e.entity = c.entity and e.version = c.version + 1)
    update helix.ledger_event e set actor = 'mallory', hash = c.hash from chain c
    where e.ledger = c.ledger and e.entity = c.entity and e.version = c.version
"""
REMOVED = """
    delete from helix.ledger_event e using helix.ledger l
    where l.id = e.ledger and l.name = %s and e.entity = 'x'
"""


@pytest.mark.parametrize(
    ("statement", "finding"),
    [
        (REWRITTEN, "history was rewritten"),  # all hashes fit each other again
        (f"{REMOVED} and e.version = 2", "1 sealed events are missing"),
        (REMOVED, "2 sealed events are missing"),
    ],
)
def test_tampering_that_no_hash_shows_is_found_by_a_head(helixq, ledger, key, statement, finding):
    database, heads = helixq.database, Path(key).with_name("heads")
    assert helixq("ledger", "seal", ledger, "--to", heads, HELIX_KEY=key).code == 0
    tamper(database, statement, ledger)
    assert helixq("ledger", "replay", ledger).code == 0  # consistent in itself
    found = helixq("ledger", "verify", ledger, "--against", heads, HELIX_KEY=key)
    assert (found.code, finding in found.out) == (Exit.NO, True), found.out


def test_edited_or_missing_heads_are_found(helixq, ledger, key, tmp_path):
    heads = tmp_path / "heads"
    for seq in range(3):
        helixq("ledger", "append", ledger, f"h-{seq}", 1, "REQUESTED")
        assert helixq("ledger", "seal", ledger, "--to", heads, HELIX_KEY=key).code == 0
    verify = ("ledger", "verify", ledger, "--against", heads)
    lines = heads.read_text().splitlines()
    heads.write_text("\n".join([lines[0], lines[2]]))
    assert "missing or was edited" in helixq(*verify, HELIX_KEY=key).out
    heads.write_text("\n".join(lines[1:]))
    assert "the heads before it are missing" in helixq(*verify, HELIX_KEY=key).out
    heads.write_text(lines[0].replace('"events":4', '"events":3'))
    assert "does not belong to this document" in helixq(*verify, HELIX_KEY=key).out
    other = tmp_path / "other.key"
    key_file.create(other)
    heads.write_text(lines[0])
    assert helixq(*verify, HELIX_KEY=str(other)).code == Exit.NO


def test_feed_is_listed_shown_paused_resumed_and_rewound(helixq, ledger, database):
    with HelixQueue(database.dsn("pool"), tenant="a", pooled=POOLED) as helix:
        feed = helix.feed(f"f-{helixq.q}", ledger=ledger)
        assert feed.confirm(feed.read(2))
    shown = helixq("feed", "show", feed.name, "--json").json
    assert (shown["lag"], shown["delivered"], shown["ledger"]) == (1, 2, ledger)
    assert ["a", feed.name, f"ledger {ledger}", "1"] in [
        line[:4] for line in helixq("feed", "list", "--limit", "500").lines
    ]
    why = ("--reason", "maintenance")
    assert helixq("feed", "pause", feed.name, *why).out == (
        f"feed {feed.name}: paused, 1 events behind\n"
    )
    assert helixq("feed", "show", feed.name, "--json").json["paused"]
    assert "open, 1 events" in helixq("feed", "resume", feed.name, *why).out
    assert "3 events behind" in helixq("feed", "rewind", feed.name, *why).out
    assert "0 events behind" in helixq("feed", "rewind", feed.name, "--since", "+1h", *why).out
    reasons = database.rows(
        "select detail::json ->> 'reason' from helix.decision where queue = %s order by id",
        f"feed/{feed.name}",
    )
    assert reasons == [("maintenance",)] * 4
    assert helixq("feed", "show", "nothing").code == Exit.NO


def test_tables_fit_80_columns(helixq, ledger):
    for words in (("ledger", "list"), ("ledger", "show", ledger, "x"), ("feed", "list")):
        done = helixq(*words, terminal=True, COLUMNS="80", NO_COLOR="1", TERM="dumb")
        assert max(map(len, done.out.splitlines() or [""])) <= 80
