"""`helix.conf`: settings that differ from PostgreSQL's defaults or must keep them, with reasons."""

from __future__ import annotations

from collections.abc import Mapping

# Setting, value, reason. All exist in PostgreSQL 15 to 18.
SETTINGS: tuple[tuple[str, str, str], ...] = (
    ("listen_addresses", "", "no TCP: the mode of the socket directory controls access"),
    (
        "unix_socket_permissions",
        "0700",
        "same uid (or root) only, even if the directory is readable",
    ),
    ("fsync", "on", "G5: acknowledged work survives a crash"),
    ("synchronous_commit", "on", "G5: a commit is acknowledged after its log is on disk"),
    ("full_page_writes", "on", "torn pages after power loss are repairable"),
    ("wal_level", "replica", "a standby or a base backup can be taken without a restart"),
    ("max_wal_senders", "4", "a standby, a base backup and its log stream, one spare"),
    ("max_replication_slots", "4", "one per sender"),
    ("hot_standby", "on", "a standby accepts reads, which tests use"),
    ("max_connections", "120", "workers and services of one machine; each costs about 2 MB"),
    ("shared_buffers", "256MB", "the hot tables of a small machine; allocated on use"),
    ("work_mem", "8MB", "set-based calls sort a few hundred rows, never a table"),
    ("maintenance_work_mem", "64MB", "vacuum and index builds alongside other work"),
    ("effective_cache_size", "1GB", "what a small machine can cache; costs nothing"),
    ("random_page_cost", "1.1", "SSD storage: prefer index scans"),
    ("max_wal_size", "1GB", "bulk loads without a checkpoint every few seconds"),
    ("wal_compression", "on", "full-page images are most of a queue's WAL"),
    ("autovacuum_naptime", "15s", "queue tables turn over within a minute"),
    ("default_text_search_config", "pg_catalog.simple", "same on every machine"),
    ("jit", "off", "calls take milliseconds; compiling them takes longer"),
    ("timezone", "UTC", "same on every machine"),
    ("log_timezone", "UTC", "same on every machine"),
    ("lc_messages", "C", "searchable error messages"),
    ("log_line_prefix", "%m [%p] %u@%d ", "time, process, user, database"),
    ("log_checkpoints", "off", "keep the log to messages that need attention"),
    ("restart_after_crash", "on", "a killed backend causes a recovery, not a server stop"),
)

HBA = """\
# The only way in is the socket, whose directory is 0700: only the owner of the data files and root
# can connect. That uid can read and write the files directly, so a password stored beside them
# would protect nothing: hence `trust`. There is no line for any network.
local   all           all               trust
local   replication   helix_bootstrap   trust
"""


def helix_conf(socket_dir: str, extra: Mapping[str, str]) -> str:
    """The text of `helix.conf`; `extra` comes last and takes precedence."""
    # The setting is a list; quotes protect commas and blanks in the path.
    listed = '"' + socket_dir.replace('"', '""') + '"'
    rows = [("unix_socket_directories", listed, "private, 0700"), *SETTINGS]
    rows += [(name, value, "set by the caller") for name, value in extra.items()]
    lines = [f"{name} = {_quoted(value)}  # {reason}" for name, value, reason in rows]
    return "\n".join(["# Generated at every start; edits are lost.", *lines, ""])


def _quoted(value: str) -> str:
    return "'" + value.replace("\\", "\\\\").replace("'", "''") + "'"
