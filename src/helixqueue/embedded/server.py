"""The common part of PostgreSQL and Valkey: prepare, launch, wait, share, supervise, stop.

A server's directory contains

```
data/     the server's own files; 0700; owned by the server's uid when root started it
lock, users, alive     see `sharing`
sentinel  see `sentinel`
sockets   the path of the socket directory: `data`, or a short one when that is too long
log       output of the server; `log.old` is the previous log
```
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO, ClassVar, Self

from helixqueue.embedded import sentinel
from helixqueue.embedded.account import Account, explain_os_error
from helixqueue.embedded.sharing import Progress, Sharing
from helixqueue.embedded.supervisor import Supervisor
from helixqueue.errors import Unavailable

log = logging.getLogger(__name__)

# How long a failing launch is retried. The remains of a killed server disappear in about a second;
# thirty seconds allow for a machine that swaps.
LAUNCH_S = 30.0
# A running server may replay its log for minutes.
RECOVERY_S = 600.0
STOP_S = 60.0
SOCKET_PATH_BYTES = 107 if sys.platform.startswith("linux") else 103
LOG_BYTES = 10_000_000

# (Pid of this process, pid of the server): needed to reap a server after the object that started it
# is gone. A forked child inherits the table but not the children, hence the first pid.
_child_pids: set[tuple[int, int]] = set()


class Startable(ABC):
    """What a `with` block starts and stops."""

    @abstractmethod
    def start(self, progress: Progress | None = None) -> Self: ...

    @abstractmethod
    def stop(self) -> None: ...

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()


class EmbeddedServer(Startable):
    """One server in one directory, shared by all processes that start it there."""

    title: ClassVar[str]
    socket_name: ClassVar[str]
    # Written by the server itself, so that it exists even if the starter crashes.
    pid_file: ClassVar[str]
    stop_signal: ClassVar[signal.Signals]
    # Log messages after which another attempt cannot succeed.
    fatal_messages: ClassVar[tuple[str, ...]]

    def __init__(
        self,
        data_dir: Path,
        *,
        settings: Mapping[str, str] | None = None,
        bin_dir: Path | None = None,
        supervised: bool = True,
    ) -> None:
        self._settings = dict(settings or {})
        self._bin_dir = bin_dir
        self.directory = Path(data_dir).resolve()
        self.data = self.directory / "data"
        self.log = self.directory / "log"
        self._sharing = Sharing(self.directory)
        self._supervised = supervised
        self._supervisor: Supervisor | None = None
        self._mutex = threading.Lock()
        self._process = os.getpid()
        self._log_mark = 0

    @abstractmethod
    def _create(self, directory: Path, account: Account) -> None:
        """Create a server's initial data in the empty `directory`, owned by `account`."""

    @abstractmethod
    def _command(self, account: Account, data: str) -> list[str | Path]:
        """Write the configuration and return the command that runs the server in the foreground.

        `data` is the path by which the server opens its data directory.
        """

    @abstractmethod
    def is_ready(self) -> bool:
        """Whether the server accepts commands."""

    def start(self, progress: Progress | None = None) -> Self:
        """Use the server: create it, launch it or join it, as needed."""
        progress = progress or _silent
        with self._mutex:
            self._reset_after_fork()
            try:
                self.directory.mkdir(mode=0o700, parents=True, exist_ok=True)
                self._ensure_running(progress)
            except OSError as error:
                raise Unavailable(
                    f"expected a directory that this user can use for {self.title}, got "
                    f"{self.directory}: {explain_os_error(self.directory, error)}; choose another "
                    "directory, or repair this one"
                ) from error
            if self._supervised and self._supervisor is None:
                self._supervisor = Supervisor(
                    self.title, self._sharing, lambda: self._ensure_running(log.info)
                )
        return self

    def stop(self) -> None:
        """Stop using the server; the last user stops it. Idempotent."""
        with self._mutex:
            self._reset_after_fork()
            if not self._sharing.joined:
                return
            if self._supervisor is not None:
                self._supervisor.end()
                self._supervisor = None
            with self._sharing.exclusive(_silent):
                if self._sharing.leave():
                    self._shut_down()

    def _reset_after_fork(self) -> None:
        """In a forked child, the `users` lock and the supervising thread belong to the parent."""
        if self._process != os.getpid():
            self._process = os.getpid()
            self._sharing.forget()
            self._supervisor = None

    def kill(self) -> None:
        """Send SIGKILL to the server and wait for its end; for tests of recovery."""
        pid = self.pid
        if pid is not None:
            os.kill(pid, signal.SIGKILL)
            while self.pid == pid and not self._ended(pid):
                time.sleep(0.005)

    @property
    def pid(self) -> int | None:
        """The pid of the server, or None when no server process runs."""
        if not self.directory.exists() or not self._sharing.alive():
            return None
        return sentinel.server_pid(self.data / self.pid_file)

    @property
    def socket_dir(self) -> Path:
        """The socket directory; stored, because XDG_RUNTIME_DIR differs between processes."""
        saved = self._saved_socket_dir()
        if saved is None:
            raise Unavailable(f"{self.title} in {self.directory} has never run; call start() first")
        return Path(saved["sockets"])

    def _ensure_running(self, progress: Progress) -> None:
        """Return when the server accepts commands, whichever process started it.

        The `users` lock and the sentinel come first: if the starter is killed half-way, the
        sentinel stops the server.
        """
        with self._sharing.exclusive(progress):
            was_user = self._sharing.joined
            self._sharing.join()
            try:
                sentinel.watch(self.directory, self.data / self.pid_file, self.stop_signal)
                account = Account.owning(self.data)
                if not self.data.exists():
                    self._prepare(account, progress)
                self._launch_or_join(account, progress)
            except BaseException:
                if not was_user and self._sharing.leave():
                    self._shut_down()
                raise

    def _prepare(self, account: Account, progress: Progress) -> None:
        """Create the data in a temporary directory and rename it, so that `data` is complete."""
        progress(f"{self.title}: creating {self.data} (once, a few seconds)")
        # A new name each time: the initdb of a killed starter may still write to the old one.
        partial = Path(tempfile.mkdtemp(prefix="data.partial.", dir=self.directory))
        self._create(partial, account)
        account.chown_tree(partial)
        partial.rename(self.data)
        directory = os.open(self.directory, os.O_RDONLY)
        os.fsync(directory)
        os.close(directory)

    def _launch_or_join(self, account: Account, progress: Progress) -> None:
        """Join a running server or launch one; remains of a killed server may block a launch."""
        deadline = time.monotonic() + LAUNCH_S
        pause_s = 0.05
        while True:
            launched = None if self._sharing.alive() else self._launch(account, progress)
            pid = launched or self.pid
            if pid is not None and self._wait_until_ready(pid, progress):
                return
            tail = self._log_tail()
            fatal = launched and any(message in tail for message in self.fatal_messages)
            if fatal or time.monotonic() > deadline:
                raise Unavailable(f"{self.title} does not start; the end of {self.log}:\n{tail}")
            if launched:
                last_line = tail.rpartition("\n")[2]
                progress(f"{self.title}: did not start, trying again: {last_line}")
            else:
                progress(f"{self.title}: waiting for the processes of a killed server to end")
            time.sleep(pause_s)
            pause_s = min(pause_s * 2, 1.0)

    def _wait_until_ready(self, pid: int, progress: Progress) -> bool:
        """Wait while process `pid` runs; False when it ends or never accepts commands."""
        started = reported = time.monotonic()
        while not self.is_ready():
            now = time.monotonic()
            if self._ended(pid) or now - started > RECOVERY_S:
                return False
            if now - reported > 3:
                progress(f"{self.title}: recovering, {now - started:.0f} s so far")
                reported = now
            time.sleep(0.02)
        return True

    def _launch(self, account: Account, progress: Progress) -> int:
        self._remove_stale_files()
        self._choose_socket_dir(account)
        progress(f"{self.title}: starting in {self.directory}")
        with (
            account.accessible_path(self.data) as (data, handles),
            self._sharing.liveness_writer() as liveness_writer,
            self._open_log() as output,
        ):
            child = subprocess.Popen(
                self._command(account, data),
                cwd="/",
                user=account.user,
                group=account.group,
                extra_groups=account.groups,
                umask=0o077,
                # Not the caller's environment: PGOPTIONS would change the server, and secrets leak.
                env=CLEAN_ENVIRONMENT,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                pass_fds=[liveness_writer, *handles],
                # Ctrl-C in the terminal must reach the caller only.
                start_new_session=True,
            )
        _child_pids.add((os.getpid(), child.pid))
        # The server may outlive its starter; a return code keeps Popen from warning about that.
        child.returncode = 0
        return child.pid

    def _ended(self, pid: int) -> bool:
        """Whether the server process has ended; a zombie counts once its children are gone."""
        if (os.getpid(), pid) in _child_pids:
            return _reap(pid, os.WNOHANG)
        return not _pid_exists(pid) or not self._sharing.alive()

    def _remove_stale_files(self) -> None:
        """Remove files of killed processes; subclasses remove those of their server."""
        for parent, pid in list(_child_pids):
            if parent == os.getpid():
                _reap(pid, os.WNOHANG)
        for partial in self.directory.glob("data.partial.*"):
            # Its initdb may still write; then the next launch removes the rest.
            shutil.rmtree(partial, ignore_errors=True)

    def _choose_socket_dir(self, account: Account) -> None:
        """Choose once, so that a DSN outlives restarts; again after the directory was moved."""
        saved = self._saved_socket_dir()
        if saved is None or saved["directory"] != str(self.directory):
            saved = {
                "directory": str(self.directory),
                "sockets": str(self._new_socket_dir(account)),
            }
        if saved["sockets"] != str(self.data):
            account.make_private(Path(saved["sockets"]))
        # Renamed, because other processes read the file at the same time.
        new = self.directory / "sockets.new"
        new.write_text(json.dumps(saved), encoding="utf-8")
        new.rename(self.directory / "sockets")

    def _saved_socket_dir(self) -> dict[str, str] | None:
        with suppress(FileNotFoundError):
            saved: dict[str, str] = json.loads((self.directory / "sockets").read_text("utf-8"))
            return saved
        return None

    def _new_socket_dir(self, account: Account) -> Path:
        """`data`, if its path fits into a socket address and the server can access it."""
        inside = self.data / self.socket_name
        if not account.switch and len(os.fsencode(inside)) <= SOCKET_PATH_BYTES:
            return self.data
        tag = hashlib.sha256(os.fsencode(self.directory)).hexdigest()[:16]
        return _runtime_root(account) / f"helixqueue-{tag}"

    def _shut_down(self) -> None:
        """Stop the server; requires `exclusive` and that no user is left."""
        pid = self.pid
        if pid is not None:
            with suppress(ProcessLookupError):
                os.kill(pid, self.stop_signal)
            if not self._sharing.wait_until_gone(STOP_S):
                log.warning("%s did not stop within %.0f s; killing it", self.title, STOP_S)
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGQUIT)
                self._sharing.wait_until_gone(STOP_S)
            if (os.getpid(), pid) in _child_pids:
                # Its handles close shortly before it can be reaped.
                _reap(pid)
        with suppress(OSError, Unavailable):
            # rmdir removes empty directories only, so never `data`.
            self.socket_dir.rmdir()

    def _open_log(self) -> BinaryIO:
        if self.log.exists() and self.log.stat().st_size > LOG_BYTES:
            self.log.rename(self.log.with_suffix(".old"))
        # 0600: the log quotes statements, which contain data.
        handle = os.open(self.log, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        self._log_mark = os.fstat(handle).st_size
        return os.fdopen(handle, "ab")

    def _log_tail(self) -> str:
        """The last 15 lines of output since the launch."""
        with suppress(FileNotFoundError), self.log.open("rb") as file:
            file.seek(self._log_mark)
            return "\n".join(file.read().decode(errors="replace").splitlines()[-15:])
        return ""


CLEAN_ENVIRONMENT = {"PATH": "/usr/local/bin:/usr/bin:/bin", "LC_ALL": "C", "TZ": "UTC"}


def _runtime_root(account: Account) -> Path:
    """/run for root: other users cannot write there. Else XDG_RUNTIME_DIR or /tmp."""
    if account.switch and os.access("/run", os.W_OK):
        return Path("/run")
    own = os.environ.get("XDG_RUNTIME_DIR")
    if own and not account.switch and os.access(own, os.W_OK):
        return Path(own)
    return Path(tempfile.gettempdir())


def _reap(pid: int, options: int = 0) -> bool:
    """Whether this child has ended; waits for its end unless `options` contain WNOHANG."""
    try:
        ended = os.waitpid(pid, options)[0] == pid
    except ChildProcessError:  # another thread reaped it
        ended = True
    if ended:
        _child_pids.discard((os.getpid(), pid))
    return ended


def _pid_exists(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def _silent(_: str) -> None:
    pass
