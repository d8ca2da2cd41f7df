"""Runs a command in a mount namespace of its own, in which /pfs and /scratch are ours.

`private_command` starts this file as a program, which becomes the command. Its root is a new file
system into which everything of the machine is bound, so directories of the machine stay as they
are. That needs the privilege to mount, or user namespaces.

The program starts for each command: what it imports takes longer than what it does.
"""

from __future__ import annotations

import ctypes
import marshal
import os
import sys

TYPE_CHECKING = False  # as `typing` has it
if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path
    from typing import Any, NoReturn

NEWNS, NEWUSER = 0x0002_0000, 0x1000_0000
NOSUID, NODEV, BIND, REC, PRIVATE = 0x2, 0x4, 0x1000, 0x4000, 0x4_0000
DETACH = 2
NOT_STARTED = 125  # exit status
PROBE_SECONDS = 60


def private_command(
    command: list[str],
    *,
    root: Path,
    binds: dict[str, Path],
    files: dict[str, dict[str, str]],
    directory: str | None,
) -> tuple[list[str], int]:
    """The command to start, and the descriptor that it must inherit; the caller closes it.

    `binds` are directories of this machine by their path in the namespace. `files` are texts by
    directory and name, which exist in memory alone.
    """
    plan = {"root": str(root), "binds": {path: str(own) for path, own in binds.items()},
            "files": files, "directory": directory}  # fmt: skip
    descriptor = os.memfd_create("helix-mounts")
    with open(descriptor, "wb", closefd=False) as file:
        marshal.dump(plan, file)
    os.lseek(descriptor, 0, os.SEEK_SET)
    return [sys.executable, "-I", "-S", __file__, str(descriptor), *command], descriptor


def problem() -> str | None:
    """Why this machine cannot show /pfs to a command; None if it can."""
    import subprocess  # noqa: PLC0415
    import tempfile  # noqa: PLC0415
    from pathlib import Path  # noqa: PLC0415

    if not hasattr(os, "memfd_create"):
        return "expected Linux"
    with tempfile.TemporaryDirectory(prefix="helix-mounts-") as home:
        own = Path(home, "pfs")
        own.mkdir()
        command, descriptor = private_command(
            ["test", "-d", "/pfs"], root=Path(home), binds={"/pfs": own}, files={}, directory=None
        )
        try:
            done = subprocess.run(  # noqa: S603 - this file
                command, pass_fds=[descriptor], capture_output=True, check=False, text=True,
                timeout=PROBE_SECONDS,
            )  # fmt: skip
        except (OSError, subprocess.TimeoutExpired) as error:
            return str(error)
        finally:
            os.close(descriptor)
    if done.returncode == 0:
        return None
    return done.stderr.strip().partition(": ")[2] or f"the probe ended with {done.returncode}"


def _enter(plan: dict[str, Any]) -> None:
    """Make the new root the one of this process."""
    libc = ctypes.CDLL(None, use_errno=True)
    text, number = ctypes.c_char_p, ctypes.c_ulong
    libc.mount.argtypes = [text, text, text, number, text]

    def call(name: str, *arguments: str | int | None) -> None:
        values = [value.encode() if isinstance(value, str) else value for value in arguments]
        if getattr(libc, name)(*values) != 0:
            code = ctypes.get_errno()
            shown = " ".join(str(value) for value in arguments if value is not None)
            raise OSError(code, os.strerror(code), f"{name} {shown}")

    directory = plan["directory"] or os.getcwd()
    _unshare(call)
    call("mount", "none", "/", None, REC | PRIVATE, None)
    root: str = plan["root"]
    call("mount", "tmpfs", root, "tmpfs", NOSUID | NODEV, "mode=755")
    replaced = {path.split("/")[1] for path in plan["binds"]}
    for entry in os.scandir("/"):
        target = f"{root}/{entry.name}"
        if entry.is_symlink():
            os.symlink(os.readlink(entry.path), target)
        elif entry.name not in replaced and (entry.is_dir() or entry.is_file()):
            if entry.is_dir():
                os.mkdir(target)
            else:
                os.mknod(target)
            call("mount", entry.path, target, None, BIND | REC, None)
    for path, source in plan["binds"].items():
        os.makedirs(root + path, exist_ok=True)
        call("mount", source, root + path, None, BIND | REC, None)
    os.chdir(root)
    call("pivot_root", ".", ".")
    call("umount2", ".", DETACH)
    os.chdir("/")
    _write_files(call, plan["files"])
    os.chdir(directory)


def _write_files(call: Callable[..., None], directories: dict[str, dict[str, str]]) -> None:
    """Each directory of files is a file system in memory."""
    for path, files in directories.items():
        if not os.path.isdir(path) and os.path.ismount("/" + path.split("/")[1]):
            raise OSError(f"{path}: expected a directory of this machine, or a new one below /")
        os.makedirs(path, exist_ok=True)
        call("mount", "tmpfs", path, "tmpfs", NOSUID | NODEV, "mode=700")
        for name, content in files.items():
            with open(f"{path}/{name}", "w", encoding="utf-8") as file:
                file.write(content)
            os.chmod(f"{path}/{name}", 0o400)


def _unshare(call: Callable[..., None]) -> None:
    """Get a mount namespace, if need be as an ordinary user, who stays the same user in it."""
    user, group = os.geteuid(), os.getegid()
    try:
        call("unshare", NEWNS)
    except PermissionError:
        try:
            call("unshare", NEWNS | NEWUSER)
        except OSError as error:
            raise OSError(f"mount namespaces are not allowed here: {error.strerror}") from None
        settings = {
            "setgroups": "deny",
            "uid_map": f"{user} {user} 1",
            "gid_map": f"{group} {group} 1",
        }
        for name, text in settings.items():
            with open(f"/proc/self/{name}", "w", encoding="ascii") as file:
                file.write(text)


def _main(descriptor: str, *command: str) -> NoReturn:
    try:
        with open(int(descriptor), "rb") as file:
            plan = marshal.load(file)  # noqa: S302 - of our own process
        _enter(plan)
        os.execvp(command[0], command)  # noqa: S606 - what the run says
    except (OSError, AttributeError) as error:
        sys.stderr.write(f"{command[0]} was not started: {error}\n")
        sys.exit(NOT_STARTED)


if __name__ == "__main__":
    _main(*sys.argv[1:])
