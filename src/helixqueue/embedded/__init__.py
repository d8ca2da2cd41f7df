"""The default servers: PostgreSQL 18 and Valkey 9 from wheels, on this machine, for this user.

```python
with Servers(Path("~/.helixqueue").expanduser()) as servers:
    psycopg.connect(servers.postgres.dsn)
```

Private (a socket in a 0700 directory, no TCP), durable (fsync for every commit and every XADD),
shared (a second process joins; the last user stops the server, even if other users were killed) and
supervised (a server that dies is restarted).
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Self

from helixqueue.embedded.postgres import Postgres
from helixqueue.embedded.server import Startable
from helixqueue.embedded.valkey import Valkey

__all__ = ["Postgres", "Servers", "Valkey"]


class Servers(Startable):
    """Both servers, under `postgres` and `valkey` in one directory."""

    def __init__(self, data_dir: Path, *, supervised: bool = True) -> None:
        self.postgres = Postgres(Path(data_dir) / "postgres", supervised=supervised)
        self.valkey = Valkey(Path(data_dir) / "valkey", supervised=supervised)

    def start(self, progress: Callable[[str], None] | None = None) -> Self:
        """Start or join both servers, or neither; `progress` receives messages."""
        self.postgres.start(progress)
        try:
            self.valkey.start(progress)
        except BaseException:
            self.postgres.stop()
            raise
        return self

    def stop(self) -> None:
        """Stop using both servers; the last user stops them."""
        try:
            self.valkey.stop()
        finally:
            self.postgres.stop()
