"""Valkey 9 from the wheel: private and durable, for the stream intake and the wake-up hint."""

from __future__ import annotations

import signal
import socket
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar
from urllib.parse import quote

from helixqueue.embedded import binaries
from helixqueue.embedded.server import EmbeddedServer
from helixqueue.errors import Unavailable

if TYPE_CHECKING:
    from helixqueue.embedded.account import Account

# Setting, value, reason.
SETTINGS: tuple[tuple[str, str, str], ...] = (
    ("port", "0", "no TCP: the mode of the socket directory controls access"),
    ("unixsocketperm", "700", "same uid (or root) only, even if the directory is readable"),
    ("appendonly", "yes", "an acknowledged XADD survives kill -9"),
    ("appendfsync", "always", "an acknowledged XADD survives a power loss"),
    ("no-appendfsync-on-rewrite", "no", "fsync also while the file is rewritten"),
    ("aof-load-truncated", "yes", "a torn last entry was never acknowledged; drop it"),
    ("aof-use-rdb-preamble", "yes", "a rewritten file loads faster"),
    ("auto-aof-rewrite-percentage", "100", "the file is rewritten when it has doubled"),
    ("auto-aof-rewrite-min-size", "64mb", "a smaller file is not worth a fork"),
    ("save", '""', "no snapshots: the append-only file is the data"),
    ("maxmemory-policy", "noeviction", "a full server refuses writes and never drops a stream"),
    ("daemonize", "no", "`supervisor` restarts it"),
    ("logfile", '""', "standard output, which goes to `log`"),
)


class Valkey(EmbeddedServer):
    """A Valkey in `data_dir`; `start()` creates it, launches it or joins it."""

    title = "Valkey"
    socket_name = "valkey.sock"
    pid_file = "valkey.pid"
    # Same as the command SHUTDOWN: flushes the append-only file, then exits.
    stop_signal: ClassVar[signal.Signals] = signal.SIGTERM
    fatal_messages: ClassVar[tuple[str, ...]] = (
        "CONFIG FILE ERROR",
        "Bad file format",
        "Can't handle",
    )

    @property
    def socket(self) -> Path:
        return self.socket_dir / self.socket_name

    @property
    def url(self) -> str:
        """A URL for `from_url` of the `valkey` or `redis` client."""
        return f"unix://{quote(str(self.socket))}"

    def is_ready(self) -> bool:
        """Whether PING returns PONG; while the server loads its file, it returns LOADING."""
        with suppress(OSError, Unavailable), socket.socket(socket.AF_UNIX) as connection:
            connection.settimeout(2)
            connection.connect(str(self.socket))
            connection.sendall(b"PING\r\n")
            return connection.recv(64).startswith(b"+PONG")
        return False

    def _create(self, directory: Path, account: Account) -> None:
        """Valkey fills an empty directory itself."""

    def _command(self, account: Account, data: str) -> list[str | Path]:
        sockets = data if self.socket_dir == self.data else str(self.socket_dir)
        rows = [("dir", f'"{data}"', "directory of the append-only file")]
        rows += [
            ("pidfile", f'"{data}/{self.pid_file}"', "read by the process that stops the server")
        ]
        rows += [("unixsocket", f'"{sockets}/{self.socket_name}"', "private, 0700"), *SETTINGS]
        rows += [(name, value, "set by the caller") for name, value in self._settings.items()]
        lines = [f"# {reason}\n{name} {value}" for name, value, reason in rows]
        account.write(self.data / "helix.conf", "\n".join([*lines, ""]))
        folder = self._bin_dir or binaries.valkey_programs()
        program = binaries.accessible_programs(folder, "valkey-server", account) / "valkey-server"
        return [program, f"{data}/helix.conf"]

    def _remove_stale_files(self) -> None:
        """Also remove the pid file of a killed server: another process may use that pid now."""
        super()._remove_stale_files()
        (self.data / self.pid_file).unlink(missing_ok=True)
