"""Seals: signed, chained, incremental, without locks; forged or missing ones are found."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise

import pytest

from helixqueue.cli.exits import Exit
from helixqueue.client.http import HelixClient
from helixqueue.errors import HelixError, Refused
from helixqueue.fence.ed25519 import Ed25519Signer
from helixqueue.fence.key_file import SigningKey, create
from helixqueue.identity import derive_key, key_bytes, key_text, public_id
from helixqueue.ledger.chain import INT2, INT4, INT8, LedgerEntry, array_of, entry_hash
from helixqueue.operate.check_seals import check_seals
from helixqueue.operate.exported import check_export, write_export
from helixqueue.operate.seal import SEALS, head_of, last_head, make_seal
from helixqueue.operate.signed_series import document_id
from tests.support.cli import Helixq
from tests.support.lab import wait_until
from tests.support.ledger_traffic import sql_client
from tests.support.service import Site, serving, settings_for

KEY = Ed25519Signer.from_private(b"k" * 32)


def seal(database, previous=None, key=KEY, role="operator"):
    with database.connect(role) as connection:
        return make_seal(connection, key, previous)


def broken(database, seals, keys=(KEY,), start=None):
    with database.connect("helix_migrator") as connection:
        results = check_seals(connection, seals, keys, start=start)
    return {result.name: result for result in results if result.count}


def test_seal_continues_after_the_one_before_and_covers_only_what_is_new(busy):
    first = seal(busy)
    with sql_client(busy) as client:
        client.submit("after-1", "after-2")
    second = seal(busy, head_of(first))
    assert (second["number"], second["from_position"]) == (2, first["to_position"])
    assert sum(page["rows"] for page in second["pages"] if page["kind"] == "entry") == 1
    assert second["counts"]["entry"] == first["counts"]["entry"] + 1
    assert broken(busy, [first, second]) == {}


def test_seal_waits_for_no_transaction_and_leaves_the_unfinished_to_the_next(busy):
    with busy.connect("pool", autocommit=False) as connection:
        submit = "select * from helix.submit_v1('a', 'q', 'w', 'text-v1', %s, array['{}'])"
        connection.execute(submit, (["open"],))
        with sql_client(busy) as client:
            client.submit("done-meanwhile")
        first = seal(busy)
        connection.commit()
    second = seal(busy, head_of(first))
    assert broken(busy, [first, second]) == {}
    entries = [page["rows"] for page in second["pages"] if page["kind"] == "entry"]
    assert sum(entries) == 2


def test_seal_locks_nothing_that_work_needs(busy):
    """Its session holds the locks of a reader only; batches pass all their steps beside it."""
    with busy.connect("operator", autocommit=False) as connection:
        position = connection.execute("select reached from helix.seal_position_v1()").fetchone()
        pages = connection.execute("select * from helix.seal_pages_v1(0, %s)", position).fetchall()
        assert pages
        locks = connection.execute(
            "select distinct mode from pg_locks "
            "where pid = pg_backend_pid() and locktype <> 'virtualxid'"
        ).fetchall()
        assert locks == [("AccessShareLock",)]
        with sql_client(busy) as client:
            client.connection.execute("set lock_timeout = '1s'")
            client.queue(name="beside")
            client.submit("beside-1", queue="beside")
            assert client.complete(client.claim(1, queue="beside")) == ["ok"]


def test_seal_reads_what_is_new_and_not_what_there_is(database):
    """Pages that the server touches: everything against one more submission."""
    touched = "explain (analyze, buffers, format json) select * from helix.seal_pages_v1(%s, %s)"

    def buffers(first, last):
        with database.connect("operator") as connection:
            connection.execute(touched, (first, last))  # fills the caches of the session
            [[plan]] = connection.execute(touched, (first, last)).fetchone()
        return plan["Plan"]["Shared Hit Blocks"] + plan["Plan"]["Shared Read Blocks"]

    def position():
        return database.value("select helix.reached_position()")

    with sql_client(database) as client:
        client.queue()
        for n in range(40):
            client.submit(*(f"s{n}-{m}" for m in range(250)))
        before = position()
        client.submit("one more")
    # No autovacuum has summarised the newest pages yet; it does within a minute.
    with database.connect("helix_bootstrap") as connection:
        connection.execute("select brin_summarize_new_values('helix.entry_age')")
    everything, increment = buffers(0, position()), buffers(before, position())
    assert increment < everything / 4, (increment, everything)


def test_forged_missing_and_reordered_seals_are_found(busy):
    first = seal(busy)
    second = seal(busy, head_of(first))
    third = seal(busy, head_of(second))
    other = Ed25519Signer.from_private(b"x" * 32)
    edited = first | {"counts": {"entry": 0}}
    for series in ([edited], [first, third], [second, first], [first, seal(busy)]):
        assert "seal_forged" in broken(busy, series), series
    assert "seal_forged" in broken(busy, [first], [other])
    assert broken(busy, [first, second, third]) == {}
    # A receipt's signature does not fit a seal: the purpose is signed, too.
    assert "seal_forged" in broken(busy, [first | {"signature": {}}])


def test_seal_after_recover_continues_the_series(busy):
    first = seal(busy)
    with sql_client(busy, "operator") as operator:
        operator.rows("select * from helix.recover_v1('ann', 'restored')")
    second = seal(busy, head_of(first))
    assert second["from_position"] == first["to_position"]
    assert int(second["to_position"]) >> 40 > int(first["to_position"]) >> 40
    assert broken(busy, [first, second]) == {}
    with pytest.raises(Refused, match="older state was restored"):
        seal(busy, head_of(second | {"to_position": str(2**60)}))


@pytest.mark.parametrize("role", ["app_a", "stranger"])
def test_login_of_one_tenant_cannot_seal(busy, role):
    with pytest.raises(HelixError, match="all tenants"):
        seal(busy, role=role)


def test_directory_and_file_keep_every_seal(busy, tmp_path):
    for place in (tmp_path, tmp_path / "seals.jsonl"):
        first = seal(busy)
        SEALS.add(place, first)
        SEALS.add(place, seal(busy, last_head(place)))
        assert [s["number"] for s in SEALS.read(place)] == [1, 2]
        assert broken(busy, SEALS.read(place)) == {}
    with pytest.raises(FileExistsError):
        SEALS.add(tmp_path, first)
    with pytest.raises(Refused, match="helixq seal"):
        SEALS.read(tmp_path / "none")


def test_every_edit_of_an_export_is_found(busy, tmp_path):
    sealed = seal(busy)
    with busy.connect("operator") as connection:
        write_export(connection, sealed, tmp_path / "ledger.jsonl")
    lines = (tmp_path / "ledger.jsonl").read_text().splitlines()
    result = check_export(tmp_path / "ledger.jsonl", [sealed], [KEY])
    assert result.violations == []
    assert not any(r.count for r in result.results)
    assert result.states["COMPLETED"] > 0
    entry = json.loads(lines[3])
    edits = {
        "actor": "eve", "at": entry["at"] + 1, "late": not entry["late"], "reason": "expired",
        "batch": [7] * len(entry["batch"]), "version": [9] * len(entry["version"]),
        "attempt": [9] * len(entry["attempt"]), "hash": "00" * 32,
    "position": entry["position"] + 1 }  # fmt: skip
    changed = tmp_path / "changed.jsonl"
    for member, value in edits.items():
        changed.write_text("\n".join([*lines[:3], json.dumps(entry | {member: value}), *lines[4:]]))
        result = check_export(changed, [sealed], [KEY])
        assert result.violations or any(r.count for r in result.results), member
    for lost in (lines[:-1], lines[1:], [*lines, lines[0]]):
        changed.write_text("\n".join(lost))
        assert any(r.count for r in check_export(changed, [sealed], [KEY]).results)


def test_series_without_its_first_seals_needs_a_start_that_the_auditor_names(busy, tmp_path):
    first = seal(busy)
    second = seal(busy, head_of(first))
    third = seal(busy, head_of(second))
    assert broken(busy, [second, third])["seal_forged"].count == 2
    assert broken(busy, [second, third], start=document_id(second)) == {}
    assert broken(busy, [second, third], start=document_id(third))["seal_forged"].count == 1
    assert broken(busy, [first, second], start=document_id(third)) == {}
    place = tmp_path / "seals.jsonl"
    SEALS.add(place, second)
    (tmp_path / "lab.pub").write_bytes(KEY.public_bytes)
    helixq = Helixq(busy, "helix_migrator")
    words = ("check", "--against", place, "--public-key", tmp_path / "lab.pub", "--json")
    assert helixq(*words).code == Exit.NO
    assert helixq(*words, "--trusted-start", document_id(second)).json["ok"]
    assert helixq("check", "--trusted-start", document_id(second)).code == Exit.USAGE


def test_empty_series_of_seals_proves_nothing(busy, tmp_path):
    with pytest.raises(Refused, match="at least one seal"):
        broken(busy, [])
    sealed = seal(busy)
    export = tmp_path / "ledger.jsonl"
    with busy.connect("operator") as connection:
        write_export(connection, sealed, export)
    (tmp_path / "lab.pub").write_bytes(KEY.public_bytes)
    (tmp_path / "empty.jsonl").touch()
    (tmp_path / "empty").mkdir()
    helixq = Helixq(busy, "helix_migrator")
    for place in ("empty.jsonl", "empty", "missing"):
        words = ("check", "--against", tmp_path / place, "--public-key", tmp_path / "lab.pub")
        assert helixq(*words, "--exported", export).code == Exit.REFUSED
        assert helixq(*words).code == Exit.REFUSED
        assert last_head(tmp_path / place) is None  # the first seal can be made there
    with pytest.raises(Refused, match="expected an export"):
        check_export(tmp_path / "none.jsonl", [sealed], [KEY])


def test_seal_after_a_malformed_one_is_a_finding(busy):
    first = seal(busy)
    second = seal(busy, head_of(first))
    for malformed in ({}, {"number": 1}, first | {"to_position": "x"}):
        assert "seal_forged" in broken(busy, [malformed, second])


JUNK = [b"", b"{", b"null", b"[1]", b"\xff", b'{"id":1}', b"[" * 100_000]
WRONG = (1.5, 2**70, {}, ["x"], "\ud800")  # for every member of a line


def test_malformed_lines_of_an_export_are_findings(busy, tmp_path):
    sealed = seal(busy)
    file = tmp_path / "ledger.jsonl"
    with busy.connect("operator") as connection:
        write_export(connection, sealed, file)
    lines = file.read_bytes().splitlines()
    entry = next(json.loads(line) for line in lines if b"asked" in line)
    edits = [json.dumps(entry | {name: value}).encode() for name in entry for value in WRONG]
    missing = [
        json.dumps({n: v for n, v in entry.items() if n != name}).encode()
        for name in entry.keys() - {"asked"}
    ]
    malformed = [*JUNK, *edits, *missing, json.dumps(entry | {"more": 1}).encode()]
    file.write_bytes(b"\n".join([*lines, *malformed]))
    result = check_export(file, [sealed], [KEY])
    assert not result.ok
    numbers = range(len(lines) + 1, len(lines) + 1 + len(malformed))
    assert [fault.split(":")[0] for fault in result.violations] == [f"line {n}" for n in numbers]
    (tmp_path / "lab.pub").write_bytes(KEY.public_bytes)
    SEALS.add(tmp_path / "seals.jsonl", sealed)
    words = ("check", "--against", tmp_path / "seals.jsonl", "--public-key", tmp_path / "lab.pub")
    done = Helixq(busy)(*words, "--exported", file)
    assert (done.code, f"line {numbers[0]}: " in done.out) == (Exit.NO, True)


def test_entry_of_an_export_without_some_of_its_arrays_is_a_finding(busy, tmp_path):
    sealed = seal(busy)
    file = tmp_path / "ledger.jsonl"
    with busy.connect("operator") as connection:
        write_export(connection, sealed, file)
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    write_jsonl(file, [*lines[:-1], lines[-1] | {"batch": None}])
    assert "arrays" in check_export(file, [sealed], [KEY]).violations[0]


def write_jsonl(file, documents):
    file.write_text("".join(json.dumps(document) + "\n" for document in documents))


@pytest.fixture
def sample_export(busy, tmp_path):
    """Two samples that one entry submitted, one of them completed; the seal and the lines."""
    with sql_client(busy) as client:
        client.queue(name="audit")
        client.submit("sample-1", "sample-2", queue="audit")
        assert client.complete(client.claim(1, queue="audit")) == ["ok"]
    sealed = seal(busy)
    file = tmp_path / "ledger.jsonl"
    with busy.connect("operator") as connection:
        write_export(connection, sealed, file)
    return sealed, file, [json.loads(line) for line in file.read_text().splitlines()]


def key_of(sample):
    return key_bytes(derive_key("a", "audit", (sample,)))


def submitting(lines):
    """The line that submitted both samples."""
    [line] = [x for x in lines if any(key_of("sample-1").hex() in y for y in x.get("asked", ()))]
    return line


def test_history_of_one_sample_is_verified_offline(sample_export):
    sealed, file, lines = sample_export
    for ref in (key_of("sample-1"), public_id(key_text(key_of("sample-1")))):
        result = check_export(file, [sealed], [KEY], ref)
        assert (result.ok, result.history.fault) == (True, None)
        assert result.history.key == derive_key("a", "audit", ("sample-1",))
        states = [step.to_state for step in result.history.steps]
        assert (states[0], states[-1]) == ("PENDING", "COMPLETED")
        assert result.history.steps[-1].attempt == 1
    other = check_export(file, [sealed], [KEY], key_of("sample-2")).history
    assert [step.reason for step in other.steps] == ["submitted"]
    assert "no such batch" in check_export(file, [sealed], [KEY], key_of("none")).history.fault
    # Neither identities nor payloads enter an export.
    assert "sample-1" not in file.read_text()
    assert b"sample-1".hex() not in file.read_text()
    assert all("asked" in line for line in lines if line["from_state"] is None and line["batch"])


def swap_keys(line):
    first, second = line["asked"]
    line["asked"] = [second[:66] + first[66:], first[:66] + second[66:]]


def swap_requests(line):
    line["asked"].reverse()


def cut_elsewhere(line):
    """The bytes together stay the same, and so does their digest."""
    first, second = line["asked"]
    line["asked"] = [first + second[:2], second[2:]]


def remove_requests(line):
    del line["asked"]


@pytest.mark.parametrize("edit", [swap_keys, swap_requests, cut_elsewhere, remove_requests])
def test_edited_requests_of_an_export_are_found(sample_export, edit):
    sealed, file, lines = sample_export
    edit(submitting(lines))
    write_jsonl(file, lines)
    result = check_export(file, [sealed], [KEY], key_of("sample-1"))
    assert [r.name for r in result.results if r.count] == ["sealed_request_changed"]
    assert result.history.fault == "the export was not verified"
    assert result.history.steps == ()


def test_history_has_no_forged_step_that_no_seal_covers(sample_export):
    """Anyone can append a step with a right hash. It has no seal, so it is not in the history."""
    sealed, file, lines = sample_export
    submission = submitting(lines)
    number = max(submission["batch"])
    forged = lines[-1] | {
        "id": lines[-1]["id"] + 1, "position": int(sealed["to_position"]), "from_state": "PENDING",
        "to_state": "RUNNING", "reason": "started", "batch": [number], "version": [3],
        "queue": submission["queue"][:1], "attempt": [1], "before": [submission["id"]],
        "content": None,
    }  # fmt: skip
    arrays = {
        name: array_of(kind, forged[name])
        for name, kind in {"batch": INT8, "queue": INT4, "version": INT4, "attempt": INT2}.items()
    }
    entry = LedgerEntry(**forged | arrays | {"before": array_of(INT8, forged["before"])})
    forged["hash"] = entry_hash([bytes.fromhex(submission["hash"])], entry).hex()
    write_jsonl(file, [*lines, forged])
    result = check_export(file, [sealed], [KEY], key_of("sample-2"))
    assert (result.violations, result.history.fault) == ([], None)
    assert [step.reason for step in result.history.steps] == ["submitted"]


def test_history_with_a_hidden_last_step_is_not_shown(sample_export):
    """An archived entry names no batch. One that could be the next step makes a history unsure."""
    sealed, file, lines = sample_export
    hidden = lines[-1] | dict.fromkeys(("batch", "queue", "version", "attempt", "before"))
    assert lines[-1]["to_state"] == "COMPLETED"
    write_jsonl(file, [*lines[:-1], hidden | {"content": None}])
    result = check_export(file, [sealed], [KEY], key_of("sample-1"))
    assert result.ok
    assert "archived" in result.history.fault


def test_command_prints_the_history_of_one_batch(sample_export, busy, tmp_path):
    sealed, file, lines = sample_export
    SEALS.add(tmp_path / "seals.jsonl", sealed)
    (tmp_path / "lab.pub").write_bytes(KEY.public_bytes)
    words = ("check", "--against", tmp_path / "seals.jsonl", "--public-key", tmp_path / "lab.pub")
    offline = (*words, "--exported", file, "--batch")
    helixq = Helixq(busy)
    key = key_text(key_of("sample-1"))
    done = helixq(*offline, key)
    assert done.code == Exit.OK, done.err
    assert done.out.splitlines()[1] == f"batch {public_id(key)}, key {key}"
    assert done.out.splitlines()[-1].split("\t")[1:5] == ["completed", "RUNNING", "COMPLETED", "1"]
    assert helixq(*offline, key, "--json").json["history"]["steps"][0]["to_state"] == "PENDING"
    none = helixq(*offline, "v1:" + "0" * 64)
    assert (none.code, "no such batch" in none.out) == (Exit.NO, True)
    assert helixq(*offline, "sample-1").code == Exit.USAGE
    assert helixq(*words, "--batch", key).code == Exit.USAGE
    swap_keys(submitting(lines))
    write_jsonl(file, lines)
    edited = helixq(*offline, key)
    assert (edited.code, "not verified" in edited.out) == (Exit.NO, True)
    assert "COMPLETED\t" not in edited.out


def test_interrupted_export_is_completed_by_the_next_run(busy, tmp_path):
    """A run that was killed has appended some entries, and half a line, but written no seal."""
    file = tmp_path / "ledger.jsonl"
    first = seal(busy)
    with busy.connect("operator") as connection:
        write_export(connection, first, file)
    with sql_client(busy) as client:
        client.submit("after-1")
        client.submit("after-2")
    second = seal(busy, head_of(first))
    complete = file.read_text()
    with busy.connect("operator") as connection:
        write_export(connection, second, file)
        whole = file.read_text()
        for length in range(len(complete), len(whole), 97):
            file.write_text(whole[:length])
            assert write_export(connection, second, file) == 2
            assert file.read_text() == whole
        edited = whole.replace('"attempt":[0]', '"attempt":[7]')
        assert edited != whole
        file.write_text(edited)
        with pytest.raises(Refused, match="expected entry"):
            write_export(connection, second, file)
    file.write_text(whole)
    assert not any(r.count for r in check_export(file, [first, second], [KEY]).results)


def test_commands_seal_and_check_against_it(busy, tmp_path):
    helixq = Helixq(busy, "helix_migrator")
    key = {"HELIX_KEY": str(tmp_path / "key"), "HELIX_TENANT": ""}
    assert helixq("seal", "--to", tmp_path / "s", **key).code == Exit.REFUSED
    helixq("key", "create", **key)
    words = ("seal", "--to", tmp_path / "s", "--export", tmp_path / "x", "--json")
    assert helixq(*words, **key).json["number"] == 1
    published = json.loads((tmp_path / "x.keys.json").read_text())
    assert published == helixq("key", "public", **key).json
    assert helixq("check", "--against", tmp_path / "s", "--json", **key).json["ok"]
    other = {"HELIX_KEY": str(tmp_path / "other"), "HELIX_TENANT": ""}
    helixq("key", "create", **other)
    done = helixq("check", "--against", tmp_path / "s", "--json", **other)
    assert done.code == Exit.NO
    assert [r["name"] for r in done.json["results"] if r["count"]] == ["seal_forged"]
    assert helixq("check", "--against", tmp_path / "s", HELIX_TENANT="").code == Exit.USAGE


def test_service_publishes_keys_and_seals_on_request_and_on_its_clock(busy, tmp_path):
    keys = tuple(create(tmp_path / "key"))
    assert isinstance(keys[0], SigningKey)
    (tmp_path / "seals").mkdir()
    settings = settings_for(busy, keys=keys, seal_to=tmp_path / "seals", seal_seconds=3600)
    with serving(settings) as url:
        site = Site(busy, url)
        with site.client("seal") as client:
            published = client.get("/v1/keys", headers={"Authorization": ""}).json()["keys"]
            assert published == [keys[0].public()]
            made = client.post("/v1/seals", json={}).json()
        with site.client("operate", "read") as client:
            assert client.post("/v1/seals", json={}).status_code == 403
            assert client.get("/v1/seals").status_code == 403
        token = site.token("seal")
        arguments = ("seal", "--to", tmp_path / "s", "--url", url, "--token", token)
        done = Helixq(busy)(*arguments, HELIX_TENANT="", HELIX_DSN="")
        assert done.code == Exit.OK, done.err
        wait_until(lambda: list((tmp_path / "seals").glob("seal-*.json")))
    signer = keys[0].signer
    series = SEALS.read(tmp_path / "s")
    assert made in series, "the caller's place got the seals that others had asked for"
    for kept in (series, SEALS.read(tmp_path / "seals")):
        assert broken(busy, kept, [signer]) == {}


@pytest.fixture
def sealing(busy, tmp_path):
    """A service with a key, and the key."""
    keys = tuple(create(tmp_path / "key"))
    with serving(settings_for(busy, keys=keys)) as url:
        yield Site(busy, url), keys[0].signer


def test_caller_of_a_service_cannot_name_the_predecessor_of_a_seal(busy, sealing):
    site, signer = sealing
    with site.client("seal") as client:
        first = client.post("/v1/seals", json={}).json()
        forged = {"number": 7, "id": "0" * 64, "to_position": "9" * 18, "counts": {}}
        client.post("/v1/seals", json={"after": forged})
        listed = client.get("/v1/seals").json()["rows"]
        documents = [client.get(f"/v1/seals/{row['number']}").json()["document"] for row in listed]
        assert client.get("/v1/seals/99").status_code == 404
    series = documents[::-1]
    assert series[0] == first
    assert [seal["number"] for seal in series] == list(range(1, len(series) + 1))
    assert all(SEALS.faults(seal, last, [signer]) == [] for last, seal in pairwise(series))
    assert broken(busy, series, [signer]) == {}


def test_operator_lists_the_seals_of_services_with_command_and_client(busy, sealing):
    site, _ = sealing
    with site.client("seal") as client:
        for _ in range(3):
            assert client.post("/v1/seals", json={}).status_code == 200
        listed = client.get("/v1/seals").json()["rows"]
        pages = client.get("/v1/seals?limit=2").json()
    assert [row["number"] for row in listed[-3:]] == [3, 2, 1]
    assert pages["next"]
    with HelixClient(site.url, site.token("seal")) as client:
        assert [row.digest for row in client.seals(limit=2)] == [row["digest"] for row in listed]
    helixq = Helixq(busy, "operator")
    of_service = ("--url", site.url, "--token", site.token("seal"))
    for place in ((), of_service):
        shown = helixq("seal", "list", "--json", *place, HELIX_TENANT="").json["rows"]
        assert [row["digest"] for row in shown] == [row["digest"] for row in listed]
    assert helixq("seal", "list", role="app_a").code == Exit.REFUSED
    reader = ("--url", site.url, "--token", site.token("operate", "read"))
    assert helixq("seal", "list", *reader, HELIX_TENANT="").code == Exit.REFUSED


def test_seal_of_a_superuser_in_the_table_is_not_continued(busy, sealing):
    site, _ = sealing
    with site.client("seal") as client:
        assert client.post("/v1/seals", json={}).status_code == 200
        with busy.connect("helix_bootstrap") as connection:
            connection.execute("alter table helix.seal disable trigger all")
            connection.execute(
                "update helix.seal"
                " set document = jsonb_set(document::jsonb, '{to_position}', '\"1\"')::json"
            )
            connection.execute("alter table helix.seal enable always trigger a_guard")
        response = client.post("/v1/seals", json={})
    assert response.status_code >= 400
    assert "signed by this service" in response.text


def test_concurrent_callers_make_one_series_of_seals(busy, sealing):
    site, signer = sealing
    with site.client("seal") as client, ThreadPoolExecutor(4) as pool:
        answers = list(pool.map(lambda _: client.post("/v1/seals", json={}), range(8)))
        numbers = sorted(a.json()["number"] for a in answers if a.status_code == 200)
        listed = client.get("/v1/seals").json()["rows"]
    assert numbers == [row["number"] for row in listed][::-1]
    assert numbers
    assert {a.status_code for a in answers} <= {200, 429, 503}
    assert signer is not None


def test_only_an_operator_grants_the_scope_seal(busy):
    with serving(settings_for(busy)) as url:
        site = Site(busy, url)
        with site.client("admin") as client:
            body = {"name": "sealer", "scopes": ["seal"]}
            assert client.post("/v1/tokens", json=body).status_code == 403
            link = client.post("/v1/login-links", json={"scopes": ["seal"]})
            assert link.status_code in {403, 404, 422}


def test_service_without_key_seals_nothing(busy):
    with serving(settings_for(busy)) as url, Site(busy, url).client("seal") as client:
        assert client.get("/v1/keys").json() == {"keys": []}
        response = client.post("/v1/seals", json={})
        assert (response.status_code, response.json()["type"][-6:]) == (409, "no-key")
