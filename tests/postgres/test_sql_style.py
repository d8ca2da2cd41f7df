"""The SQL says why, and opens nothing by accident."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from helixqueue.engine.tokens import SERVICE_ROLES

ROOT = Path(__file__).parents[2]
FILES = sorted((ROOT / "src/helixqueue/engine/sql").glob("*.sql"))
MIGRATION_FILES = sorted((ROOT / "src/helixqueue/engine/migrations").glob("*.sql"))

# What stands as one piece: a quoted body or text, a comment, an end of statement.
TOKEN = re.compile(
    r"(?P<body>\$(?P<tag>\w*)\$.*?\$(?P=tag)\$)|(?P<text>'(?:[^']|'')*')"
    r"|(?P<comment>--[^\n]*)|(?P<end>;)",
    re.DOTALL,
)
CREATE = re.compile(
    r"create (?:or replace )?(?:unique )?(table|index|function|trigger|view)\s+"
    r"(?:concurrently )?([\w.]+)",
    re.IGNORECASE,
)

# Everything below `_v1` that clients may call: derivations that read no table.
CLIENTS_MAY_DERIVE = {
    "derive_key",
    "framed",
    "framed_identity",
    "framed_parts",
    "key_text",
    "key_within",
    "public_id",
}
# What operators may call at a prompt beside the tables that they read.
OPERATORS_MAY_CALL = {
    "asked_bytes",
    "cluster_id",
    "content_hash",
    "derive_fence_key",
    "ending",
    "entry_hash",
    "event_hash",
    "event_key",
    "feed_events",
    "feed_lag",
    "feed_page",
    "feed_steps",
    "fence_content",
    "fence_receipt",
    "history_of",
    "locate",
    "reached_position",
    "letter_hash",
    "manifest_hash",
    "output_hash",
    "output_name",
    "output_part",
    "row_hash",
    "sees_payloads",
    "session_queues",
    "session_tenants",
    "source_hash",
    "state_of",
    "tombstone_hash",
    "timeline",
}
OPERATORS_ONLY = {"bind_v1", "unbind_v1", "recover_v1", "resolve_fence_v1", "rotate_secret_v1",
                  "seal_witness_v1", "set_duty_v1", "set_output_root_v1",
                  "read_known_outputs_v1", "withdraw_device_v1"}  # fmt: skip
SCOPE_ROLES = {*SERVICE_ROLES, "helix_intake"}
CLIENTS = SCOPE_ROLES | {"helix_operator"}


def top_level_statements(script):
    """Pairs of what stands before a statement (blank lines, comments) and the statement."""
    start = 0
    for token in TOKEN.finditer(script):
        if token.lastgroup == "end":
            piece = script[start : token.end()]
            before = re.match(r"(?:\s+|--[^\n]*\n)*", piece)[0]
            yield before, piece[len(before) :]
            start = token.end()


def unexplained(script):
    """Created objects without a comment above them or above the group they stand in."""
    explained = False
    for before, statement in top_level_statements(script):
        if "--" in before:
            explained = True
        elif "\n\n" in before:
            explained = False
        created = CREATE.match(statement)
        if created and not explained:
            yield f"{created[1]} {created[2]}"


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_every_object_has_its_reason_above_it(path):
    missing = list(unexplained(path.read_text(encoding="utf-8")))
    assert not missing, f"{path.name}: write above each of these why it exists: {missing}"


def test_rule_itself_finds_a_bare_object():
    script = (
        "-- Why.\ncreate table a (b int); -- ;\ncreate index c on a (b);\n\ncreate table d ();\n"
    )
    assert list(unexplained(script)) == ["table d"]


@pytest.mark.parametrize("path", [*FILES, *MIGRATION_FILES], ids=lambda path: path.name)
def test_sql_files_begin_with_a_comment(path):
    lines = path.read_text(encoding="utf-8").splitlines()
    assert lines[0].startswith("-- "), f"{path.name}: begin with what this file is about"
    assert [n for n, line in enumerate(lines, 1) if "\t" in line] == []


def test_squawk_finds_nothing():
    squawk = shutil.which("squawk", path=str(Path(sys.executable).parent))
    assert squawk, "squawk is missing: pip install -e .[dev]"
    done = subprocess.run([squawk, *FILES], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout


FUNCTIONS = """
    select p.proname, p.proowner::regrole::text as owner, p.prosecdef, p.proconfig, p.prosrc,
           p.provolatile = 'v' as volatile,
           array(select t::regtype::text from unnest(p.proargtypes) t) as arguments,
           array(select coalesce(r.rolname, 'PUBLIC')
                 from aclexplode(coalesce(p.proacl, acldefault('f', p.proowner))) a
                 left join pg_roles r on r.oid = a.grantee
                 where a.privilege_type = 'EXECUTE') as callers
    from pg_proc p where p.pronamespace = 'helix'::regnamespace"""


@pytest.fixture
def functions(database):
    names = ("name", "owner", "definer", "config", "source", "volatile", "arguments", "callers")
    return [dict(zip(names, row, strict=True)) for row in database.rows(FUNCTIONS)]


def test_security_definer_functions_pin_their_search_path(functions):
    """Else whoever calls them could put functions of his own in the way."""
    pinned = {
        function["name"]: function["config"] or [] for function in functions if function["definer"]
    }
    assert pinned
    assert [
        n for n, config in pinned.items() if "search_path=pg_catalog, pg_temp" not in config
    ] == []


def test_no_function_has_its_plans_compiled(functions):
    """PostgreSQL 15 to 17 compile what seems dear, and a path that is disabled seems so to them."""
    steered = {
        f["name"]: f["config"] for f in functions if re.search(r"enable_\w+=off", str(f["config"]))
    }
    assert {"claim_v1", "settle_v1"} <= steered.keys()
    assert [name for name, config in steered.items() if "jit=off" not in config] == []


def test_functions_are_granted_only_to_the_intended_roles(functions):
    roles = {"helix_owner", "helix_engine", "helix_reader"}
    for function in functions:
        callers = set(function["callers"]) - {function["owner"]}
        name = function["name"]
        if name in OPERATORS_ONLY:
            assert callers == {"helix_operator"}, name
        elif name.endswith("_v1"):
            assert "helix_operator" in callers, name
            assert callers & SCOPE_ROLES, f"{name}: add a line with its scope to 99_grants.sql"
            assert callers <= CLIENTS, name
        elif name in CLIENTS_MAY_DERIVE:
            assert callers <= {*CLIENTS, *roles}, name
        elif name in OPERATORS_MAY_CALL:
            assert callers <= {"helix_operator", *roles}, name
        else:
            assert callers <= roles, name
    names = {function["name"] for function in functions}
    assert names >= CLIENTS_MAY_DERIVE | OPERATORS_MAY_CALL | OPERATORS_ONLY


def test_reads_run_as_the_reader_and_everything_else_as_the_engine(functions):
    """Row-level security restricts the reader by itself; the engine sees every tenant's work."""
    assert {f["name"] for f in functions if f["owner"] == "helix_reader"} == {
        f["name"] for f in functions if f["name"].startswith("read_")
    }
    called = [f for f in functions if f["name"].endswith("_v1")]
    assert {f["owner"] for f in called} == {"helix_reader", "helix_engine"}
    assert [f["name"] for f in called if not f["definer"]] == []
    assert [f["name"] for f in called if f["name"].startswith("read_") and f["volatile"]] == []


def test_client_functions_determine_the_tenant_first(functions):
    """The policies of helix_engine believe what `enter` noted; a client could set it too.

    Those of helix_reader ask for the session's tenants themselves.
    """
    lacking = [
        function["name"]
        for function in functions
        if function["definer"]
        and function["owner"] != "helix_reader"
        and CLIENTS & set(function["callers"])
        and not re.search(r"helix\.enter(_for)?\(", function["source"])
    ]
    assert lacking == []


def test_sql_is_built_only_from_names_of_objects(functions):
    """Dynamic statements take no text, and no client may call the functions that have them."""
    dynamic = [f for f in functions if re.search(r"\bexecute\s+(format|\()", f["source"])]
    assert {f["name"] for f in dynamic} >= {"protect", "protect_table"}
    for function in dynamic:
        assert set(function["arguments"]) <= {"regclass", "regproc", "name[]"}, function["name"]
        assert not CLIENTS & set(function["callers"]), function["name"]
    others = [f for f in functions if f not in dynamic]
    assert [f["name"] for f in others if re.search(r"\bexecute\b", f["source"])] == []


def test_nothing_is_granted_to_public(database):
    assert (
        database.rows("""
            select c.relname, a.privilege_type from pg_class c, aclexplode(c.relacl) a
            where c.relnamespace = 'helix'::regnamespace and a.grantee = 0""")
        == []
    )
