"""What PostgreSQL and Valkey have in common: prepare, launch, wait, share, supervise, stop.

A server's directory holds

```
data/     the server's own files; 0700; the server's uid when root started it
lock, users, alive     see `sharing`
pid       of the running server
sockets   the path of the socket directory: `data`, or a short one when that is too long
log       what the server printed; `log.old` is the one before
```
"""

from __future__ import annotations

import hashlib
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
from typing import TYPE_CHECKING, ClassVar, Self

from helixqueue.embedded import sentinel
from helixqueue.embedded.account import Account
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

# Children of this process: kept so that they can be reaped, whoever of its objects started them.
_children: dict[int, subprocess.Popen[bytes]] = {}


class Server(ABC):
    """One server in one directory, shared by all processes that start it there."""

    title: ClassVar[str]
    socket_name: ClassVar[str]
    stop_signal: ClassVar[signal.Signals]

    def __init__(self, data_dir: Path, *, supervised: bool = True) -> None:
        self.directory = Path(data_dir).absolute()
        self.data = self.directory / "data"
        self.log = self.directory / "log"
        self._sharing = Sharing(self.directory)
        self._supervised = supervised
        self._supervisor: Supervisor | None = None
        self._mutex = threading.Lock()
        self._process = os.getpid()

    # What a server is made of.

    @abstractmethod
    def _create(self, directory: Path, account: Account, say: Say) -> None:
        """Fill the empty `directory` with a server's first data, owned by `account`."""

    @abstractmethod
    def _command(self, account: Account) -> list[str | Path]:
        """The command that runs the server in the foreground; writes its configuration first."""

    @abstractmethod
    def answers(self) -> bool:
        """Whether the server takes commands now."""

    # Its life.

    def start(self, progress: Say | None = None) -> Self:
        """Use the server: create it, launch it or join it, whichever is needed."""
        say = progress or _silent
        with self._mutex:
            self._process = os.getpid()
            self.directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._bring_up(say)
            if self._supervised and self._supervisor is None:
                self._supervisor = Supervisor(
                    self.title, self._sharing, lambda: self._bring_up(log.info)
                )
        return self

    def stop(self) -> None:
        """Leave; the last one to leave stops the server. Leaving twice is leaving once."""
        with self._mutex:
            if not self._sharing.joined:
                return
            if self._process != os.getpid():
                # After a fork: the server is still the parent's.
                self._sharing.forget()
                return
            if self._supervisor is not None:
                self._supervisor.end()
                self._supervisor = None
            with self._sharing.exclusive(_silent):
                if self._sharing.leave():
                    self._shut_down()

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
        """Send SIGKILL to the server: tests of its recovery only."""
        if self.pid is not None:
            os.kill(self.pid, signal.SIGKILL)

    @property
    def pid(self) -> int | None:
        """The server's process, or None when no process of it lives."""
        if not self.directory.exists() or not self._sharing.alive():
            return None
        return sentinel.server_pid(self.directory)

    @property
    def socket_dir(self) -> Path:
        """Where the socket is; written down, because XDG_RUNTIME_DIR differs between processes."""
        with suppress(FileNotFoundError):
            return Path((self.directory / "sockets").read_text(encoding="utf-8"))
        raise Unavailable(f"{self.title} in {self.directory} was never started: call start() first")

    # Up.

    def _bring_up(self, say: Say) -> None:
        """Return when the server answers, whoever started it."""
        with self._sharing.exclusive(say):
            account = Account.owning(self.data)
            if not self.data.exists():
                self._prepare(account, say)
            self._until_it_answers(account, say)
            self._sharing.join()
            sentinel.watch(self.directory, self.stop_signal)

    def _prepare(self, account: Account, say: Say) -> None:
        """Create the data beside its place and move it there, so that `data` is always whole."""
        partial = self.directory / "data.partial"
        shutil.rmtree(partial, ignore_errors=True)
        say(f"{self.title}: creating {self.data} (once, a few seconds)")
        partial.mkdir(mode=0o700)
        self._create(partial, account, say)
        account.give(partial)
        partial.rename(self.data)
        directory = os.open(self.directory, os.O_RDONLY)
        os.fsync(directory)
        os.close(directory)

    def _until_it_answers(self, account: Account, say: Say) -> None:
        deadline = time.monotonic() + LAUNCH_S
        pause_s = 0.05
        while True:
            if self._sharing.alive():
                waits_for = f"{self.title} lives but does not answer"
                if self._answers_soon(say):
                    return
            else:
                waits_for = f"{self.title} does not start"
                self._launch(account, say)
                if self._answers_soon(say):
                    return
            if time.monotonic() > deadline:
                raise Unavailable(
                    f"{waits_for} after {LAUNCH_S:.0f} s; "
                    f"the end of {self.log}:\n{self._log_tail(15)}"
                )
            say(f"{waits_for}, trying again; its last words: {self._log_tail(1)}")
            time.sleep(pause_s)
            pause_s = min(pause_s * 2, 1.0)

    def _answers_soon(self, say: Say) -> bool:
        """Wait while the server's main process lives; False when it is gone or never answers."""
        started = time.monotonic()
        spoken = started
        while not self.answers():
            now = time.monotonic()
            if not self._main_process_lives() or now - started > RECOVERY_S:
                return False
            if now - spoken > 3:
                say(f"{self.title}: recovering, {now - started:.0f} s so far")
                spoken = now
            time.sleep(0.02)
        return True

    def _launch(self, account: Account, say: Say) -> None:
        self._forget_the_dead()
        self._choose_socket_dir(account)
        command = self._command(account)
        if self.log.exists() and self.log.stat().st_size > LOG_BYTES:
            self.log.rename(self.log.with_suffix(".old"))
        say(f"{self.title}: starting in {self.directory}")
        with self.log.open("ab") as output, self._sharing.breath() as breath:
            child = subprocess.Popen(
                command,
                cwd=self.data,
                user=account.user,
                group=account.group,
                extra_groups=account.groups,
                umask=0o077,
                # Nothing of the caller's: no PGOPTIONS that would change the server, no secrets.
                env=CLEAN_ENVIRONMENT,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                pass_fds=[breath],
                # Ctrl-C in the terminal is meant for the caller.
                start_new_session=True,
            )
        _children[child.pid] = child
        (self.directory / "pid").write_text(str(child.pid), encoding="ascii")

    def _main_process_lives(self) -> bool:
        pid = self.pid
        if pid is None:
            return False
        child = _children.get(pid)
        if child is not None:
            return child.poll() is None
        return _exists(pid)

    def _forget_the_dead(self) -> None:
        """Reap the children that ended, and let subclasses clear what a killed server left."""
        for pid, child in list(_children.items()):
            if child.poll() is not None:
                del _children[pid]

    def _choose_socket_dir(self, account: Account) -> None:
        """`data` where the server can name it in the bytes a socket address has, else a short one.

        The choice is kept, so that a DSN outlives restarts.
        """
        note = self.directory / "sockets"
        kept = Path(note.read_text(encoding="utf-8")) if note.exists() else None
        chosen = kept or self._new_socket_dir(account)
        if chosen != self.data:
            account.make_private(chosen)
        note.write_text(str(chosen), encoding="utf-8")

    def _new_socket_dir(self, account: Account) -> Path:
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
        child = _children.pop(pid or 0, None)
        if child is not None:
            child.wait()
        (self.directory / "pid").unlink(missing_ok=True)

    def _log_tail(self, lines: int) -> str:
        with suppress(FileNotFoundError):
            return "\n".join(self.log.read_text(errors="replace").splitlines()[-lines:])
        return "(no log)"


CLEAN_ENVIRONMENT = {"PATH": "/usr/local/bin:/usr/bin:/bin", "LC_ALL": "C", "TZ": "UTC"}


def _runtime_root(account: Account) -> Path:
    """Root's /run cannot be squatted and is never swept; others have XDG_RUNTIME_DIR or /tmp."""
    if account.switch and os.access("/run", os.W_OK):
        return Path("/run")
    own = os.environ.get("XDG_RUNTIME_DIR")
    if own and not account.switch and os.access(own, os.W_OK):
        return Path(own)
    return Path(tempfile.gettempdir())


def _exists(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def _silent(_: str) -> None:
    pass
