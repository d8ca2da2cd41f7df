"""`helixq submit`: nothing is lost, a bad row is told with its line, and a repeat is no harm."""

from __future__ import annotations

import json

import pytest

from helixqueue.cli.exits import Exit

NFC, NFD = "S\u00e4mple-1", "Sa\u0308mple-1"


def counted(done):
    return {word: done.json[word] for word in ("rows", "new", "duplicate", "bad")}


def test_twin_submission_is_a_duplicate(helixq, lab):
    result = helixq("submit", lab.q, NFC, '{"pod5": "a"}', "--json")
    assert result.code == Exit.OK, result.err
    assert set(result.json) == {"decision", "batch_id", "key", "fingerprint", "state", "differs"}
    two = helixq("submit", lab.q, NFD, '{"pod5":"a"}', "--json")
    assert (result.json["decision"], two.json["decision"]) == ("new", "duplicate")
    assert result.json["batch_id"] == two.json["batch_id"]
    answer = helixq("submit", lab.q, NFC, '{"pod5":"a"}', "--priority", "1")
    assert answer.lines[0][:2] == ["duplicate", result.json["batch_id"]]
    assert "priority" in answer.err


def test_conflicting_payload_is_refused_with_a_diff(helixq, lab):
    helixq("submit", lab.q, "s", '{"pod5": "a"}')
    done = helixq("submit", lab.q, "s", '{"pod5": "b"}', "--json")
    assert done.code == Exit.REFUSED
    assert done.json["error"]["kind"] == "Conflict"
    [change] = done.json["error"]["diff"]
    assert (change["path"], change["value"]) == ("/pod5", "b")


def test_submit_options_are_stored_with_the_batch(helixq, lab):
    options = ("--revision", "2", "--priority", "1", "--limit-key", "k", "--run-at", "+1h")
    more = ("--expires-at", "+2h", "--requires", '{"gpus": 1}', "--part", "A01", "--actor", "ann")
    result = helixq("submit", lab.q, "plate", "{}", *options, *more, "--json")
    story = helixq("batch", "show", result.json["batch_id"], "--json").json
    assert story["identity"] == ["plate", "A01"]
    answer = ("revision", "priority", "limit_key", "actor", "cause")
    assert [story[name] for name in answer] == ["2", 1, "k", "ann", "delay"]
    assert story["expires_at"] > story["run_at"] > story["created_at"]


def test_submit_creates_a_queue_only_with_create(helixq):
    refused = helixq("submit", helixq.q, "s")
    assert refused.code == Exit.REFUSED
    assert f"no queue '{helixq.q}'" in refused.err
    assert helixq("submit", helixq.q, "s", "--create").code == Exit.OK


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (["s", "{"], "PAYLOAD"),
        (["s", '{"a": 1, "a": 2}'], "PAYLOAD"),
        (["s", "{}", "--priority", "10"], "priority"),
        (["s", "{}", "--run-at", "soon"], "expected a time"),
        (["s", "{}", "--requires", "[1"], "--requires"),
        (["s", "{}", "--from", "-"], "with --from"),
        (["--from", "/nowhere/x.csv"], "No such file"),
        (["--from", "-", "--format", "xls"], "expected json, jsonl or csv"),
        ([], "expected an identity"),
    ],
)
def test_invalid_submit_arguments_are_a_usage_error(helixq, lab, arguments, why):
    done = helixq("submit", lab.q, *arguments)
    assert (done.code, done.out) == (Exit.USAGE, "")
    assert why in done.err


@pytest.mark.parametrize("queue", ["Queue", "a b", "", "ö"])
def test_invalid_queue_name_is_refused(helixq, queue):
    assert helixq("submit", queue, "s").code == Exit.REFUSED


@pytest.mark.parametrize("identity", ["Sample\u200b-9", " ", "x" * 300])
def test_invalid_identity_is_refused_with_its_offset(helixq, lab, identity):
    done = helixq("submit", lab.q, identity, "--json")
    assert done.code == Exit.REFUSED
    assert done.json["error"]["kind"] == "InvalidIdentity"
    assert {"code", "code_point", "offset", "suggestion"} <= set(done.json["error"])


def test_csv_of_a_spreadsheet_is_parsed(helixq, lab, tmp_path):
    """With a byte order mark, Windows line ends, quotes, a line break in a cell, an empty line."""
    file = tmp_path / "run.csv"
    file.write_bytes(
        b"\xef\xbb\xbfidentity,payload.pod5,priority\r\n"
        b's-1,"a,b",1\r\n\r\n"s-2","two\r\nlines",\r\ns-3,c,x\r\ns-4,d\r\n'
    )
    done = helixq("submit", lab.q, "--from", file, "--json")
    assert done.code == Exit.NO
    assert counted(done) == {"rows": 4, "new": 2, "duplicate": 0, "bad": 1}
    assert [(p["line"], p["kind"]) for p in done.json["problems"]] == [(6, "refused"), (7, "bad")]
    story = helixq("batch", "show", "s-2", "--queue", lab.q, "--payload", "--json").json
    assert story["payload"] == {"pod5": "two\r\nlines"}


def test_csv_payload_column_contains_json(helixq, lab):
    sheet = b'identity,payload,revision\ns,"{""n"": 1}",2\n'
    assert helixq("submit", lab.q, "--from", "-", stdin=sheet).code == Exit.OK
    story = helixq("batch", "show", "s", "--queue", lab.q, "--payload", "--json").json
    assert (story["payload"], story["revision"]) == ({"n": 1}, "2")


@pytest.mark.parametrize(
    ("sheet", "why"),
    [
        (b"identity,colour\ns,red\n", "unknown column 'colour'"),
        (b"sample,payload\ns,1\n", "unknown column 'sample'"),
        (b"payload\n1\n", "column identity"),
        (b"identity,identity\na,b\n", "twice"),
        (b"identity,payload,payload.x\na,1,2\n", "got both"),
        ("identity\ns\n".encode("utf-16"), "UTF-16"),
        ("identity,payload.Größe\ns,1\n".encode("latin-1"), "UTF-8, got the byte 0xF6 after"),
        (b"PK\x03\x04\x00\x00\n", "save a workbook as CSV"),
    ],
)
def test_invalid_file_is_refused_as_a_whole(helixq, lab, sheet, why):
    done = helixq("submit", lab.q, "--from", "-", "--format", "csv", "--json", stdin=sheet)
    assert done.code == Exit.NO
    assert counted(done) == {"rows": 0, "new": 0, "duplicate": 0, "bad": 1}
    assert why in done.json["problems"][0]["reason"]


@pytest.mark.parametrize("between", [";", "\t"])
def test_semicolons_and_tabs_separate_columns(helixq, lab, between):
    sheet = between.join(["identity", "payload.a", "payload.b\nS-1", "1,5", "x\n"]).encode()
    assert helixq("submit", lab.q, "--from", "-", stdin=sheet).code == Exit.OK
    story = helixq("batch", "show", "S-1", "--queue", lab.q, "--payload", "--json").json
    assert story["payload"] == {"a": "1,5", "b": "x"}


@pytest.mark.parametrize("row", [b"S\xe4mple,b", b'S,"two\nl\xe4nes"'])
def test_row_in_another_encoding_is_reported_with_its_byte(helixq, lab, row):
    """Also where it stands in a later line of a cell."""
    sheet = b"identity,payload.a\nfirst,a\n" + row + b"\nlast,c\n"
    done = helixq("submit", lab.q, "--from", "-", "--json", stdin=sheet)
    assert counted(done) == {"rows": 3, "new": 2, "duplicate": 0, "bad": 1}
    [problem] = done.json["problems"]
    assert (problem["line"], "got the byte 0xE4" in problem["reason"]) == (3, True)


@pytest.mark.parametrize("form", ["json", "jsonl", "csv", None])
@pytest.mark.parametrize("sheet", [b"", b"\n \n", b"\xef\xbb\xbf"])
def test_empty_file_submits_nothing(helixq, lab, form, sheet):
    selected = () if form is None else ("--format", form)
    done = helixq("submit", lab.q, "--from", "-", *selected, "--json", stdin=sheet)
    assert done.code == Exit.OK
    assert counted(done) == {"rows": 0, "new": 0, "duplicate": 0, "bad": 0}


def test_submit_reads_twenty_thousand_rows_from_a_pipe(helixq, lab):
    rows = "".join(
        json.dumps({"identity": f"p-{n}", "payload": {"n": n}}) + "\n" for n in range(20_000)
    )
    first = helixq.process("submit", lab.q, "--from", "-", "--json", stdin=rows.encode())
    assert first.code == Exit.OK, first.err
    assert counted(first) == {"rows": 20_000, "new": 20_000, "duplicate": 0, "bad": 0}
    again = helixq("submit", lab.q, "--from", "-", stdin=rows.encode())
    assert again.lines[:2] == [["new", "0"], ["duplicate", "20000"]]
    assert [count for _, count in again.lines[2:]] == ["0"] * 3


def test_invalid_json_line_does_not_affect_other_rows(helixq, lab):
    rows = [json.dumps({"identity": f"b-{n}"}) for n in range(1, 11)]
    rows[6] = '{"identity": "b-7", '
    sheet = "\n".join(rows).encode()
    done = helixq("submit", lab.q, "--from", "-", "--json", stdin=sheet)
    assert done.code == Exit.NO
    assert counted(done) == {"rows": 10, "new": 9, "duplicate": 0, "bad": 1}
    assert done.json["problems"][0]["line"] == 7
    assert "line 7: bad:" in helixq("submit", lab.q, "--from", "-", stdin=sheet).err


ODD_ROWS = [
    '{"identity": "a", "colour": 1}',
    '{"payload": 1}',
    "[1]",
    '"x"',
    '{"identity": 7}',
    '{"identity": ["a", 7]}',
    '{"identity": []}',
    '{"identity": null}',
    '{"identity": "a", "priority": "high"}',
    '{"identity": "a", "run_at": "soon"}',
    '{"identity": "a", "run_at": 7}',
    '{"identity": "a", "expires_at": "2026-01-01"}',
    '{"identity": "a", "expires_at": "2020-01-01T00:00:00Z"}',
    '{"identity": "a", "requires": {"gpu": 1}}',
    '{"identity": "a", "requires": 1}',
    '{"identity": "a", "limit_key": ""}',
    '{"identity": "a", "revision": ""}',
    '{"identity": "a", "payload": 1e400}',
    '{"identity": "a", "payload": "\\ud800"}',
    '{"identity": "a", "payload": "\\u0000"}',
    '{"identity": "\\u0000"}',
    "[" * 100_000,
    "\x00",
]


def test_every_invalid_row_is_reported_with_its_line(helixq, lab):
    sheet = "\n".join([*ODD_ROWS, '{"identity": "good"}']).encode() + b'\n{"identity": "\xff"}'
    done = helixq("submit", lab.q, "--from", "-", "--format", "jsonl", "--json", stdin=sheet)
    assert done.code == Exit.NO
    found = {problem["line"]: problem["reason"] for problem in done.json["problems"]}
    assert set(range(1, len(ODD_ROWS) + 3)) - set(found) == {len(ODD_ROWS) + 1}
    assert done.json["new"] == 1
    assert all(found.values())


def test_invalid_json_array_is_reported_with_its_line(helixq, lab):
    rows = (
        b'[\n {"identity": "j-1"},\n {"identity": "j-1", "payload": 2},\n {"identity": "j-3",}\n]'
    )
    done = helixq("submit", lab.q, "--from", "-", "--json", stdin=rows)
    assert done.code == Exit.NO
    found = [(problem["line"], problem["kind"]) for problem in done.json["problems"]]
    assert found == [(3, "conflict"), (4, "bad")]
    result = helixq("submit", lab.q, "--from", "-", stdin=b'{\n "identity": "alone"\n}')
    assert result.lines[0] == ["new", "1"]


def test_overlong_line_is_skipped_and_the_next_is_read(helixq, lab):
    sheet = b'{"identity": "' + b"x" * 5_000_000 + b'"}\n{"identity": "after"}\n'
    done = helixq("submit", lab.q, "--from", "-", "--format", "jsonl", "--json", stdin=sheet)
    assert counted(done) == {"rows": 2, "new": 1, "duplicate": 0, "bad": 1}


def test_unreachable_database_exits_with_unavailable(helixq, lab):
    done = helixq("submit", lab.q, "s", "--dsn", "host=/nowhere dbname=x user=y")
    assert done.code == Exit.UNAVAILABLE


def test_sheet_with_an_identity_column_puts_the_others_into_the_payload(helixq, lab, tmp_path):
    sheet = tmp_path / "sheet.csv"
    sheet.write_text("run;sample;priority\nR1;S-1;high\nR1;S-2;\n", encoding="utf-8")
    words = ("submit", lab.q, "--from", sheet)
    assert helixq(*words, "--identity-column", "sample", "--json").json["new"] == 2
    named = ("--queue", lab.q, "--identity", "S-1")
    [row] = map(json.loads, helixq("batch", "export", *named).out.splitlines())
    assert (row["identity"], row["payload"]) == ("S-1", {"run": "R1", "priority": "high"})
    both = ("--identity-column", "run", "--identity-column", "sample")
    assert helixq(*words, *both, "--json").json["new"] == 2
    wrong = helixq(*words, "--identity-column", "name")
    assert (wrong.code, "expected one of run, sample, priority" in wrong.err) == (Exit.NO, True)
    lines = b'{"sample": "S-3", "run": 7}\n{"run": 8}\n'
    done = helixq("submit", lab.q, "--from", "-", *both[2:], "--json", stdin=lines)
    assert (done.json["new"], done.json["bad"]) == (1, 1)
    assert helixq("submit", lab.q, "S-9", "--identity-column", "x").code == Exit.USAGE
