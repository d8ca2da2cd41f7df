"""Sample sheets of instruments and pipelines, and what a dry run says about a sheet."""

from __future__ import annotations

import json
import sys

import pytest

from helixqueue.cli.exits import Exit

ILLUMINA = """\
[Header],,,
FileFormatVersion,2,,
RunName,run42,,
[Reads],,,
Read1Cycles,151,,
[BCLConvert_Settings],,,
SoftwareVersion,4.1.5,,
[BCLConvert_Data],,,
Lane,Sample_ID,Index,Sample_Project
1,S-1,ACGT,lab
2,S-1,ACGT,lab
1,S 2,TTGA,lab

[Cloud_Data],,,
Sample_ID,ProjectName,,
S-1,x,,
"""
NF_CORE = "sample,fastq_1,fastq_2,strandedness\nSämple-1,a_1.fq.gz,a_2.fq.gz,auto\n"
ONT = """\
protocol_run_id,position_id,flow_cell_id,sample_id,experiment_id,kit,alias,barcode
,X1,FAO1,pool,exp1,SQK-NBD114,S-1,barcode01
,X1,FAO1,pool,exp1,SQK-NBD114,S-2,barcode02
,,,pool,exp1,SQK-NBD114,S-3,barcode03
"""


def submitted(helixq, lab, sheet, *options):
    done = helixq("submit", lab.q, "--from", "-", *options, "--json", stdin=sheet.encode())
    assert done.out, done.err
    return done


def stored(helixq, lab):
    rows = helixq("batch", "list", "--queue", lab.q, "--json").json["rows"]
    return {tuple(row["identity"]) for row in rows}


def test_illumina_sheet_submits_each_sample_of_a_lane_and_a_second_import_changes_nothing(
    helixq, lab
):
    first = submitted(helixq, lab, ILLUMINA)
    assert (first.json["new"], first.json["bad"], first.code) == (2, 1, Exit.NO)
    [problem] = first.json["problems"]
    assert (problem["line"], problem["kind"]) == (12, "bad")
    assert "Sample_ID: expected only [A-Za-z0-9_-]+, got 'S 2'" in problem["reason"]
    assert stored(helixq, lab) == {("run42", "1", "S-1"), ("run42", "2", "S-1")}
    again = submitted(helixq, lab, ILLUMINA)
    assert (again.json["new"], again.json["duplicate"]) == (0, 2)
    [row] = lab.claim()
    assert json.loads(row.payload)["Index"] == "ACGT"
    assert json.loads(row.payload)["RunName"] == "run42"


@pytest.mark.parametrize(
    ("sheet", "why"),
    [
        (ILLUMINA.replace("Version,2", "Version,1"), "expected FileFormatVersion 2, got '1'"),
        (ILLUMINA.replace("RunName,run42", "RunName,"), "expected RunName, got none"),
        (ILLUMINA.replace("[BCLConvert_Data]", "[Data]"), "expected a section [BCLConvert_Data]"),
        (ILLUMINA.replace(",Sample_ID,Index", ",SampleID,Index"), "expected a column 'Sample_ID'"),
    ],
)
def test_illumina_sheet_without_what_it_needs_is_refused_as_a_whole(helixq, lab, sheet, why):
    done = submitted(helixq, lab, sheet)
    assert done.code == Exit.NO
    assert why in done.json["problems"][0]["reason"]
    assert stored(helixq, lab) == set()


def test_presets_know_the_identity_of_nf_core_and_nanopore_sheets(helixq, lab):
    assert submitted(helixq, lab, NF_CORE, "--format", "nf-core").json["new"] == 1
    assert stored(helixq, lab) == {("Sämple-1", "a_1.fq.gz")}
    done = submitted(helixq, lab, ONT, "--format", "ont")
    assert (done.json["new"], done.json["bad"]) == (2, 1)
    assert "flow_cell_id or position_id" in done.json["problems"][0]["reason"]
    assert stored(helixq, lab) >= {("exp1", "FAO1", "barcode01"), ("exp1", "FAO1", "barcode02")}


def test_mapping_names_the_members_of_the_payload(helixq, lab):
    options = ("--identity-column", "tube", "--map", "pod5=File name", "--map", "cell=FC")
    sheet = "tube;File name;FC;note\nS-1;a.pod5;FC3;keep cold\n"
    assert submitted(helixq, lab, sheet, *options).json["new"] == 1
    [row] = lab.claim()
    assert json.loads(row.payload) == {"pod5": "a.pod5", "cell": "FC3"}
    for wrong in (("--map", "pod5"), ("--map", "pod5=FC")):
        done = helixq("submit", lab.q, "--from", "-", *wrong, stdin=sheet.encode())
        assert done.code == Exit.USAGE
        assert "--identity-column NAME" in done.err


def test_dry_run_says_what_each_row_would_do_and_submits_nothing(helixq, lab):
    helixq("submit", lab.q, "S-1", '{"pod5": "a"}')
    helixq("submit", lab.q, "S-2", '{"pod5": "b"}')
    before = lab.value("select count(*) from helix.batch")
    sheet = "tube,pod5\nS-1,a\nS-2,other\ns-1,c\nS-3,d\n\u200bS-4,e\nS-3,d\n"
    options = ("--identity-column", "tube", "--dry-run")
    done = submitted(helixq, lab, sheet, *options)
    counts = {word: done.json[word] for word in ("new", "same", "changed", "twin", "refused")}
    assert counts == {"new": 1, "same": 2, "changed": 1, "twin": 1, "refused": 1}
    decisions = {row["line"]: row["decision"] for row in done.json["each"]}
    assert decisions == {2: "same", 3: "changed", 4: "twin", 5: "new", 6: "refused", 7: "same"}
    assert done.code == Exit.NO
    assert lab.value("select count(*) from helix.batch") == before
    shown = helixq("submit", lab.q, "--from", "-", *options, stdin=sheet.encode())
    assert "line 3: changed: S-2 has another payload\n" in shown.err
    assert '  /pod5: "b" -> "other"\n' in shown.err
    assert "line 4: twin: easily confused with 'S-1'" in shown.err
    assert shown.err.endswith("dry run: nothing was submitted\n")
    assert helixq("identity", "refused", lab.q, "--json").json["rows"] == []
    real = submitted(helixq, lab, sheet, *options[:2])
    assert (real.json["new"], real.json["duplicate"], real.json["conflict"]) == (2, 2, 1)
    assert submitted(helixq, lab, "tube,pod5\nS-3,d\n", *options).code == Exit.OK


def test_program_gets_the_members_of_the_payload_as_variables(helixq, lab, tmp_path):
    script = tmp_path / "members.py"
    payload = {
        "pod5": "run42/a b.pod5", "flow-cell": "FC3", "n": 7, "ok": True, "list": [1, "ä"],
        "same-name": 1, "same_name": 2, "long": "x" * 70_000, "two": "lines\nhere",
    }  # fmt: skip
    helixq("submit", lab.q, "S-1", json.dumps(payload))
    script.write_text(
        "import json, os\n"
        "found = {k: v for k, v in os.environ.items() if k.startswith('HELIX_PAYLOAD_')}\n"
        "json.dump(found, open(os.environ['HELIX_RESULT'], 'w'))\n"
    )
    done = helixq.process("work", lab.q, "--exec", f"{sys.executable} {script}", "--until-idle")
    assert done.code == Exit.OK
    [row] = helixq("batch", "list", "--queue", lab.q, "--json").json["rows"]
    result = helixq("batch", "show", row["batch_id"], "--payload", "--json").json["result"]
    assert {name.removeprefix("HELIX_PAYLOAD_"): value for name, value in result.items()} == {
        "POD5": "run42/a b.pod5", "FLOW_CELL": "FC3", "N": "7", "OK": "true",
        "LIST": '[1, "ä"]', "TWO": "lines\nhere",
    }  # fmt: skip
