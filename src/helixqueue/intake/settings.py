"""Settings of an intake, from a TOML file and from options.

```toml
stream = "samples"
group = "helixqueue"
tenant = "lab"
queues = ["basecall"]
redis = "redis://redis:6379/0"
```

The password of Redis is read from HELIX_REDIS_PASSWORD or a file, never from an option or a URL.
"""

from __future__ import annotations

import os
import socket
import tomllib
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

from helixqueue.errors import Refused
from helixqueue.identity import check_name, is_name

PASSWORD_VARIABLE: Final = "HELIX_REDIS_PASSWORD"  # noqa: S105 - a name
EVERY_QUEUE: Final = ("*",)
_TEXT_BYTES_MAX = 255


@dataclass(frozen=True)
class IntakeSettings:
    stream: str
    tenant: str
    queues: tuple[str, ...]  # messages may go to these queues only; *: to every queue of the tenant
    redis: str = "redis://127.0.0.1:6379/0"
    group: str = "helixqueue"
    consumer: str = field(default_factory=socket.gethostname)  # stable across restarts
    default_queue: str | None = None  # of messages that name none; default: the only queue
    source: str | None = None  # name of the source; default: the stream
    redis_username: str | None = None
    redis_password_file: str | None = field(default=None, repr=False)
    count: int = 32  # entries per read, and per transaction
    block: float = 2.0  # how long a read waits for entries
    idle: float = 120.0  # pending entries that were not touched this long are claimed
    claim_count: int = 64
    max_tries: int = 5  # of an entry alone, while the database answers
    await_queues: float = 0.0  # seconds after the start in which a missing queue is waited for
    trim: bool = False  # delete entries that every group has acknowledged
    start: str = "0"  # where a new group begins: 0 is the oldest entry, $ the next one
    keep_letters: float = 0.0  # seconds until a dead letter is emptied; 0: never
    forget_consumers: float = 86_400.0  # idle consumers without pending entries are removed
    report: float = 5.0  # seconds between reports to the database
    pooled: bool = False  # the database is reached through pgbouncer in transaction mode

    def __post_init__(self) -> None:
        check_name("tenant", self.tenant)
        if not self.queues:
            raise Refused("queues: expected at least one queue that messages may go to, got none")
        for queue in self.queues if self.queues != EVERY_QUEUE else ():
            check_name("queue", queue)
        if self.default_queue is not None and self.queue_of(self.default_queue) is None:
            raise Refused(f"default_queue: expected one of queues, got {self.default_queue!r}")
        for name in ("stream", "group", "consumer"):
            text = getattr(self, name)
            if not text.isprintable() or not 1 <= len(text.encode()) <= _TEXT_BYTES_MAX:
                raise Refused(f"{name}: expected 1 to 255 visible characters, got {text!a}")
        check_redis_url(self.redis)
        if self.start not in {"0", "$"}:
            raise Refused(f"start: expected 0 or $, got {self.start!a}")
        for name, least, most in _BOUNDS:
            value = getattr(self, name)
            if isinstance(value, bool) or not least <= value <= most:
                raise Refused(f"{name}: expected a number from {least} to {most}, got {value!r}")

    @property
    def source_name(self) -> str:
        return self.source or self.stream

    def queue_of(self, named: str | None) -> str | None:
        """Return the queue of a message; None if the message may not go there."""
        every = self.queues == EVERY_QUEUE
        if named is None:
            only = self.queues[0] if len(self.queues) == 1 and not every else None
            return self.default_queue or only
        return named if named in self.queues or (every and is_name(named)) else None

    def password(self) -> str | None:
        """Read the password from the environment or its file."""
        if self.redis_password_file is not None:
            try:
                return Path(self.redis_password_file).read_text(encoding="utf-8").strip()
            except OSError as error:
                raise Refused(
                    f"redis_password_file: expected a readable file, got {error.strerror}"
                ) from error
        return os.environ.get(PASSWORD_VARIABLE) or None


# Name, smallest and largest value.
_BOUNDS: Final = (
    ("count", 1, 10_000),
    ("block", 0.01, 60),
    ("idle", 0.01, 86_400),
    ("claim_count", 1, 10_000),
    ("max_tries", 1, 1_000),
    ("await_queues", 0, 3_600),
    ("keep_letters", 0, 1e10),
    ("forget_consumers", 1, 1e10),
    ("report", 0.05, 3_600),
)


def check_redis_url(url: str) -> str:
    """Refuse a URL that is none of Redis, or that contains a password; names neither."""
    try:
        parts = urlsplit(url)
        secret = parts.password or "password=" in parts.query
    except ValueError:
        parts, secret = urlsplit(""), None
    if parts.scheme not in {"redis", "rediss", "unix"}:
        raise Refused("redis: expected a URL such as redis://host:6379, got another text")
    if secret:
        raise Refused(
            "redis: expected a URL without a password, because process lists and logs show URLs; "
            f"set {PASSWORD_VARIABLE} or redis_password_file"
        )
    return url


def read_file(file: Path) -> dict[str, Any]:
    """Read the TOML file of an intake."""
    try:
        return tomllib.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise Refused(f"{file}: expected a readable file, got {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise Refused(f"{file}: expected TOML, got {str(error)[:200]}") from error


def read_settings(file: Path | None, options: dict[str, Any]) -> IntakeSettings:
    """Combine a TOML file with options, which win."""
    values = {} if file is None else read_file(file)
    values |= {name: value for name, value in options.items() if value is not None}
    known = {each.name: each.type for each in fields(IntakeSettings)}
    for name, value in values.items():
        if name not in known:
            raise Refused(f"expected one of {', '.join(known)}; got {name[:80]!a}")
        if not _fits(known[name], value):
            raise Refused(f"{name}: expected {known[name]}, got {type(value).__name__}")
    missing = [name for name in ("stream", "tenant", "queues") if name not in values]
    if missing:
        raise Refused(f"expected {', '.join(missing)} in --config or as an option, got none")
    values["queues"] = tuple(values["queues"])
    return IntakeSettings(**values)


def _fits(annotation: object, value: object) -> bool:
    """Whether a value of TOML fits a field: texts, numbers, booleans, a list of texts."""
    wanted = str(annotation)
    if wanted.startswith("tuple"):
        return isinstance(value, list | tuple) and all(isinstance(text, str) for text in value)
    if wanted.startswith("str"):
        return isinstance(value, str)
    if wanted == "bool":
        return isinstance(value, bool)
    kinds = int if wanted == "int" else (int, float)
    return isinstance(value, kinds) and not isinstance(value, bool)
