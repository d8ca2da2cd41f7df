"""What a service can be told. Every wait, list and rate has a bound."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from helixqueue.errors import Refused
from helixqueue.postgres.database import parse_dsn

if TYPE_CHECKING:
    from helixqueue.fence.policy import Policy

# What one body may hold is what strict JSON reads (identity/strictjson.py).
MAX_BODY_BYTES = 1024 * 1024
MAX_ROWS = 1_000  # of one chunk of submissions
MAX_LEASES = 100  # of one claim: each may carry a payload of a mebibyte
MAX_PAGE = 500
MAX_WAIT_SECONDS = 30.0  # that a worker's request is held until there is work
COUNT_BOUND = 100_000  # the furthest that the engine counts


@dataclass(frozen=True)
class ServiceSettings:
    dsn: str = field(repr=False)  # of a login that is bound by setting alone; may hold a password
    pooled: bool = False  # the DSN leads through pgbouncer in transaction mode
    # The same past the pooler, for the one connection by which waiting workers are woken: behind a
    # pooler nobody can listen, and without this they look by themselves.
    listen_dsn: str | None = field(default=None, repr=False)
    connections: int = 10
    connect_seconds: float = 3.0
    statement_seconds: float = 10.0
    wait_seconds: float = 5.0  # for a free connection
    check_seconds: float = 60.0  # for all invariants together
    replay_seconds: float = 2.0  # of one stretch of the ledger
    replay_batches: int = 200_000  # of one stretch at most
    retry_seconds: float = 1.0  # over repeats, while the database is away
    head_seconds: float = 15.0  # for a client that is connected to say what it wants
    body_seconds: float = 15.0  # and then to say what it has to say
    read_seconds: float = 30.0  # to read some of an answer, of which some waits
    idle_seconds: int = 30  # between an answer and the next request
    max_connections: int = 4_000  # then whoever is silent the longest makes room
    max_requests: int = 2_000  # with a token, under way at a time: those that are held, and others
    requests_per_second: float = 500.0  # of one token, in this process
    burst: int = 1_000
    strangers_per_second: float = 10.0  # without a good token, or with a code, from one address
    strangers_burst: int = 100
    max_pending: int = COUNT_BOUND  # of one queue; submissions beyond are told to wait
    max_streams: int = 64
    max_waits: int = 1_000  # workers whose requests are held at a time
    poll_seconds: float = 0.5  # between two looks of a stream
    duties: bool = True  # take part in what is done on a clock
    policy: Policy | None = None  # of idempotency keys; optional everywhere unless said

    def __post_init__(self) -> None:
        parse_dsn(self.dsn)
        if self.listen_dsn is not None:
            parse_dsn(self.listen_dsn)
        if not 1 <= self.max_pending <= COUNT_BOUND:
            raise Refused(
                f"max_pending: expected 1 to {COUNT_BOUND}, got {self.max_pending}: "
                "nothing is counted further"
            )
        for name in ("connections", "connect_seconds", "statement_seconds", "wait_seconds",
                     "head_seconds", "body_seconds", "read_seconds", "idle_seconds",
                     "max_connections", "max_requests", "requests_per_second", "burst",
                     "strangers_per_second", "strangers_burst", "max_streams", "max_waits",
                     "poll_seconds"):  # fmt: skip
            if not getattr(self, name) > 0:
                raise Refused(f"{name}: expected a number above 0, got {getattr(self, name)!r}")
