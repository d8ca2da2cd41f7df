"""Batches are found by what outputs print of them, also after retention."""

import pytest

from helixqueue.cli.exits import Exit
from helixqueue.identity import escaped


@pytest.fixture
def plates(lab):
    """A well of a plate, and a revision of a sample."""
    [well] = lab.submit(("plate 7", "A01"))
    [again] = lab.submit("Probe", revision="2")
    return str(well.receipt.batch_id), str(again.receipt.batch_id)


def test_identity_of_several_parts_is_found_as_every_output_prints_it(helixq, lab, plates):
    well, again = plates
    printed = {line[2] for line in helixq("batch", "list", "--queue", lab.q).lines}
    assert printed == {"plate 7 / A01", "Probe (revision 2)"}
    found = {text: helixq("batch", "show", text, "--json").json["batch_id"] for text in printed}
    assert found == {"plate 7 / A01": well, "Probe (revision 2)": again}
    # HELIX_IDENTITY of a worker's program.
    assert helixq("batch", "show", "plate 7/A01", "--json").json["batch_id"] == well
    done = helixq("batch", "cancel", "plate 7 / A01", "--reason", "x", "--json")
    assert [(row["batch_id"], row["answer"]) for row in done.json["rows"]] == [(well, "ok")]


def test_identity_with_a_slash_of_its_own_is_found_first(helixq, lab):
    [whole] = lab.submit("a/b")
    lab.submit(("a", "b"))
    shown = helixq("batch", "show", "a/b", "--json").json
    assert (shown["batch_id"], shown["identity"]) == (str(whole.receipt.batch_id), "a/b")


@pytest.mark.parametrize("name", ["Pröbe", "Pro\u0308be", "plate 7 / A01", "Probe (revision 2)"])
def test_retired_sample_is_found_by_name_with_its_history(helixq, lab, name):
    for identity, revision in (("Pröbe", None), (("plate 7", "A01"), None), ("Probe", "2")):
        lab.submit(identity, revision=revision)
        lab.complete(*lab.claim())
    shown = helixq("batch", "show", name, "--queue", lab.q, "--json").json
    finished = "select helix.retire_v1('a', %s, 'COMPLETED', now() + interval '1 hour')"
    assert lab.value(finished, lab.q) == 3
    retired = helixq("batch", "show", name, "--queue", lab.q, "--json").json
    assert (retired["batch_id"], retired["state"]) == (shown["batch_id"], "COMPLETED")
    assert retired["retired_at"]
    assert [event["reason"] for event in retired["events"]][-1] == "completed"
    unknown = helixq("batch", "show", f"{name}-x", "--queue", lab.q)
    assert (unknown.code, unknown.out) == (Exit.NO, "")


def test_letter_is_spelled_one_way_in_all_outputs(helixq, lab):
    """An error, refused identities and twins use the escapes of the refusal."""
    decomposed = "Sa\u0308"
    lab.submit(decomposed)
    lab.submit(decomposed.lower())
    refused = helixq("submit", lab.q, f"{decomposed}\u200b", "{}")
    missing = helixq("batch", "show", f"{decomposed}-9", "--queue", lab.q)
    texts = [
        refused.err, missing.err, helixq("identity", "refused", lab.q).out,
        helixq("identity", "twins", lab.q).out,
    ]  # fmt: skip
    for text in texts:
        assert escaped(decomposed) in text
        assert "\\u0308" not in text
        assert "\\xe4" not in text
