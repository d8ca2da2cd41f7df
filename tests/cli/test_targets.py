"""Every command, and what it can be pointed at: the table in docs/cli.md is what they do."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from helixqueue.cli.exits import Exit
from helixqueue.fence import key_file
from tests.support.cli import commands

DOCUMENT = Path(__file__).parents[2] / "docs" / "cli.md"
WEBHOOKS = str(Path(__file__).with_name("webhooks.yml"))
SPEC = str(Path(__file__).with_name("run.yml"))
UNREACHABLE = "http://127.0.0.1:9"
# What a command needs besides a place; each is here, so a new one cannot be forgotten.
FENCE = "v1:" + "0" * 64
WORDS = {
    "submit": ["q", "S-1"],
    "work": ["q", "--exec", "true"],
    "batch list": [],
    "batch causes": [],
    "batch show": ["S-1"],
    "batch export": [],
    "batch retry": ["S-1", "--reason", "x"],
    "batch cancel": ["S-1", "--reason", "x"],
    "batch release": ["S-1", "--reason", "x"],
    "batch erase": ["S-1", "--reason", "x"],
    "worker list": [],
    "worker show": ["w"],
    "worker withdraw": ["h", "GPU-1", "--reason", "x"],
    "worker return": ["h", "GPU-1"],
    "queue list": [],
    "queue show": ["q"],
    "queue set": ["q", "--reason", "x"],
    "queue pause": ["q", "--reason", "x"],
    "queue resume": ["q", "--reason", "x"],
    "queue delete": ["q", "--reason", "x"],
    "identity refused": ["q"],
    "identity twins": ["q"],
    "fence list": [],
    "fence show": [FENCE],
    "fence explain": [FENCE],
    "fence rehearse": ["-"],
    "fence resolve": [FENCE, "--applied", "--reason", "x"],
    "intake run": ["--redis", "redis://127.0.0.1:9", "--stream", "s", "--queue", "q"],
    "intake status": [],
    "webhook apply": [WEBHOOKS],
    "webhook list": [],
    "webhook show": ["s"],
    "webhook rotate": ["s", "--secret-file", WEBHOOKS],
    "webhook test": ["s", "--body", os.devnull],
    "run start": [SPEC],
    "run list": [],
    "run show": ["r"],
    "run datums": ["r"],
    "run outputs": ["r"],
    "run wait": ["r"],
    "run watch": ["r"],
    "run logs": ["r"],
    "run cancel": ["r", "--reason", "x"],
    "run retry": ["r", "--reason", "x"],
    "falconeri job run": [SPEC],
    "falconeri job list": [],
    "falconeri job describe": ["r"],
    "falconeri job wait": ["r"],
    "falconeri job retry": ["r"],
    "falconeri datum describe": ["00000000-0000-8000-8000-000000000000"],
    "output list": [],
    "output show": ["S-1"],
    "output get": ["S-1", "--to", "unused"],
    "output verify": ["S-1"],
    "output publish": [],
    "output root": ["s3://lab/runs", "--reason", "x"],
    "output reconcile": ["file:///srv/runs"],
    "letter list": [],
    "letter show": ["7"],
    "letter redrive": ["7", "--reason", "x"],
    "letter discard": ["7", "--reason", "x"],
    "ledger list": [],
    "ledger declare": ["l", "--machine", '{"A": ["B"]}'],
    "ledger append": ["l", "e", "1", "A"],
    "ledger show": ["l", "e"],
    "ledger replay": ["l"],
    "ledger seal": ["l", "--to", "heads"],
    "ledger verify": ["l", "--against", "heads"],
    "feed list": [],
    "feed show": ["f"],
    "feed pause": ["f", "--reason", "x"],
    "feed resume": ["f", "--reason", "x"],
    "feed rewind": ["f", "--reason", "x"],
    "feed run": ["f", "--exec", "true"],
    "receipt verify": ["-", "--recorded"],
    "key create": [],
    "key list": [],
    "key public": [],
    "key rotate": [],
    "secret rotate": [],
    "token create": ["t", "--scope", "read"],
    "token list": [],
    "token rotate": ["t"],
    "token revoke": ["t", "--reason", "x"],
    "token link": ["--at", "http://helix"],
    "check": [],
    "replay": [],
    "seal make": ["--to", "seals.jsonl"],
    "seal list": [],
    "migrate": [],
    "doctor": [],
    "duty list": [],
    "duty set": ["reap", "--every", "1s", "--reason", "x"],
    "duty findings": [],
    "recover": ["--reason", "x"],
    "serve": [],
    "up": [],
    "demo": [],
    "generate systemd": [],
    "generate kubernetes": [],
    "generate alerts": [],
    "generate grafana": [],
    "generate schema": ["run"],
}
# Commands that take an actor over a DSN only, where it is demanded.
ONLY_DIRECT = {"fence resolve": ["--actor", "ann"]}


def places():
    """Command: what the document says of service, DSN and directory."""
    found = {}
    for line in DOCUMENT.read_text(encoding="utf-8").splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if len(cells) == 4 and cells[0].startswith("`"):
            for name in re.findall(r"`([^`]+)`", cells[0]):
                assert name not in found
                found[name] = cells[1:]
    return found


@pytest.fixture
def key(tmp_path):
    """The file of a signing key, which `seal` reads before it uses a database."""
    key_file.create(tmp_path / "helixq.key")
    return str(tmp_path / "helixq.key")


PLACES = places()
COMMANDS = commands()


def options_of(column, *words):
    return [name for name, cells in PLACES.items() if cells[column].startswith(words)]


def test_target_table_lists_exactly_the_commands():
    assert set(PLACES) == set(COMMANDS) == set(WORDS)


def test_help_offers_exactly_what_the_table_says():
    for name, cells in PLACES.items():
        shown = {
            option
            for parameter in COMMANDS[name].params
            if not getattr(parameter, "hidden", False)
            for option in parameter.opts
        }
        for option, cell in zip(("--url", "--dsn", "--data"), cells, strict=True):
            assert (option in shown) == (not cell.startswith("no")), (name, option)


@pytest.mark.parametrize("name", options_of(0, "yes"))
def test_command_uses_the_url_and_prints_it(helixq, name):
    done = helixq(*name.split(), *WORDS[name], "--url", UNREACHABLE, "--token", "hx_x",
                  HELIX_TENANT="", HELIX_DSN="")  # fmt: skip
    assert done.code in {Exit.UNAVAILABLE, Exit.OK}, done.err
    assert f"service: {UNREACHABLE}" in done.err
    if name != "fence rehearse":  # of an empty file there is nothing to ask
        assert "no service answers" in done.err


@pytest.mark.parametrize("name", options_of(0, "no"))
def test_command_without_service_support_explains_why(helixq, name):
    for words in (["--url", UNREACHABLE], ["--token", "hx_x"]):
        done = helixq(*name.split(), *words)
        assert done.code == Exit.USAGE, done.err
        assert "remove --url and --token" in re.sub(r"[\s│]+", " ", done.err)
        assert UNREACHABLE not in done.err


@pytest.mark.parametrize("name", ["migrate", "doctor", "recover"])
def test_command_needing_a_database_rejects_a_configured_service(helixq, name, tmp_path):
    done = helixq(*name.split(), *WORDS[name], HELIX_DSN="", HELIX_URL=UNREACHABLE,
                  HOME=str(tmp_path))  # fmt: skip
    assert done.code == Exit.USAGE
    assert "only a service is configured" in re.sub(r"[\s│]+", " ", done.err)


# `up`, `serve` and `intake run` would run.
@pytest.mark.parametrize("name", sorted(set(options_of(1, "yes")) - {"up", "serve", "intake run"}))
def test_command_uses_the_dsn_and_prints_it(helixq, name, tmp_path, key):
    dsn = f"postgresql:///lab?host={tmp_path}"
    words = [*WORDS[name], *ONLY_DIRECT.get(name, [])]
    done = helixq(*name.split(), *words, "--dsn", dsn, HELIX_URL=UNREACHABLE, HELIX_KEY=key)
    assert "database: " in done.err
    assert UNREACHABLE not in done.err
    assert done.code != Exit.OK


@pytest.mark.parametrize("name", sorted(set(options_of(2, "yes")) - {"up", "migrate"}))
def test_command_uses_the_data_directory_without_creating_it(helixq, name, tmp_path, key):
    words = [*WORDS[name], *ONLY_DIRECT.get(name, [])]
    words += ["--data", tmp_path / "none"]
    done = helixq(*name.split(), *words, HELIX_URL=UNREACHABLE, HELIX_KEY=key)
    assert done.code == Exit.USAGE
    assert "no database" in done.err
    assert not (tmp_path / "none").exists()


def test_receipt_verify_rejects_targets_without_recorded(helixq):
    for words in (["--url", UNREACHABLE], ["--dsn", "x"], ["--data", "x"]):
        done = helixq("receipt", "verify", "-", *words, stdin=b"{}")
        assert done.code == Exit.USAGE
        assert "--recorded" in done.err
