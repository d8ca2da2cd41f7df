"""`helixq fence` and `helixq receipt` as a script sees them: output and exit codes."""

from __future__ import annotations

import itertools
import json

import pytest

from helixqueue.cli.exits import Exit
from helixqueue.engine import fences as calls
from helixqueue.errors import LeaseLost
from helixqueue.fence.ed25519 import Ed25519Signer
from helixqueue.fence.receipt import fence_key, receipt_of
from helixqueue.fence.signing import HmacSigner
from helixqueue.identity import key_text
from tests.support.cli import Helixq
from tests.support.fence_reads import fence_of
from tests.support.fence_time import expire


@pytest.fixture
def helixq(database):
    return Helixq(database)


@pytest.fixture
def doubted(helix, name):
    """The key of a fence in doubt, and how to ask for its effect again."""

    @helix.fence(name, key=lambda: ("order", 7))
    def act() -> dict[str, str]:
        raise TimeoutError("the bank did not answer")

    with pytest.raises(TimeoutError):
        act()
    [row] = helix.fences.run(calls.list_fences(name=name)).rows

    @helix.fence(name, key=lambda: ("order", 7))
    def again() -> dict[str, str]:
        return {"id": "second"}

    return f"v1:{row.key[1:].hex()}", again


def test_list_shows_fences_in_doubt(helixq, doubted, name):
    key, _ = doubted
    [line] = helixq("fence", "list", "--name", name).lines
    assert line[0:5] == [key, "a", name, "order / 7", "IN_DOUBT"]
    assert "the bank did not answer" in line[-1]
    found = helixq("fence", "list", "--name", name, "--state", "in_doubt", "--json").json
    assert [fence["fence"] for fence in found["rows"]] == [key]
    assert helixq("fence", "list", "--name", name, "--state", "SEALED").out == ""


def test_show_and_explain_report_history_and_next_step(helixq, doubted, name):
    key, _ = doubted
    shown = helixq("fence", "show", key, "--json").json
    assert [step["what"] for step in shown["history"]] == ["claimed", "failed"]
    assert shown["receipt_document"] is None
    assert "TimeoutError" in helixq("fence", "show", key).out
    document = helixq("fence", "explain", key, "--json").json
    assert document["state"] == "IN_DOUBT"
    assert "an operator decides" in document["next_call"]
    assert "next call" in helixq("fence", "explain", key).out


def test_fence_is_found_by_name_and_identity(helixq, helix, name):
    with helix.fence(name, key="o-7") as fence:
        fence.seal(1)
    assert helixq("fence", "show", "o-7", "--name", name, "--json").json["fence"] == fence.key
    assert helixq("fence", "show", "o-8", "--name", name).code == Exit.NO
    assert helixq("fence", "show", "o-7").code == Exit.REFUSED


def test_fence_is_found_by_the_beginning_of_its_key_if_that_is_unique(helixq, helix, name):
    with helix.fence(name, key="o-7") as fence:
        fence.seal(1)
    for digits in (8, 9, 12, 63, 64):
        shown = helixq("fence", "show", fence.key[: 3 + digits], "--json")
        assert shown.json["fence"] == fence.key
    assert helixq("fence", "show", fence.key[:10]).code == Exit.REFUSED
    wrong = fence.key[:10] + ("0" if fence.key[10] != "0" else "1")
    assert "no fence" in helixq("fence", "show", wrong).err


def test_beginning_of_two_keys_is_refused_until_more_digits_decide(helixq, helix, name):
    seen = {}
    for number in itertools.count():  # about 80,000 keys until two begin with the same 8 digits
        key = key_text(fence_key("a", name, (f"o-{number}",)))
        if key[:11] in seen:
            break
        seen[key[:11]] = f"o-{number}"
    for identity in (seen[key[:11]], f"o-{number}"):
        with helix.fence(name, key=identity) as fence:
            fence.seal(1)
    done = helixq("fence", "show", key[:11])
    assert done.code == Exit.NO
    assert "add digits" in done.err
    assert helixq("fence", "show", key[:20], "--json").json["identity"] == [f"o-{number}"]


@pytest.mark.parametrize("way", ["applied", "applied without result", "not applied"])
def test_resolve_command_decides_a_doubt_with_actor_and_reason(helixq, doubted, way):
    key, again = doubted
    verdict = ["--not-applied"] if way == "not applied" else ["--applied"]
    if way == "applied":
        verdict += ["--effect", "re_1", "--result", '{"id": "found"}']
    outputs = ["--reason", "looked", "--actor", "ann"]
    done = helixq("fence", "resolve", key, *verdict, *outputs, "--json", role="operator")
    assert (done.code, done.json["fence"]) == (Exit.OK, key)
    assert (done.json["actor"], done.json["detail"]) == ("ann", "looked")
    if way == "applied":
        assert again.outcome().result == {"id": "found"}
        assert again.outcome().effect == "re_1"
    elif way == "not applied":
        assert again() == {"id": "second"}
    else:
        with pytest.raises(Exception, match="took place once"):
            again()
    done = helixq("fence", "resolve", key, *verdict, *outputs, role="operator")
    assert done.code == Exit.NO
    assert "expected IN_DOUBT" in done.err


def test_resolve_command_decides_the_fences_that_filters_select(helixq, helix, database, name):
    def doubt(key):
        with pytest.raises(TimeoutError), helix.fence(name, key=key):
            raise TimeoutError("the bank did not answer")

    for key in ("a", "b"):
        doubt(key)
    with helix.fence(name, key="sealed") as fence:
        fence.seal(1)
    verdict = (
        "fence",
        "resolve",
        "--not-applied",
        "--reason",
        "looked",
        "--actor",
        "ann",
        "--json",
    )

    def resolve(*options):
        done = helixq(*verdict, *options, role="operator")
        assert done.code == Exit.OK, done.err
        return [(row["identity"], row["answer"]) for row in done.json]

    assert resolve("--name", name, "--age", "3600") == []
    shown = [(["b"], "dry_run"), (["a"], "dry_run")]
    assert resolve("--name", name, "--dry-run") == shown
    assert fence_of(database, name, "a").state == "IN_DOUBT"
    assert resolve("--name", name) == [(["b"], "ok"), (["a"], "ok")]
    assert fence_of(database, name, "a").detail == "looked"
    assert [fence_of(database, name, key).state for key in "ab"] == ["RELEASED", "RELEASED"]
    assert resolve("--name", name) == []
    assert resolve("--route", "/orders/{order}/refunds", "--dry-run") == []


def test_resolve_command_without_fence_and_filter_or_with_both_decides_nothing(helixq, doubted):
    key, _ = doubted
    verdict = ("--not-applied", "--reason", "looked", "--actor", "ann")
    assert helixq("fence", "resolve", *verdict, role="operator").code == Exit.REFUSED
    assert helixq("fence", "resolve", key, *verdict, "--age", "1", role="operator").code == 2
    result = ("--name", "refund", "--result", "1")
    assert helixq("fence", "resolve", *verdict, *result, role="operator").code == 2


def test_resolve_command_frees_started_fences_only_after_their_lease(helixq, helix, database, name):
    verdict = (
        "fence",
        "resolve",
        "--not-applied",
        "--reason",
        "looked",
        "--actor",
        "ann",
        "--json",
    )
    filters = ("--name", name, "--state", "effect_started")
    with pytest.raises(LeaseLost, match="ann"), helix.fence(name, key="k") as fence:
        [row] = helixq(*verdict, *filters, role="operator").json
        assert row["answer"] == "stale"
        expire(database, bytes.fromhex("01" + fence.key[3:]), deadline=True)
        [row] = helixq(*verdict, *filters, role="operator").json
        assert row["answer"] == "ok"
        assert fence_of(database, name, "k").state == "RELEASED"


def test_resolve_command_corrects_a_resolution(helixq, doubted):
    key, again = doubted
    reason = ["--actor", "ann", "--reason", "looked"]
    resolve = ("fence", "resolve", key, *reason)
    assert helixq(*resolve, "--applied", "--result", "1", role="operator").code == Exit.OK
    corrected = helixq(*resolve, "--not-applied", "--correct", "--json", role="operator")
    assert (corrected.code, corrected.json["state"]) == (Exit.OK, "RELEASED")
    assert corrected.json["reason"] == "corrected"
    assert again() == {"id": "second"}
    late = helixq(*resolve, "--not-applied", "--correct", role="operator")
    assert late.code == Exit.NO
    assert "expected a resolution as the last step" in late.err


def test_resolve_command_refuses_an_http_status_for_a_function(helixq, doubted):
    key, _ = doubted
    options = ["--actor", "ann", "--reason", "x", "--applied", "--http-status", "201"]
    done = helixq("fence", "resolve", key, *options, role="operator")
    assert done.code == Exit.REFUSED


def test_resolve_command_requires_an_operator_and_a_reason(helixq, doubted):
    key, _ = doubted
    outputs = ["--not-applied", "--actor", "ann"]
    assert helixq("fence", "resolve", key, *outputs, "--reason", "x").code == Exit.REFUSED
    for wrong, code in (
        (["--reason", " "], Exit.USAGE),
        ([], Exit.USAGE),
        (["--reason", "x", "--result", "1"], Exit.REFUSED),
    ):
        done = helixq("fence", "resolve", key, *outputs, *wrong, role="operator")
        assert done.code == code


def test_receipt_command_verifies_offline(helixq, helix, name, tmp_path):
    with helix.fence(name, key="k", payload={"a": 1}) as fence:
        fence.seal({"id": 1}, effect="re_1")
    shown = tmp_path / "shown.json"
    shown.write_text(helixq("fence", "show", fence.key, "--json").out)
    (tmp_path / "answer").write_bytes(b'{"id":1}')
    offline = {"HELIX_DSN": "", "HELIX_TENANT": ""}
    done = helixq("receipt", "verify", shown, "--answer", tmp_path / "answer", **offline)
    assert done.code == Exit.UNSIGNED
    assert f"unsigned: {fence.receipt} is consistent" in done.out
    assert "proves" not in done.out
    changed = json.loads(shown.read_text())["receipt_document"] | {"effect": "re_2"}
    done = helixq("receipt", "verify", "-", "--json", stdin=json.dumps(changed).encode(), **offline)
    assert (done.code, done.json["ok"]) == (Exit.NO, False)
    assert helixq("receipt", "verify", tmp_path / "nothing", **offline).code == Exit.REFUSED
    assert helixq("receipt", "verify", "-", stdin=b"[]", **offline).code == Exit.REFUSED


def test_receipt_command_verifies_a_signature(helixq, helix, name, tmp_path):
    with helix.fence(name, key="k") as fence:
        fence.seal(1)
    [row] = helix.fences.run(calls.list_fences(name=name)).rows
    private = Ed25519Signer.from_private(b"k" * 32)
    for signer, option, key in (
        (private, "--public-key", private.public_bytes.hex().encode()),
        (HmacSigner(b"s" * 32), "--secret", b"s" * 32),
    ):
        (tmp_path / "key").write_bytes(key)
        (tmp_path / "receipt").write_text(json.dumps(receipt_of(row).document(signer)))
        verify = ("receipt", "verify", tmp_path / "receipt", option, tmp_path / "key")
        done = helixq(*verify)
        assert (done.code, done.out[:4]) == (Exit.OK, "yes:")
        if option == "--secret":
            assert helixq(*verify, "--key-id", "2").code == Exit.NO
    assert fence.receipt == receipt_of(row).id


def test_receipts_are_signed_where_a_key_exists_and_verify_after_rotation(
    helixq, helix, name, tmp_path
):
    with helix.fence(name, key="k") as fence:
        fence.seal(1)
    key = {"HELIX_KEY": str(tmp_path / "helixq.key")}
    created = helixq("key", "create", "--json", **key).json["keys"]
    assert (tmp_path / "helixq.key").stat().st_mode & 0o777 == 0o600
    assert helixq("key", "create", **key).code == Exit.REFUSED
    (tmp_path / "shown").write_text(helixq("fence", "show", fence.key, "--json", **key).out)
    rotated = helixq("key", "rotate", "--json", **key).json["keys"]
    assert [k["id"] for k in rotated][:1] == [k["id"] for k in created]
    assert "private" not in json.dumps(rotated)
    assert (tmp_path / "helixq.key").read_text().count('"private"') == 1
    (tmp_path / "public").write_text(helixq("key", "public", **key).out)
    offline = {"HELIX_DSN": "", "HELIX_TENANT": ""}
    verify = ("receipt", "verify", tmp_path / "shown")
    for how in (("--public-key", tmp_path / "public"), ()):
        done = helixq(*verify, *how, "--json", **offline, **(key if not how else {}))
        assert (done.code, done.json["answer"]) == (Exit.OK, "yes")
    assert [line[4] for line in helixq("key", "list", **key).lines] == ["no", "yes"]


def test_key_file_that_others_can_read_is_refused(helixq, tmp_path):
    key = {"HELIX_KEY": str(tmp_path / "helixq.key")}
    helixq("key", "create", **key)
    (tmp_path / "helixq.key").chmod(0o644)
    done = helixq("key", "public", **key)
    assert done.code == Exit.REFUSED
    assert "expected mode 0600, got 0644" in done.err
    missing = helixq("key", "list", "--key", tmp_path / "none")
    assert missing.code == Exit.REFUSED
    assert "helixq key create" in missing.err


def lines_of(*result):
    return "\n".join(json.dumps(item) for item in result).encode()


def test_rehearse_previews_decisions_and_writes_nothing(helixq, helix, database, name):
    @helix.fence(name, key=lambda order, _: order, payload=lambda _, cents: {"cents": cents})
    def refund(order: str, cents: int) -> int:
        if order == "doubted":
            raise TimeoutError
        return cents

    refund("done", 5)
    refund("gone", 5)
    expire(database, fence_of(database, name, "gone").key, answer=True)
    with pytest.raises(TimeoutError):
        refund("doubted", 5)

    def rehearse(*result, may_run=False, code=Exit.OK):
        calls = [{"name": name, "payload": {"cents": 5}} | item for item in result]
        options = ["--may-run"] if may_run else []
        done = helixq("fence", "rehearse", "-", "--json", *options, stdin=lines_of(*calls))
        assert done.code == code, done.out
        return done.json

    assert rehearse({"key": "done"}, {"key": ["gone"]}) == {
        "safe": True, "counts": {"repeats": 1, "done": 1}, "unsafe": [],
    }  # fmt: skip
    new = {"key": "new"}
    assert rehearse(new, new, code=Exit.NO)["counts"] == {"runs": 1, "repeats": 1}
    assert rehearse(new, new, may_run=True)["safe"]
    for answer, what in (
        ({"key": "doubted"}, "in doubt"),
        ({"key": "done", "payload": {"cents": 6}}, "refused"),
        ({"key": "unknown"}, "unreadable"),
        ({"key": "k", "amount": 1}, "unreadable"),
        ({"key": 1.5}, "unreadable"),
    ):
        [unsafe] = rehearse(answer, may_run=True, code=Exit.NO)["unsafe"]
        assert (unsafe["line"], unsafe["what"]) == (1, what)
    other = {"key": "new", "payload": {"cents": 6}}
    assert rehearse(new, other, may_run=True, code=Exit.NO)["counts"] == {"runs": 1, "refused": 1}
    with helix.fence(name, key="going"):
        going = rehearse({"key": "going", "payload": None}, may_run=True, code=Exit.NO)
        assert going["counts"] == {"in progress": 1}
        before = helixq("fence", "list", "--name", name, "--json").out
        assert helixq("fence", "rehearse", "-", stdin=b'{"name":"x"}').code == Exit.NO
        assert helixq("fence", "list", "--name", name, "--json").out == before
    assert helixq("fence", "rehearse", "/nowhere/calls").code == Exit.REFUSED


def test_rehearse_without_a_payload_compares_none(helixq, helix, name, tmp_path):
    with helix.fence(name, key="k", payload={"a": 1}) as fence:
        fence.seal(1)
    (tmp_path / "calls.jsonl").write_bytes(lines_of({"name": name, "key": "k"}) + b"\n\n")
    done = helixq("fence", "rehearse", tmp_path / "calls.jsonl")
    assert (done.code, done.lines[0][:2]) == (Exit.OK, ["1", "repeats"])
