"""`helix.conf`: every setting that differs from PostgreSQL's default, or must not, and why."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

# Setting, value, reason. All exist in PostgreSQL 15 to 18.
SETTINGS: tuple[tuple[str, str, str], ...] = (
    ("listen_addresses", "", "no TCP: the socket directory's mode is the only door"),
    ("unix_socket_permissions", "0700", "the same uid (or root) only, should the directory open"),
    ("fsync", "on", "G5: what was acknowledged survives a crash"),
    ("synchronous_commit", "on", "G5: a commit is acknowledged after its log is on disk"),
    ("full_page_writes", "on", "a torn page after power loss can be repaired"),
    ("wal_level", "replica", "a standby or a base backup can be taken without a restart"),
    ("max_wal_senders", "4", "a standby, a base backup and its log stream, one spare"),
    ("max_replication_slots", "4", "one per sender"),
    ("hot_standby", "on", "a standby answers reads, so that tests can look at it"),
    ("max_connections", "120", "workers and services of one machine; each costs about 2 MB"),
    ("shared_buffers", "256MB", "the hot tables of a small machine; taken as they are touched"),
    ("work_mem", "8MB", "set-based calls sort some hundred rows, never a table"),
    ("maintenance_work_mem", "64MB", "vacuum and index builds beside other work"),
    ("effective_cache_size", "1GB", "what a small machine can cache; costs nothing"),
    ("random_page_cost", "1.1", "an SSD: the index is chosen where it should be"),
    ("max_wal_size", "1GB", "bulk loads without a checkpoint every few seconds"),
    ("wal_compression", "on", "full pages are most of a queue's log"),
    ("autovacuum_naptime", "15s", "queue tables turn over within a minute"),
    ("default_text_search_config", "pg_catalog.simple", "equal on every machine"),
    ("jit", "off", "calls take milliseconds; compiling them takes longer"),
    ("timezone", "UTC", "equal on every machine"),
    ("log_timezone", "UTC", "equal on every machine"),
    ("lc_messages", "C", "error texts that can be searched for"),
    ("log_line_prefix", "%m [%p] %u@%d ", "who, when"),
    ("log_checkpoints", "off", "the log is for what somebody must read"),
    ("restart_after_crash", "on", "one killed backend costs a recovery, not the server"),
)

HBA = """\
# Nobody gets here but through the socket, whose directory is 0700: only the uid that owns the data
# files, or root. Whoever has that uid can read and write the files themselves, so a password
# (stored beside them) would protect nothing: hence `trust`. There is no line for any network.
local   all           all               trust
local   replication   helix_bootstrap   trust
"""


def helix_conf(socket_dir: str, extra: Mapping[str, str]) -> str:
    """The text of `helix.conf`; `extra` comes last and so wins."""
    # The setting is a list: quotes keep a comma or a blank in the path from splitting it.
    listed = '"' + socket_dir.replace('"', '""') + '"'
    rows = [("unix_socket_directories", listed, "private, 0700"), *SETTINGS]
    rows += [(name, value, "asked for by the caller") for name, value in extra.items()]
    lines = [f"{name} = {_quoted(value)}  # {reason}" for name, value, reason in rows]
    return "\n".join(["# Written at every start: changes made here are lost.", *lines, ""])


def _quoted(value: str) -> str:
    return "'" + value.replace("\\", "\\\\").replace("'", "''") + "'"
