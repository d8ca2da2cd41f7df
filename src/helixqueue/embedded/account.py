"""Who the servers run as: the caller, or, when the caller is root, a uid that owns nothing else.

PostgreSQL refuses to run as root, and Valkey as root would turn each of its bugs into a root
exploit. So root starts both under `SERVER_UID` and gives that uid two directories: the data and
the socket, both 0700. No system user is created, and no other file changes its mode.

That uid must reach its data although a parent may be 0700 (`/root`, pytest's `tmp_path`). Opening
the parents to everyone, as the wheel's own supervisor does, would expose what lies beside them.
Instead the server inherits an open handle of its directory and calls it `/proc/self/fd/N`: the
kernel follows that link without walking the parents. (`/proc/self/cwd` needs no handle, but
PostgreSQL 15 changes its directory while it looks for its own program, and cannot go back.)
"""

from __future__ import annotations

import os
import pwd
import sys
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from helixqueue.errors import Unavailable

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

# Inside 60800-61183, which systemd's table of uids leaves to nobody: no login, no daemon and no
# dynamic user has it. `nobody` is worse: every daemon that runs as `nobody` could read the data.
SERVER_UID = 60_957


def why_not(path: Path, error: OSError) -> str:
    """What the system has against the use of `path`, and whose it is if that is the matter."""
    why = (error.strerror or str(error)).lower()
    if isinstance(error, PermissionError):
        for place in (path, *path.parents):
            with suppress(OSError):
                owner = place.stat().st_uid
                if owner != os.geteuid():
                    why += f" ({place} belongs to uid {owner}, and this is uid {os.geteuid()})"
                break
    return why


@dataclass(frozen=True)
class Account:
    """A uid and gid for a server process; `switch` says that the caller is root and must change."""

    uid: int
    gid: int
    switch: bool

    @classmethod
    def owning(cls, directory: Path) -> Account:
        """The account whose data this is, or will be when `directory` does not exist yet."""
        caller = os.geteuid()
        if caller == 0 and not sys.platform.startswith("linux"):
            raise Unavailable(
                "the embedded servers do not run as root on this system: start as a normal user"
            )
        uid = caller or SERVER_UID
        if directory.exists() and directory.stat().st_uid != uid:
            # Also for root: its files among another user's would lock that user out.
            raise Unavailable(
                f"{directory} should belong to uid {uid} and belongs to uid "
                f"{directory.stat().st_uid}: run as that user, or choose another directory"
            )
        return cls(uid, uid if caller == 0 else os.getegid(), switch=caller == 0)

    def setting_up(self) -> Account:
        """The account for `initdb`, which insists on a name in the passwd file: `nobody` has one.

        What it makes is handed to this account before the first start.
        """
        if not self.switch:
            return self
        try:
            nobody = pwd.getpwnam("nobody")
        except KeyError:
            raise Unavailable(
                "initdb needs a user other than root in /etc/passwd and there is no `nobody`: "
                "add one, or start as a normal user"
            ) from None
        return Account(nobody.pw_uid, nobody.pw_gid, switch=True)

    @property
    def user(self) -> int | None:
        """What subprocess takes as `user=`: None leaves the process as it is."""
        return self.uid if self.switch else None

    @property
    def group(self) -> int | None:
        return self.gid if self.switch else None

    @property
    def groups(self) -> list[int] | None:
        """Root's supplementary groups are root's own: the server gets none of them."""
        return [] if self.switch else None

    @contextmanager
    def naming(self, directory: Path) -> Iterator[tuple[str, list[int]]]:
        """How a process of this account names `directory`, and the handles it must inherit."""
        if not self.switch:
            yield str(directory), []
            return
        handle = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            yield f"/proc/self/fd/{handle}", [handle]
        finally:
            os.close(handle)

    def give(self, path: Path) -> None:
        """Make this account the owner of `path` and of all below it."""
        if not self.switch:
            return
        os.lchown(path, self.uid, self.gid)
        for parent, folders, files in os.walk(path):
            for name in (*folders, *files):
                os.lchown(os.path.join(parent, name), self.uid, self.gid)  # noqa: PTH118 - 1000 files

    def write(self, path: Path, text: str) -> None:
        """Put a file of this account at `path`, at once and whole.

        A link that a server gone bad planted there is replaced, never followed: root writes here.
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
        """Create `directory` if need be, 0700 and this account's."""
        directory.mkdir(mode=0o700, exist_ok=True)
        found = directory.lstat()
        if directory.is_symlink() or found.st_uid not in {self.uid, os.geteuid()}:
            raise Unavailable(
                f"{directory} should be a directory of uid {self.uid}, but it is a link or belongs "
                f"to uid {found.st_uid}: remove it"
            )
        directory.chmod(0o700)
        if self.switch:
            os.chown(directory, self.uid, self.gid)
