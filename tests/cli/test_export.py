"""`helixq batch export`: everything an auditor needs, exact, in flat memory; failures by cause."""

from __future__ import annotations

import csv
import io
import json
import tracemalloc

import pytest

from helixqueue.cli import pages
from helixqueue.cli.batch_export import COLUMNS
from helixqueue.cli.exits import Exit
from helixqueue.fence.key_file import create, read_keys
from tests.support.lab import completion, failure
from tests.support.service import Site, serving, settings_for

NFC, NFD = "S\u00e4mple-1", "Sa\u0308mple-1"


def work_through(lab):
    """Three batches: one completed under another spelling, one failed, one pending."""
    [submitted] = lab.submit(NFD, payload={"pod5": "a\n\u2028b"})
    lab.submit(("=cmd()", "x"), payload=[1, None])
    [first, second] = lab.claim(2)
    lab.settle(completion(first, result='{"reads":7}'), failure(second, permanent=True))
    lab.submit("pending")
    return submitted.receipt


def test_export_has_receipt_spellings_payload_and_result(helixq, lab):
    receipt = work_through(lab)
    done = helixq("batch", "export", "--queue", lab.q)
    rows = {json.dumps(row["identity"]): row for row in map(json.loads, done.out.splitlines())}
    assert (done.code, len(rows)) == (Exit.OK, 3)
    row = rows[json.dumps(NFC)]
    assert list(row) == list(COLUMNS)
    assert (row["batch_id"], row["key"]) == (str(receipt.batch_id), receipt.key)
    assert row["fingerprint"] == receipt.fingerprint
    assert (row["raw"], row["state"], row["attempt"]) == (NFD, "COMPLETED", 1)
    assert (row["payload"], row["result"]) == ({"pod5": "a\n\u2028b"}, {"reads": 7})
    assert row["created_at"] < row["finished_at"]
    failed = rows['["=cmd()", "x"]']
    assert (failed["state"], failed["payload"], failed["result"]) == ("FAILED", [1, None], None)
    assert rows['"pending"']["finished_at"] is None


def test_csv_export_is_complete_and_holds_no_formulas(helixq, lab, tmp_path):
    work_through(lab)
    file = tmp_path / "out.csv"
    done = helixq("batch", "export", "--queue", lab.q, "--out", file, "--json")
    assert done.json == {"rows": 3, "out": str(file), "keys": None}
    assert file.stat().st_mode & 0o777 == 0o600
    rows = list(csv.DictReader(io.StringIO(file.read_text(encoding="utf-8"))))
    assert {row["identity"] for row in rows} == {NFC, '["=cmd()", "x"]', "pending"}
    assert json.loads(rows[-1]["payload"]) == {"pod5": "a\n\u2028b"}
    lab.submit("=1+1")  # as a spreadsheet would evaluate it
    text = helixq("batch", "export", "--queue", lab.q, "--format", "csv", "--state", "pending").out
    assert [row["identity"] for row in csv.DictReader(io.StringIO(text))] == ["'=1+1", "pending"]


def test_export_that_fails_leaves_no_file(helixq, lab, tmp_path, monkeypatch):
    work_through(lab)

    def broken(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(pages, "read_all", broken)
    done = helixq("batch", "export", "--queue", lab.q, "--out", tmp_path / "out.jsonl")
    assert done.code == Exit.FAILED
    assert list(tmp_path.iterdir()) == []


def test_export_over_http_equals_that_of_the_database(helixq, lab, database):
    work_through(lab)
    words = ("batch", "export", "--queue", lab.q)
    with serving(settings_for(database)) as url:
        environment = {"HELIX_URL": url, "HELIX_TOKEN": Site(database, url).token()}
        over_http = helixq(*words, HELIX_DSN="", HELIX_TENANT="", **environment)
    assert over_http.out == helixq(*words).out


def test_public_keys_are_published_beside_an_export(helixq, lab, database, tmp_path):
    """Of the key file, or of the service that was asked; never the private part."""
    work_through(lab)
    key = tmp_path / "key"
    helixq("key", "create", "--key", key)
    words = ("batch", "export", "--queue", lab.q, "--json", "--out")
    done = helixq(*words, tmp_path / "own.csv", HELIX_KEY=str(key))
    published = tmp_path / "own.csv.keys.json"
    assert done.json == {"rows": 3, "out": str(tmp_path / "own.csv"), "keys": str(published)}
    assert json.loads(published.read_text()) == helixq("key", "public", "--key", key).json
    assert "private" not in published.read_text()
    with serving(settings_for(database, keys=tuple(create(tmp_path / "services")))) as url:
        environment = {"HELIX_URL": url, "HELIX_TOKEN": Site(database, url).token()}
        environment |= {"HELIX_DSN": "", "HELIX_TENANT": "", "HELIX_KEY": str(key)}
        done = helixq(*words, tmp_path / "theirs.jsonl", **environment)
    [theirs] = json.loads((tmp_path / "theirs.jsonl.keys.json").read_text())["keys"]
    assert theirs["id"] == read_keys(tmp_path / "services")[0].signer.key_id


def test_export_of_many_large_payloads_keeps_its_memory(helixq, lab, tmp_path):
    """Eighty megabytes in 320 rows take a part of that, however many rows there are."""
    for start in range(0, 320, 40):
        lab.submit(*(f"s{start + n}" for n in range(40)), payload={"text": "x" * 250_000})
    file = tmp_path / "out.jsonl"
    tracemalloc.start()
    try:
        done = helixq("batch", "export", "--queue", lab.q, "--out", file)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert (done.code, file.stat().st_size > 80_000_000) == (Exit.OK, True)
    assert peak < 40_000_000


@pytest.mark.parametrize("option", ["--json", "--format=xml"])
def test_export_rejects_options_that_do_not_fit(helixq, option):
    assert helixq("batch", "export", option).code == Exit.USAGE


def test_failures_are_grouped_by_class_and_message(helixq, lab):
    lab.submit(*(f"s-{n}" for n in range(4)))
    leases = lab.claim(4)
    lab.settle(
        *(
            failure(lease, permanent=True, failure="Torn", detail=f"{lease.identity}: {n} bytes")
            for n, lease in enumerate(leases[:3])
        ),
        failure(leases[3], permanent=True, failure="Full", detail="no space\nmore"),
    )
    done = helixq("batch", "causes", "--queue", lab.q, "--json").json["rows"]
    assert [(cause["batches"], cause["failure"], cause["text"]) for cause in done] == [
        (3, "Torn", "(identity): N bytes"),
        (1, "Full", "no space"),
    ]
    assert "retry a class" in helixq("batch", "causes", "--queue", lab.q).err
