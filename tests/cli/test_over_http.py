"""The same commands, over HTTP: with a token and no database, and the same answers."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
import time
import uuid

import pytest

from helixqueue import HelixQueue
from helixqueue.cli import pages
from helixqueue.cli.exits import Exit
from helixqueue.client.backend import backend_of
from helixqueue.engine import fences, tokens
from helixqueue.identity import key_text
from tests.support.cli import Helixq
from tests.support.lab import POOLED, Lab, failure
from tests.support.letters import write_letters
from tests.support.service import Site, serving, settings_for

NOWHERE = {"HELIX_DSN": "", "HELIX_TENANT": "", "HELIX_DATA": ""}


@pytest.fixture(scope="module")
def site(database):
    with serving(settings_for(database)) as url:
        yield Site(database, url)


@pytest.fixture
def over_http(site, database):
    """`helixq` with nothing but a URL and a token in its environment."""
    helixq = Helixq(database)
    token = site.token()

    def run(*arguments, **more):
        environment = {**NOWHERE, "HELIX_URL": site.url, "HELIX_TOKEN": token, **more}
        return helixq(*arguments, **environment)

    run.q, run.url, run.token, run.direct = helixq.q, site.url, token, helixq
    return run


def test_queue_list_reads_every_page_of_service_and_database(over_http, monkeypatch):
    monkeypatch.setattr(pages, "PAGE_ROWS", 2)
    for number in range(5):
        assert over_http("queue", "set", f"{over_http.q}-{number}", "--reason", "x").code == Exit.OK
    found = [run("queue", "list", "--json").json["rows"] for run in (over_http, over_http.direct)]
    names = [[queue["name"] for queue in queues] for queues in found]
    assert names[0] == names[1]
    assert {f"{over_http.q}-{number}" for number in range(5)} <= set(names[0])


def test_worker_list_shows_status_slots_and_own_workers(over_http, site, monkeypatch):
    monkeypatch.setattr(pages, "PAGE_ROWS", 2)
    outputs = {f"gpu-{number}-{over_http.q}" for number in range(3)}
    with site.client() as http:
        for name in outputs:
            hello = {"worker": name, "free": {"gpus": 2}}
            assert http.post("/v1/work/hello", json=hello).status_code == 204
    document = over_http("worker", "list", "--since", "1h", "--json").json["rows"]
    [first, _, _] = [item for item in document if item["name"] in outputs]
    assert (first["role"], first["free"]["gpus"], first["leases"]) == (None, 2, 0)
    assert over_http("worker", "list", "--since", "+1h", "--json").json["rows"] == []
    assert "gpus 2" in over_http("worker", "list").out
    with site.client() as http:
        hello = {"worker": f"gpu-0-{over_http.q}", "health": {"slots": 4, "busy": 3}}
        assert http.post("/v1/work/hello", json=hello).status_code == 204
        ended = {"worker": f"gpu-1-{over_http.q}", "ended": True}
        assert http.post("/v1/work/hello", json=ended).status_code == 204
    rows = {line[0]: line[1:] for line in over_http("worker", "list").lines}
    # It holds nothing, whatever it reported.
    assert rows[f"gpu-0-{over_http.q}"][:3] == ["a", "alive", "0/4"]
    assert rows[f"gpu-1-{over_http.q}"][1] == "ended"
    direct = over_http.direct("worker", "list", "--json").json["rows"]
    assert outputs <= {item["name"] for item in direct if item["tenant"] == "a"}


def test_list_returns_the_requested_number_of_rows_over_http(over_http, database):
    """More than one of its pages."""
    with Lab(database, q=over_http.q) as lab:
        lab.queue(max_attempts=1)
        lab.submit_many(1100)
        lab.settle(*[failure(lease) for lease in lab.claim(600)])
    failed_only = ("--state", "failed")
    for filters, limit, wanted in (
        ((), 1050, 1050), ((), 2000, 1100), (failed_only, 550, 550), (failed_only, 2000, 600),
    ):  # fmt: skip
        words = ("batch", "list", "--queue", over_http.q, *filters, "--limit", limit, "--json")
        answer, direct = over_http(*words).json, over_http.direct(*words).json
        rows = answer["rows"]
        assert len({row["batch_id"] for row in rows}) == len(rows) == wanted
        # A service encrypts its cursors, so the two texts differ.
        for page in (answer, direct):
            assert (page.pop("next") is None) == (wanted < limit)
        assert answer == direct


def test_batch_can_be_submitted_shown_and_cancelled_over_http(over_http, tmp_path):
    q = over_http.q
    assert over_http("submit", q, "S-1").code == Exit.REFUSED
    assert over_http("queue", "set", q, "--reason", "x", "--max-attempts", "2").code == Exit.OK
    done = over_http("submit", q, "S-1", '{"n": 1}', "--json")
    assert (done.code, done.json["decision"]) == (Exit.OK, "new")
    assert f"service: {over_http.url}" in done.err
    assert over_http("submit", q, "S-1", '{"n": 1}', "--json").json["decision"] == "duplicate"
    assert over_http("submit", q, "S-1", '{"n": 2}').code == Exit.REFUSED
    rows = tmp_path / "rows.csv"
    rows.write_text("identity,payload.n\nS-1,1\nS-2,2\n")
    many = over_http("submit", q, "--from", rows, "--json").json
    # In CSV a payload's members are texts, so S-1 comes with another payload.
    assert (many["rows"], many["new"], many["conflict"]) == (2, 1, 1)
    [row] = over_http("batch", "list", "--queue", q, "--identity", "S-1", "--json").json["rows"]
    for ref in (row["batch_id"], row["key"], "S-1"):
        document = over_http("batch", "show", ref, "--queue", q, "--payload", "--json").json
        assert (document["batch_id"], document["payload"]) == (row["batch_id"], {"n": 1})
    cancelled = over_http("batch", "cancel", row["batch_id"], "S-2", "--queue", q, "--reason", "x")
    assert [line[2:4] for line in cancelled.lines] == [["ok", "CANCELLED"]] * 2
    assert over_http("batch", "retry", "S-2", "--queue", q, "--reason", "x").code == Exit.NO
    assert over_http("batch", "show", uuid.uuid4()).code == Exit.NO


@pytest.mark.parametrize("way", ["service", "database"])
def test_operator_releases_a_batch_of_a_lost_worker(over_http, database, way):
    run = over_http if way == "service" else over_http.direct
    with Lab(database, q=over_http.q, worker="gone") as lab:
        lab.queue()
        lab.submit("S-1")
        [lease] = lab.claim()
        words = ("batch", "release", "S-1", "--queue", lab.q, "--reason", "the node is gone")
        assert run(*words, "--json").json["rows"][0]["state"] == "PENDING"
        assert [item.answer for item in lab.complete(lease)] == ["refused"]
        kept = "select detail from helix.result where batch = %s order by version desc limit 1"
        assert lab.value(kept, lease.batch) == "the node is gone"
        lab.complete(*lab.claim())
    assert run(*words).code == Exit.NO


def test_error_for_a_missing_queue_shows_the_command_to_create_it(over_http):
    there = {**NOWHERE, "HELIX_URL": over_http.url, "HELIX_TOKEN": over_http.token}
    for environment in (there, {}):
        words = ("work", "nowhere", "--exec", "true", "--until-idle")
        done = over_http.direct(*words, **environment)
        assert done.code == Exit.REFUSED
        assert "`helixq queue set nowhere --profile PROFILE --reason ...`" in done.err


def test_skipped_checks_do_not_count_as_broken(over_http):
    done = over_http("check")
    held, request = re.search(r"(\d+) of (\d+) invariants hold", done.err).groups()
    found = [line[0] for line in done.lines]
    assert int(request) - int(held) == found.count("BROKEN")
    assert f"{found.count('skipped')} more were skipped" in done.err
    assert "skipped" in found


def test_json_is_equal_over_http_and_dsn(over_http):
    q = over_http.q
    over_http("queue", "set", q, "--reason", "x", "--lease", "60")
    over_http("submit", q, "S-1", '{"n": 1}')
    for words in (
        ("queue", "show", q),
        ("batch", "list", "--queue", q),
        ("batch", "show", "S-1", "--queue", q, "--payload"),
    ):
        assert over_http(*words, "--json").json == over_http.direct(*words, "--json").json


def test_queue_can_be_paused_and_resumed_over_http(over_http):
    q = over_http.q
    assert over_http("queue", "pause", q, "--reason", "x").code == Exit.NO
    over_http("queue", "set", q, "--reason", "x")
    assert over_http("queue", "pause", q, "--reason", "x", "--json").json["paused"] is True
    assert over_http("queue", "resume", q, "--reason", "x", "--json").json["paused"] is False
    names = {queue["name"] for queue in over_http("queue", "list", "--json").json["rows"]}
    assert q in names


@pytest.mark.parametrize("way", ["service", "database"])
def test_command_deletes_an_empty_queue_and_keeps_a_used_one(over_http, way):
    run, q = over_http if way == "service" else over_http.direct, over_http.q
    delete = ("queue", "delete", q, "--reason", "a typing error")
    absent = run(*delete)
    assert (absent.code, f"tenant a has no queue {q}" in absent.err) == (Exit.NO, True)
    run("queue", "set", q, "--reason", "x")
    assert run(*delete).out == f"queue {q} of tenant a was deleted\n"
    assert run("queue", "show", q).code == Exit.NO
    run("submit", q, "S-1", "--create")
    kept = run(*delete, "--json")
    assert (kept.code, kept.json["error"]["kind"]) == (Exit.NO, "QueueNotEmpty")
    assert f"helixq queue set {q} --closed" in run(*delete).err


@pytest.mark.parametrize("way", ["service", "database"])
def test_commands_list_show_redrive_and_discard_letters(over_http, database, way):
    run, q = over_http if way == "service" else over_http.direct, over_http.q
    with Lab(database, q=q) as lab:
        lab.queue()
        first, second = write_letters(lab, "1-1", "2-1")
    listed = run("letter", "list", "--queue", q, "--json").json["rows"]
    assert [(row["letter"], row["source"]) for row in listed] == [(second, "2-1"), (first, "1-1")]
    assert [line[:1] for line in run("letter", "list", "--queue", q).lines][-2:] == [
        [str(second)],
        [str(first)],
    ]
    assert run("letter", "show", str(first), "--json").json["fields"]["identity"] == "letter-1-1"
    assert "field identity: letter-1-1" in run("letter", "show", str(first)).out

    assert run("letter", "redrive", str(first)).code == Exit.USAGE  # without a reason
    corrected = ("--identity", "corrected", "--reason", "opened", "--json")
    redriven = run("letter", "redrive", str(first), *corrected).json
    assert redriven["decision"] == "new"
    shown = run("batch", "show", redriven["receipt"]["batch_id"], "--json").json
    assert [(row["kind"], row["id"]) for row in shown["sources"]] == [("stream", "1-1")]
    again = run("letter", "redrive", str(first), "--reason", "again")
    assert (again.code, "redriven" in again.err) == (Exit.REFUSED, True)

    discarded = run("letter", "discard", str(second), "--reason", "test data")
    assert (discarded.code, discarded.out) == (Exit.OK, f"letter {second}: ok\n")
    assert run("letter", "discard", str(first), "--reason", "too late").code == Exit.NO
    assert run("letter", "list", "--queue", q, "--json").json["rows"] == []


@pytest.mark.parametrize("way", ["service", "database"])
def test_queue_changes_are_recorded_with_their_reason(over_http, database, way):
    run = over_http if way == "service" else over_http.direct
    q = over_http.q
    for verb in ("set", "pause", "resume"):
        assert run("queue", verb, q).code == Exit.USAGE
        assert run("queue", verb, q, "--reason", "  ").code == Exit.USAGE
        assert run("queue", verb, q, "--reason", f"to {verb} it").code == Exit.OK
    kept = "select detail::json ->> 'reason' from helix.decision where queue = %s order by id"
    assert database.rows(kept, q) == [("to set it",), ("to pause it",), ("to resume it",)]


def test_tokens_can_be_created_rotated_and_revoked_over_http(over_http):
    name = f"t-{over_http.q}"
    made = over_http("token", "create", name, "--scope", "read", "--json")
    assert tokens.TOKEN.fullmatch(made.json["token"])
    assert over_http("token", "create", name, "--scope", "read").code == Exit.NO
    assert over_http("batch", "list", "--token", made.json["token"]).code == Exit.OK
    rotated = over_http("token", "rotate", name, "--overlap", "0", "--json").json
    assert rotated["generation"] == 2
    listed = over_http("token", "list", "--json").json["rows"]
    assert [item["good"] for item in listed if item["name"] == name] == [False, True]
    revoked = over_http("token", "revoke", name, "--reason", "x", "--json").json
    assert revoked == {"tenant": "a", "name": name, "revoked": 2}
    assert over_http("batch", "list", "--token", rotated["token"]).code == Exit.REFUSED
    assert over_http("token", "rotate", f"{name}-none").code == Exit.NO


@pytest.mark.parametrize(
    "words",
    [("doctor",), ("migrate",), ("recover", "--reason", "x")],
    ids=lambda words: words[0],
)
def test_commands_that_need_a_database_explain_why(over_http, words):
    done = over_http(*words, "--url", over_http.url)
    assert done.code == Exit.USAGE
    assert "run it with" in done.err
    assert over_http(*words).code == Exit.USAGE
    assert "only a service is configured" in over_http(*words).err


def test_dsn_option_overrides_a_configured_url(over_http, database):
    done = over_http("replay", "--dsn", database.dsn("helix_bootstrap"))
    assert done.code == Exit.OK, done.err


def test_options_override_environment_and_exclude_each_other(over_http, database):
    done = over_http("queue", "list", "--dsn", database.dsn("pool"), HELIX_TENANT="a")
    assert "database: " in done.err
    assert "service" not in done.err
    both = over_http("queue", "list", "--dsn", database.dsn("pool"), "--url", over_http.url)
    assert both.code == Exit.USAGE
    assert over_http("queue", "list", HELIX_TOKEN="").code == Exit.USAGE
    assert over_http("queue", "set", "x", "--reason", "x", "--actor", "ann").code == Exit.USAGE


def test_configuration_file_applies_without_options_and_environment(over_http, database, tmp_path):
    file = tmp_path / "helixq.toml"
    file.write_text(f'url = "{over_http.url}"\ntoken = "{over_http.token}"\n')
    environment = {**NOWHERE, "HELIX_URL": "", "HELIX_TOKEN": "", "HELIX_CONFIG": str(file)}
    assert f"service: {over_http.url}" in over_http.direct("queue", "list", **environment).err
    typed = over_http.direct("queue", "list", "--dsn", database.dsn("pool"), **environment)
    assert "database: " in typed.err
    file.write_text('urll = "x"')
    assert over_http.direct("queue", "list", **environment).code == Exit.REFUSED
    environment["HELIX_CONFIG"] = str(tmp_path / "none")
    assert "expected a file" in over_http.direct("queue", "list", **environment).err


def test_unreachable_service_exits_with_unavailable(over_http):
    done = over_http("queue", "list", "--url", "http://127.0.0.1:9")
    assert done.code == Exit.UNAVAILABLE
    assert over_http.token not in done.out + done.err


def test_missing_file_is_reported_before_connecting(over_http, tmp_path):
    done = over_http("submit", "q", "--from", tmp_path / "none.csv", "--url", "http://127.0.0.1:9")
    assert done.code == Exit.USAGE
    assert "No such file" in done.err


def test_ctrl_c_is_handled_before_slow_imports():
    code = (
        "import _signal, re, sys\nsys.argv = ['helixq']\nbefore = set(sys.modules)\n"
        # A suite in the background of a shell ignores Ctrl-C, and so would this.
        "_signal.signal(2, _signal.default_int_handler)\n"
        "import signal, helixqueue.cli\n"
        "print(*sorted(set(sys.modules) - before), signal.getsignal(2).__name__)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    *loaded, handler = done.stdout.split()
    assert handler == "leave_quietly"
    assert set(loaded) <= {"__future__", "_signal", "helixqueue", "helixqueue.cli", "signal"}


BEGINS = """
import sys
from helixqueue.cli import entry
load = entry.signal.signal
def ready(*given):
    load(*given)
    entry.signal.signal = load
    sys.stdout.write(".")
    sys.stdout.flush()
entry.signal.signal = ready  # says when Ctrl-C is looked after
entry.main()
"""


@pytest.mark.parametrize("seconds", [0.02, 0.08, 0.2])
def test_ctrl_c_during_imports_shows_no_traceback(seconds):
    with subprocess.Popen(
        [sys.executable, "-c", BEGINS, "queue", "list", "--dsn", "host=192.0.2.1"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout.read(1) == "."
        time.sleep(seconds)  # that is what this is about
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=60)
    assert "Traceback" not in errors
    assert process.returncode == Exit.INTERRUPTED


def test_piped_table_has_a_header(over_http):
    over_http("queue", "set", over_http.q, "--reason", "x")
    first = over_http("queue", "list").out.splitlines()[0].split("\t")
    assert first[:3] == ["tenant", "queue", "status"]


@pytest.fixture
def doubted(database, over_http):
    """The name of a fence in doubt, of tenant a; and its key."""
    name = f"refund-{over_http.q}"
    with HelixQueue(database.dsn("pool"), tenant="a", pooled=POOLED) as helix:

        @helix.fence(name, key=lambda: ("order", 7), payload=lambda: {"cents": 5})
        def act() -> dict[str, str]:
            raise TimeoutError("the bank did not answer")

        with pytest.raises(TimeoutError):
            act()
        [row] = backend_of(helix).run(fences.list_fences(name=name)).rows
    return name, key_text(row.key)


def test_fence_commands_give_equal_results_over_http_and_dsn(over_http, doubted):
    name, key = doubted
    for words in (
        ("list", "--name", name, "--state", "in_doubt"),
        ("show", key),
        ("show", "order\x1f7", "--name", name),
        ("explain", key),
    ):
        result = over_http("fence", *words, "--json")
        assert result.code == Exit.OK, result.err
        assert result.json == over_http.direct("fence", *words, "--json").json
    assert over_http("fence", "show", key[:-2] + "00").code == Exit.NO


def test_resolve_over_http_records_the_token_name(over_http, site, doubted, tmp_path):
    _, key = doubted
    outputs = ["--applied", "--effect", "re_1", "--result", '{"id": 1}', "--reason", "looked"]
    reader = site.token("read", "payloads")
    assert over_http("fence", "resolve", key, *outputs, "--token", reader).code == Exit.REFUSED
    assert over_http("fence", "resolve", key, *outputs, "--actor", "ann").code == Exit.USAGE
    ann = site.token(name=f"ann-{over_http.q}")
    done = over_http("fence", "resolve", key, *outputs, "--json", "--token", ann)
    assert done.code == Exit.OK, done.err
    document = (done.json["state"], done.json["actor"], done.json["detail"], done.json["effect"])
    assert document == ("SEALED", f"ann-{over_http.q}", "looked", "re_1")
    shown = over_http.direct("fence", "show", key, "--json").json
    assert [step["actor"] for step in shown["history"]][-1] == f"ann-{over_http.q}"
    assert over_http("fence", "resolve", key, *outputs).code == Exit.NO
    # Its receipt is the same both ways, is consistent offline, and is on record. This service has
    # no key, so it is not signed.
    (tmp_path / "receipt.json").write_text(done.out)
    assert done.json["receipt_document"] == shown["receipt_document"]
    verify = ("receipt", "verify", tmp_path / "receipt.json")
    assert over_http.direct(*verify, HELIX_DSN="").code == Exit.UNSIGNED
    assert over_http(*verify, "--recorded").code == Exit.UNSIGNED
    assert over_http.direct(*verify, "--recorded").code == Exit.UNSIGNED
    assert over_http(*verify, "--url", over_http.url).code == Exit.USAGE
    stranger = site.token(tenant="b")
    unseen = over_http(*verify, "--recorded", "--token", stranger)
    assert (unseen.code, unseen.out[:30]) == (Exit.NO, "no: no fence with this key is ")
    # Whoever may not read payloads is told of the receipt, and not what proves the answer.
    hidden = over_http("fence", "show", key, "--json", "--token", site.token("read"))
    assert (hidden.json["receipt_document"], hidden.json["state"]) == (None, "SEALED")
    assert "scope payloads" in hidden.err


def test_resolve_not_applied_releases_the_fence(over_http, doubted):
    _, key = doubted
    done = over_http("fence", "resolve", key, "--not-applied", "--reason", "looked", "--json")
    assert (done.code, done.json["state"]) == (Exit.OK, "RELEASED")


def test_rehearse_gives_equal_results_over_http_and_dsn(over_http, doubted, tmp_path, site):
    name, _ = doubted
    new = [{"name": name, "key": f"new-{n % 600}", "payload": {"cents": n}} for n in range(1200)]
    calls = [
        {"name": name, "key": ["order", 7]},
        {"name": name, "key": ["order", "7"], "payload": {"cents": 6}},
        {"name": name},
        *new,
    ]
    (tmp_path / "calls").write_text("\n".join(json.dumps(call) for call in calls))
    result = over_http("fence", "rehearse", tmp_path / "calls", "--json")
    assert result.code == Exit.NO
    assert result.json == over_http.direct("fence", "rehearse", tmp_path / "calls", "--json").json
    assert result.json["counts"] == {"in doubt": 1, "refused": 601, "unreadable": 1, "runs": 600}
    reader = site.token("read", "operate")
    denied = over_http("fence", "rehearse", tmp_path / "calls", "--token", reader)
    assert denied.code == Exit.REFUSED
    assert "scope payloads" in denied.err


@pytest.mark.parametrize("way", ["service", "database"])
def test_worker_output_and_logs_contain_no_secret(over_http, database, tmp_path, way):
    """Token, password, payload, result and what proves a lease; also when nothing is reached."""
    helixq = over_http.direct
    dsn = database.dsn("pool", direct=True).replace("pool@", "pool:canary-password@")
    there = {"HELIX_DSN": dsn}
    gone = {"HELIX_DSN": "postgresql://pool:canary-password@127.0.0.1:1/lab"}
    if way == "service":
        there = {**NOWHERE, "HELIX_URL": over_http.url, "HELIX_TOKEN": over_http.token}
        gone = {**there, "HELIX_URL": "http://127.0.0.1:1"}
    program = tmp_path / "program"
    program.write_text('echo canary-output; echo \'"canary-result"\' > "$HELIX_RESULT"\n')
    log = tmp_path / "log"
    words = ("work", helixq.q, "--exec", f"sh {program}", "--until-idle", "--log", log)
    with Lab(database, q=helixq.q) as lab:
        lab.queue()
        [row] = lab.submit("S-1", payload={"card": "canary-payload"})
        done = helixq.process(*words, **there)
        assert (done.code, lab.location(row.receipt.batch_id)[0]) == (Exit.OK, "COMPLETED")
    away = helixq.process(*words, **gone)
    assert away.code == Exit.UNAVAILABLE
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    assert [line["operation"] for line in lines] == ["claim", "settle"]
    result = done.out + done.err + away.out + away.err + log.read_text()
    for canary in (over_http.token, "canary-"):
        assert canary not in result
    assert not any("token" in line or "nonce" in line for line in lines)


def test_fence_pages_are_equal_over_http_and_dsn(over_http, database):
    name = f"paged-{over_http.q}"
    with HelixQueue(database.dsn("pool"), tenant="a", pooled=POOLED) as helix:
        for number in range(5):
            with helix.fence(name, key=str(number)):
                pass
    for run in (over_http, over_http.direct):
        words = ("fence", "list", "--name", name, "--limit", "3")
        first = run(*words, "--json").json
        last = run(*words, "--after", first["next"], "--json").json
        found = [fence["identity"] for page in (first, last) for fence in page["rows"]]
        assert (found, last["next"]) == ([[key] for key in "43210"], None)
        # A cursor over HTTP is another text each time; the one that is shown continues as well.
        [shown] = re.findall(r"more: --after (\S+)", run(*words).err)
        assert run(*words, "--after", shown, "--json").json == last
        assert run(*words, "--after", "nowhere").code == Exit.REFUSED


def test_tenant_option_must_match_the_token(over_http, database):
    assert over_http("queue", "list", "--tenant", "a").code == Exit.OK
    for words in (
        ("queue", "list"),
        ("submit", over_http.q, "S-1", "--create"),
        ("work", over_http.q, "--exec", "true", "--until-idle"),
        ("token", "list"),
        ("fence", "list"),
    ):
        done = over_http(*words, "--tenant", "b")
        assert done.code == Exit.REFUSED, done.err
        assert "the token belongs to tenant 'a'" in done.err
    assert over_http("queue", "list", HELIX_TENANT="b").code == Exit.REFUSED
    assert database.value("select count(*) from helix.queue where name = %s", over_http.q) == 0


def test_token_list_reads_every_page(over_http, monkeypatch):
    monkeypatch.setattr(pages, "PAGE_ROWS", 2)
    for n in range(5):
        over_http("token", "create", f"page-{over_http.q}-{n}", "--scope", "read")
    for run in (over_http, over_http.direct):
        rows = run("token", "list", "--json").json["rows"]
        listed = [(row["tenant"], row["name"], row["generation"]) for row in rows]
        assert listed == sorted(set(listed))
        assert len([name for _, name, _ in listed if name.startswith(f"page-{over_http.q}-")]) == 5


def test_login_link_can_be_created_over_http(over_http, site):
    document = over_http("token", "link", "--json").json
    assert document["tenant"] == "a"
    assert document["login"].startswith(f"{over_http.url}/login?code=hl_")
    assert over_http("token", "link", "--token", site.token("operate")).code == Exit.REFUSED


def test_check_and_replay_give_equal_results_over_http_and_dsn(over_http, site):
    over_http("queue", "set", over_http.q, "--reason", "x")
    over_http("submit", over_http.q, "S-1")
    document = over_http("check", "--json").json
    direct = over_http.direct("check", "--json", role="app_a").json
    assert document["every_tenant"] is direct["every_tenant"] is False
    assert [(result["name"], result["count"]) for result in document["results"]] == [
        (result["name"], result["count"]) for result in direct["results"]
    ]
    assert "own tenants only" in over_http("check").err
    document = over_http("replay", "--json").json
    direct = over_http.direct("replay", "--json", role="app_a").json
    assert document["batches"] > 0
    assert document | {"seconds": 0} == direct | {"seconds": 0}
    assert over_http("replay").code == Exit.OK
    reader = site.token("read", "payloads")
    for verb in ("check", "replay"):
        assert over_http(verb, "--token", reader).code == Exit.REFUSED


@pytest.mark.parametrize("free", ['{"gpu": 1}', '{"gpus": 1.5}', '{"labels": {"site": 7}}'])
def test_unknown_resources_are_refused(over_http, site, free):
    over_http("queue", "set", over_http.q, "--reason", "x")
    words = ("work", over_http.q, "--exec", "true", "--until-idle", "--free", free)
    over, direct = over_http(*words), over_http.direct(*words)
    assert over.code == direct.code == Exit.REFUSED
    result = direct.err.strip().splitlines()[-1].removeprefix("helixq: ")
    assert result.startswith("free: ")
    assert result in over.err
    body = {"worker": "w", "free": json.loads(free)}
    claim = body | {"request": str(uuid.uuid4()), "queues": [over_http.q]}
    with site.client() as http:
        for path, sent in (("/v1/work/claim", claim), ("/v1/work/hello", body)):
            response = http.post(path, json=sent)
            assert response.status_code == 422
            assert result in response.json()["detail"]


def test_worker_claims_only_batches_that_fit_its_resources(over_http):
    over_http("queue", "set", over_http.q, "--reason", "x", "--requires", '{"gpus": 1}')
    over_http("submit", over_http.q, "S-1")
    words = ("work", over_http.q, "--exec", "true", "--until-idle", "--json")
    assert over_http(*words, "--free", '{"cpu_cores": 4}').json["completed"] == 0
    assert over_http(*words, "--free", '{"gpus": 1}').json["completed"] == 1
