"""The account of the servers: the caller, or, for root, a uid that owns nothing else.

PostgreSQL refuses to run as root, and Valkey as root would turn each of its bugs into a root
exploit. So root starts both under `SERVER_UID` and gives that uid two directories: the data and
the socket, both 0700. No system user is created, and no other file changes its mode.

That uid must reach its data although a parent may be 0700 (`/root`, pytest's `tmp_path`). Making
the parents world-accessible, as the wheel's own supervisor does, would expose other files in them.
Instead the server inherits an open handle of its directory and opens `/proc/self/fd/N`: the kernel
follows that link without walking the parents. (`/proc/self/cwd` needs no handle, but PostgreSQL 15
changes its directory while it looks for its own program, and cannot go back.)
"""

from __future__ import annotations

import os
import pwd
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from helixqueue.errors import Unavailable

# Inside 60800-61183, which systemd's table of uids leaves unused: no login, daemon or dynamic user
# has it. With `nobody`, every daemon that runs as `nobody` could read the data.
SERVER_UID = 60_957


def explain_os_error(path: Path, error: OSError) -> str:
    """Explain why `path` cannot be used, including its owner for permission errors."""
    why = (error.strerror or str(error)).lower()
    if isinstance(error, PermissionError):
        for part in (path, *path.parents):
            with suppress(OSError):
                owner = part.stat().st_uid
                if owner != os.geteuid():
                    why += f" ({part} belongs to uid {owner}, and this is uid {os.geteuid()})"
                break
    return why


@dataclass(frozen=True)
class Account:
    """A uid and gid for a server process; `switch` is set when the caller is root."""

    uid: int
    gid: int
    switch: bool

    @classmethod
    def owning(cls, directory: Path) -> Account:
        """The account that owns `directory`, or will own it once it exists."""
        caller = os.geteuid()
        if caller == 0 and not sys.platform.startswith("linux"):
            raise Unavailable(
                "the embedded servers cannot run as root on this system; run as a normal user"
            )
        uid = caller or SERVER_UID
        if directory.exists() and directory.stat().st_uid != uid:
            # This applies to root too: root's files in another user's directory would lock out
            # that user.
            raise Unavailable(
                f"expected {directory} to belong to uid {uid}, got uid "
                f"{directory.stat().st_uid}; run as that user, or choose another directory"
            )
        return cls(uid, uid if caller == 0 else os.getegid(), switch=caller == 0)

    def for_initdb(self) -> Account:
        """The account for `initdb`, which requires a name in the passwd file, such as `nobody`.

        The files it creates are given to this account before the first start.
        """
        if not self.switch:
            return self
        try:
            nobody = pwd.getpwnam("nobody")
        except KeyError:
            raise Unavailable(
                "initdb needs a user other than root in /etc/passwd, and there is no `nobody`; "
                "add that user, or start as a normal user"
            ) from None
        return Account(nobody.pw_uid, nobody.pw_gid, switch=True)

    @property
    def user(self) -> int | None:
        """The argument `user=` of subprocess; None keeps the current user."""
        return self.uid if self.switch else None

    @property
    def group(self) -> int | None:
        return self.gid if self.switch else None

    @property
    def groups(self) -> list[int] | None:
        """The server gets none of root's supplementary groups."""
        return [] if self.switch else None

    @contextmanager
    def accessible_path(self, directory: Path) -> Iterator[tuple[str, list[int]]]:
        """A path by which this account can open `directory`, and the handles it must inherit."""
        if not self.switch:
            yield str(directory), []
            return
        handle = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            yield f"/proc/self/fd/{handle}", [handle]
        finally:
            os.close(handle)

    def chown_tree(self, path: Path) -> None:
        """Make this account the owner of `path` and everything below it."""
        if not self.switch:
            return
        os.lchown(path, self.uid, self.gid)
        for parent, folders, files in os.walk(path):
            for name in (*folders, *files):
                os.lchown(os.path.join(parent, name), self.uid, self.gid)  # noqa: PTH118 - 1000 files

    def write(self, path: Path, text: str) -> None:
        """Write a file owned by this account, atomically.

        A symbolic link at `path` is replaced, never followed: root writes here, and a compromised
        server could have created the link.
        """
        new = path.with_name(f"{path.name}.new")
        new.unlink(missing_ok=True)
        handle = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            if self.switch:
                os.fchown(handle, self.uid, self.gid)
            file.write(text)
        new.rename(path)

    def make_private(self, directory: Path) -> None:
        """Create `directory` if it does not exist; make it 0700 and owned by this account."""
        directory.mkdir(mode=0o700, exist_ok=True)
        status = directory.lstat()
        if directory.is_symlink() or status.st_uid not in {self.uid, os.geteuid()}:
            raise Unavailable(
                f"expected {directory} to be a directory of uid {self.uid}, but it is a link or "
                f"belongs to uid {status.st_uid}; remove it"
            )
        directory.chmod(0o700)
        if self.switch:
            os.chown(directory, self.uid, self.gid)
