"""`--watch SECONDS` of list commands, on a terminal of 80 x 24 and in a pipe."""

from __future__ import annotations

import json
import re
import subprocess

import pytest

from helixqueue.cli.exits import Exit
from tests.support.cli import HELIXQ, commands
from tests.support.terminal import COLUMNS, END_OF_FRAME, ROWS, helixq_on_terminal

LISTS = ("queue list", "batch list", "worker list", "fence list", "letter list")


def frames_of(terminal, number):
    """The output of the first frames."""
    while terminal.output.count(END_OF_FRAME) < number:
        assert terminal.read(), terminal.text
    return terminal.output.split(END_OF_FRAME)[:number]


def test_every_list_command_has_watch_and_no_other_derived_command():
    watched = {
        name
        for name, command in commands().items()
        for parameter in command.params
        if "--watch" in parameter.opts
    }
    assert watched >= {*LISTS, "batch causes", "identity refused", "duty list", "check"}
    assert not watched & {"queue show", "batch retry", "batch show", "queue set"}


@pytest.mark.parametrize("command", ["batch list", "worker list"])
def test_watched_list_keeps_its_screen_without_scrolling_or_tearing(helixq, lab, command):
    lab.submit_many(60, f"Sämple-with-a-long-name-{'x' * 30}-")
    lab.claim(3)
    with helixq_on_terminal(helixq, *command.split(), "--watch", "0.1") as terminal:
        # Each frame begins at the top, and a screen shows the same as the one of a fresh terminal.
        for frame in frames_of(terminal, 4):
            text = frame.decode()
            assert text.count("\x1b[H") == 1, "more than one write per frame"
            assert text.count("\n") < ROWS, "the screen would scroll"
        assert not terminal.screen.history.top
        assert re.match(r"\d\d:\d\d:\d\d  every 0.1 s  database: ", terminal.lines[0])
        before = terminal.lines[1:]
        frames_of(terminal, 5)
        assert terminal.lines[1:3] == before[:2], "the header moved"
        terminal.interrupt()
        assert terminal.exit_code() == Exit.INTERRUPTED
    assert "Traceback" not in terminal.text


def test_watched_list_that_is_longer_than_the_screen_says_how_much_it_leaves_out(helixq, lab):
    lab.submit_many(60)
    arguments = ["batch", "list", "--queue", lab.q, "--limit", "40", "--watch", "0.1"]
    with helixq_on_terminal(helixq, *arguments) as terminal:
        frames_of(terminal, 2)
        # 22 of 43 lines fit: header, rule, 40 rows and the note about further rows.
        assert terminal.lines[-1] == "21 more lines: enlarge the window or add a filter"
        assert terminal.lines[1].startswith("identity")
        terminal.child.setwinsize(ROWS + 30, COLUMNS)
        terminal.screen.resize(ROWS + 30, COLUMNS)
        terminal.expect("more rows: raise --limit")


def test_watched_list_follows_changes_and_leaves_its_last_reading_on_the_terminal(helixq, lab):
    with helixq_on_terminal(
        helixq, "batch", "list", "--queue", lab.q, "--watch", "0.1"
    ) as terminal:
        terminal.expect("no batches")
        lab.submit("Sämple-1")
        terminal.expect("Sämple-1 .*PENDING")
        assert "no batches" not in terminal.text
        lab.complete(*lab.claim())
        terminal.expect("Sämple-1 .*COMPLETED")
        terminal.interrupt()
        assert terminal.exit_code() == Exit.INTERRUPTED
    after = terminal.output.rpartition(b"\x1b[?1049l")[2].decode()
    assert "Sämple-1" in after


def test_watch_outlives_a_lost_connection(helixq, lab, database):
    lab.submit("x")
    with helixq_on_terminal(
        helixq, "batch", "list", "--queue", lab.q, "--watch", "0.1"
    ) as terminal:
        terminal.expect("PENDING")
        for _ in range(2):
            database.rows(
                "select pg_terminate_backend(pid) from pg_stat_activity where datname = %s and "
                "application_name = 'helixqueue' and pid <> pg_backend_pid()",
                database.name,
            )
            seen = len(terminal.output)
            while b"not read: " not in terminal.output[seen:]:
                assert terminal.read(), terminal.text
            terminal.expect("every 0.1 s  database: ")
        assert "PENDING" in terminal.text


def test_watch_of_an_unreachable_database_fails_at_once(helixq, database):
    dsn = database.dsn("pool").replace(database.name, "no_such_database")
    done = helixq("queue", "list", "--watch", "0.1", HELIX_DSN=dsn, terminal=True)
    assert done.code != Exit.OK
    assert "no_such_database" in done.err


def test_watch_in_a_pipe_prints_one_reading_after_the_other(helixq, lab):
    lab.submit("Sämple-1")
    arguments = ["batch", "list", "--queue", lab.q, "--watch", "0.1", "--json"]
    with subprocess.Popen(
        [HELIXQ, *arguments], env=helixq.environment(), stdout=subprocess.PIPE, text=True
    ) as process:
        first = json.loads(process.stdout.readline())
        lab.complete(*lab.claim())
        states = {first["rows"][0]["state"]}
        while "COMPLETED" not in states:
            states.add(json.loads(process.stdout.readline())["rows"][0]["state"])
        process.terminate()
    assert "PENDING" in states


def test_watched_relative_time_is_relative_to_each_reading(helixq, lab):
    lab.submit("Sämple-1")
    arguments = ["batch", "list", "--queue", lab.q, "--since", "2s", "--watch", "0.1"]
    with helixq_on_terminal(helixq, *arguments) as terminal:
        terminal.expect("Sämple-1")
        terminal.expect("no batches")
