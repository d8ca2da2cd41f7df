"""A process of its own that uses a server: `user.py postgres|valkey DIRECTORY [supervised]`.

It prints `up PID` once its server answers, and leaves when its standard input ends or says stop.
"""

from __future__ import annotations

import sys
from pathlib import Path

from helixqueue.embedded import Postgres, Valkey

KINDS = {"postgres": Postgres, "valkey": Valkey}


def main(kind: str, directory: str, *flags: str) -> None:
    server = KINDS[kind](Path(directory), supervised="supervised" in flags)
    with server:
        sys.stdout.write(f"up {server.pid}\n")
        sys.stdout.flush()
        sys.stdin.readline()
    sys.stdout.write("left\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
