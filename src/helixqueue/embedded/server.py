"""What PostgreSQL and Valkey have in common: prepare, launch, wait, share, supervise, stop.

A server's directory holds

```
data/     the server's own files; 0700; the server's uid when root started it
lock, users, alive     see `sharing`
sentinel  see `sentinel`
sockets   the path of the socket directory: `data`, or a short one when that is too long
log       what the server printed; `log.old` is the one before
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
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, ClassVar, Self

from helixqueue.embedded import sentinel
from helixqueue.embedded.account import Account, why_not
from helixqueue.embedded.sharing import Say, Sharing
from helixqueue.embedded.supervisor import Supervisor
from helixqueue.errors import Unavailable

if TYPE_CHECKING:
    from types import TracebackType

log = logging.getLogger(__name__)

# How long a launch that the server refuses is repeated. What is left of a killed server goes away
# in about a second; thirty is for a machine that swaps.
LAUNCH_S = 30.0
# A launched server that lives may replay its log for minutes: that is no failure.
RECOVERY_S = 600.0
STOP_S = 60.0
SOCKET_PATH_BYTES = 107 if sys.platform.startswith("linux") else 103
LOG_BYTES = 10_000_000

# (Our pid, its pid): kept to reap a server even when the object that started it is gone. Our own
# pid stands beside it because a forked child inherits the table but not the children.
_children: set[tuple[int, int]] = set()


class EmbeddedServer(ABC):
    """One server in one directory, shared by all processes that start it there."""

    title: ClassVar[str]
    socket_name: ClassVar[str]
    # Written by the server itself, so that no crash of its starter leaves it unknown.
    pid_file: ClassVar[str]
    stop_signal: ClassVar[signal.Signals]
    # Words in the log after which another try cannot help.
    hopeless: ClassVar[tuple[str, ...]]

    def __init__(self, data_dir: Path, *, supervised: bool = True) -> None:
        self.directory = Path(data_dir).resolve()
        self.data = self.directory / "data"
        self.log = self.directory / "log"
        self._sharing = Sharing(self.directory)
        self._supervised = supervised
        self._supervisor: Supervisor | None = None
        self._mutex = threading.Lock()
        self._process = os.getpid()
        self._log_mark = 0

    # What a server is made of.

    @abstractmethod
    def _create(self, directory: Path, account: Account, say: Say) -> None:
        """Fill the empty `directory` with a server's first data, owned by `account`."""

    @abstractmethod
    def _command(self, account: Account, data: str) -> list[str | Path]:
        """The command that runs the server in the foreground; writes its configuration first.

        `data` is the name by which the server knows its data directory.
        """

    @abstractmethod
    def answers(self) -> bool:
        """Whether the server takes commands now."""

    # Its life.

    def start(self, progress: Say | None = None) -> Self:
        """Use the server: create it, launch it or join it, whichever is needed."""
        say = progress or _silent
        with self._mutex:
            self._adopt_after_fork()
            try:
                self.directory.mkdir(mode=0o700, parents=True, exist_ok=True)
                self._bring_up(say)
            except OSError as error:
                raise Unavailable(
                    f"expected a directory that this user can keep {self.title} in, got "
                    f"{self.directory}: {why_not(self.directory, error)}; name another one, or "
                    "mend it"
                ) from error
            if self._supervised and self._supervisor is None:
                self._supervisor = Supervisor(
                    self.title, self._sharing, lambda: self._bring_up(log.info)
                )
        return self

    def stop(self) -> None:
        """Leave; the last one to leave stops the server. Leaving twice is leaving once."""
        with self._mutex:
            self._adopt_after_fork()
            if not self._sharing.joined:
                return
            if self._supervisor is not None:
                self._supervisor.end()
                self._supervisor = None
            with self._sharing.exclusive(_silent):
                if self._sharing.leave():
                    self._shut_down()

    def _adopt_after_fork(self) -> None:
        """In a forked child the membership and the supervising thread are still the parent's."""
        if self._process != os.getpid():
            self._process = os.getpid()
            self._sharing.forget()
            self._supervisor = None

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()

    def kill(self) -> None:
        """Send SIGKILL to the server and wait until it is dead: tests of its recovery only."""
        pid = self.pid
        if pid is not None:
            os.kill(pid, signal.SIGKILL)
            while self.pid == pid and not self._ended(pid):
                time.sleep(0.005)

    @property
    def pid(self) -> int | None:
        """The server's process, or None when no process of it lives."""
        if not self.directory.exists() or not self._sharing.alive():
            return None
        return sentinel.server_pid(self.data / self.pid_file)

    @property
    def socket_dir(self) -> Path:
        """Where the socket is; written down, because XDG_RUNTIME_DIR differs between processes."""
        kept = self._kept_socket_dir()
        if kept is None:
            raise Unavailable(f"{self.title} in {self.directory} never ran: call start() first")
        return Path(kept["sockets"])

    # Up.

    def _bring_up(self, say: Say) -> None:
        """Return when the server answers, whoever started it.

        The membership and the sentinel come first: a starter that is killed half-way leaves no
        server behind that nobody will stop.
        """
        with self._sharing.exclusive(say):
            was_user = self._sharing.joined
            self._sharing.join()
            try:
                sentinel.watch(self.directory, self.data / self.pid_file, self.stop_signal)
                account = Account.owning(self.data)
                if not self.data.exists():
                    self._prepare(account, say)
                self._until_it_answers(account, say)
            except BaseException:
                if not was_user and self._sharing.leave():
                    self._shut_down()
                raise

    def _prepare(self, account: Account, say: Say) -> None:
        """Create the data beside its place and move it there, so that `data` is always whole."""
        say(f"{self.title}: creating {self.data} (once, a few seconds)")
        # A new name each time: the initdb of a killed starter may still be writing to the old one.
        partial = Path(tempfile.mkdtemp(prefix="data.partial.", dir=self.directory))
        self._create(partial, account, say)
        account.give(partial)
        partial.rename(self.data)
        directory = os.open(self.directory, os.O_RDONLY)
        os.fsync(directory)
        os.close(directory)

    def _until_it_answers(self, account: Account, say: Say) -> None:
        """Join what runs, or launch; what a killed server left may refuse that for a second."""
        deadline = time.monotonic() + LAUNCH_S
        pause_s = 0.05
        while True:
            launched = None if self._sharing.alive() else self._launch(account, say)
            pid = launched or self.pid
            if pid is not None and self._answers_before_it_ends(pid, say):
                return
            words = self._last_words()
            hopeless = launched and any(phrase in words for phrase in self.hopeless)
            if hopeless or time.monotonic() > deadline:
                raise Unavailable(f"{self.title} does not start; the end of {self.log}:\n{words}")
            if launched:
                say(f"{self.title}: refused to start, trying again: {words.rpartition(chr(10))[2]}")
            else:
                say(f"{self.title}: waiting for the processes of a killed server to end")
            time.sleep(pause_s)
            pause_s = min(pause_s * 2, 1.0)

    def _answers_before_it_ends(self, pid: int, say: Say) -> bool:
        """Wait while process `pid` lives; False when it has ended or never answers."""
        started = spoken = time.monotonic()
        while not self.answers():
            now = time.monotonic()
            if self._ended(pid) or now - started > RECOVERY_S:
                return False
            if now - spoken > 3:
                say(f"{self.title}: recovering, {now - started:.0f} s so far")
                spoken = now
            time.sleep(0.02)
        return True

    def _launch(self, account: Account, say: Say) -> int:
        self._forget_the_dead()
        self._choose_socket_dir(account)
        say(f"{self.title}: starting in {self.directory}")
        with (
            account.naming(self.data) as (data, handles),
            self._sharing.breath() as breath,
            self._open_log() as output,
        ):
            child = subprocess.Popen(
                self._command(account, data),
                cwd="/",
                user=account.user,
                group=account.group,
                extra_groups=account.groups,
                umask=0o077,
                # Nothing of the caller's: no PGOPTIONS that would change the server, no secrets.
                env=CLEAN_ENVIRONMENT,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                pass_fds=[breath, *handles],
                # Ctrl-C in the terminal is meant for the caller.
                start_new_session=True,
            )
        _children.add((os.getpid(), child.pid))
        # It is reaped by its pid, if by us at all: a server may outlive whoever started it, and
        # Popen would complain of that.
        child.returncode = 0
        return child.pid

    def _ended(self, pid: int) -> bool:
        """Whether the server's process has ended; a zombie counts once its children are gone."""
        if (os.getpid(), pid) in _children:
            return _reaped(pid, os.WNOHANG)
        return not _exists(pid) or not self._sharing.alive()

    def _forget_the_dead(self) -> None:
        """Clear what killed processes left; subclasses add what their server leaves."""
        for parent, pid in list(_children):
            if parent == os.getpid():
                _reaped(pid, os.WNOHANG)
        for partial in self.directory.glob("data.partial.*"):
            # Its initdb may still be writing; then the next launch removes the rest.
            shutil.rmtree(partial, ignore_errors=True)

    def _choose_socket_dir(self, account: Account) -> None:
        """Keep the choice, so that a DSN outlives restarts, unless the directory was moved."""
        kept = self._kept_socket_dir()
        if kept is None or kept["directory"] != str(self.directory):
            kept = {
                "directory": str(self.directory),
                "sockets": str(self._new_socket_dir(account)),
            }
        if kept["sockets"] != str(self.data):
            account.make_private(Path(kept["sockets"]))
        # By renaming: whoever asks for a DSN meanwhile reads the old note or the new one.
        note = self.directory / "sockets.new"
        note.write_text(json.dumps(kept), encoding="utf-8")
        note.rename(self.directory / "sockets")

    def _kept_socket_dir(self) -> dict[str, str] | None:
        with suppress(FileNotFoundError):
            kept: dict[str, str] = json.loads((self.directory / "sockets").read_text("utf-8"))
            return kept
        return None

    def _new_socket_dir(self, account: Account) -> Path:
        """`data` if its path fits into a socket's address and the server can walk it."""
        inside = self.data / self.socket_name
        if not account.switch and len(os.fsencode(inside)) <= SOCKET_PATH_BYTES:
            return self.data
        tag = hashlib.sha256(os.fsencode(self.directory)).hexdigest()[:16]
        return _runtime_root(account) / f"helixqueue-{tag}"

    # Down.

    def _shut_down(self) -> None:
        """Stop the server; needs `exclusive`, and that nobody uses it."""
        pid = self.pid
        if pid is not None:
            with suppress(ProcessLookupError):
                os.kill(pid, self.stop_signal)
            if not self._sharing.wait_until_gone(STOP_S):
                log.warning("%s does not stop in %.0f s; killing it", self.title, STOP_S)
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGQUIT)
                self._sharing.wait_until_gone(STOP_S)
            if (os.getpid(), pid) in _children:
                # Its handles close a moment before it can be reaped.
                _reaped(pid)
        with suppress(OSError, Unavailable):
            # Only an empty one goes, and so never `data`.
            self.socket_dir.rmdir()

    # The log.

    def _open_log(self) -> BinaryIO:
        if self.log.exists() and self.log.stat().st_size > LOG_BYTES:
            self.log.rename(self.log.with_suffix(".old"))
        # 0600: a server's log quotes statements, and so data.
        handle = os.open(self.log, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        self._log_mark = os.fstat(handle).st_size
        return os.fdopen(handle, "ab")

    def _last_words(self) -> str:
        """What the server printed since its launch, at most the last 15 lines."""
        with suppress(FileNotFoundError), self.log.open("rb") as file:
            file.seek(self._log_mark)
            return "\n".join(file.read().decode(errors="replace").splitlines()[-15:])
        return ""


CLEAN_ENVIRONMENT = {"PATH": "/usr/local/bin:/usr/bin:/bin", "LC_ALL": "C", "TZ": "UTC"}


def _runtime_root(account: Account) -> Path:
    """Root's /run cannot be squatted and is never swept; others have XDG_RUNTIME_DIR or /tmp."""
    if account.switch and os.access("/run", os.W_OK):
        return Path("/run")
    own = os.environ.get("XDG_RUNTIME_DIR")
    if own and not account.switch and os.access(own, os.W_OK):
        return Path(own)
    return Path(tempfile.gettempdir())


def _reaped(pid: int, options: int = 0) -> bool:
    """Whether this child of ours has ended; waits for that unless `options` say otherwise."""
    try:
        ended = os.waitpid(pid, options)[0] == pid
    except ChildProcessError:  # by another thread of ours
        ended = True
    if ended:
        _children.discard((os.getpid(), pid))
    return ended


def _exists(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def _silent(_: str) -> None:
    pass
