"""Reading rows: whatever the bytes are, each row is something to submit or a line and a reason."""

from __future__ import annotations

import io
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from helixqueue.cli import submission_files

NAMES = st.sampled_from(["identity", "payload", "payload.x", "priority", "run_at", "requires", "x"])
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=4),
    max_leaves=8,
)
CELLS = st.text(alphabet='a1,";\n\r \t\x00{}[]\ud800ä', max_size=8)


def rows(data, form):
    """What was read; a file that makes no sense as a whole gives nothing."""
    try:
        return list(submission_files.parse(io.BytesIO(data), form))
    except submission_files.InvalidFile:
        return []


def is_whole(row):
    assert row.line >= 1
    return (row.submission is None) != (row.reason == "")


@given(data=st.binary(max_size=200), form=st.sampled_from(submission_files.FORMATS))
def test_any_bytes_are_parsed_or_rejected_with_a_reason(data, form):
    assert all(is_whole(row) for row in rows(data, form))


@given(values=st.lists(JSON, max_size=5))
def test_json_array_and_jsonl_give_equal_rows(values):
    lines = "\n".join(json.dumps(value) for value in values).encode()
    array = ("[" + ",\n".join(json.dumps(value) for value in values) + "]").encode()
    first, other = rows(lines, "jsonl"), rows(array, "json")
    assert all(is_whole(row) for row in first)
    assert first == other


@given(header=st.lists(NAMES, max_size=4), cells=st.lists(st.lists(CELLS, max_size=5), max_size=4))
def test_any_cells_are_parsed_or_rejected_with_a_reason(header, cells):
    text = "\n".join([",".join(header), *(",".join(row) for row in cells)])
    assert all(is_whole(row) for row in rows(text.encode("utf-8", "surrogatepass"), "csv"))


@pytest.mark.parametrize(
    ("name", "start", "form"),
    [
        ("run.CSV", b"[", "csv"),
        ("a.jsonl", b"", "jsonl"),
        ("a.json", b"{", "json"),
        ("-", b'{"identity": "a"}\n{', "jsonl"),
        ("-", b'{\n "identity"', "json"),
        ("-", b"\xef\xbb\xbf [", "json"),
        ("-", b"identity,payload\n", "csv"),
        ("sheet", b"", "csv"),
    ],
)
def test_format_is_guessed_by_name_or_first_bytes(name, start, form):
    assert submission_files.guess_format(name, start) == form


def test_oversized_json_is_refused_in_favour_of_jsonl(monkeypatch):
    monkeypatch.setattr(submission_files, "MAX_JSON_BYTES", 10)
    with pytest.raises(submission_files.InvalidFile, match="JSONL"):
        list(submission_files.parse(io.BytesIO(b"[" + b" " * 20 + b"]"), "json"))
