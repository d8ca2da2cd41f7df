"""Settings of the service. Every wait, list and rate has a limit."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from helixqueue.errors import Refused
from helixqueue.postgres.database import parse_dsn
from helixqueue.service.address import host_names, proxy_networks

if TYPE_CHECKING:
    from helixqueue.fence.key_file import SigningKey
    from helixqueue.fence.policy import Policy
    from helixqueue.fence.signing import Signer

# The largest document that strict JSON reads (identity/strictjson.py).
MAX_BODY_BYTES = 1024 * 1024
MEMORY, LEAST_MEMORY = 512 * 1024 * 1024, 384 * 1024 * 1024
MAX_OPEN_BODY_BYTES = 1024  # of a request that needs no token
MAX_ROWS = 1_000  # submissions in one request
MAX_LEASES = 100  # in one claim: each may carry a payload of one mebibyte
MAX_PAGE = 500
MAX_WAIT_SECONDS = 30.0  # of a worker's request that waits for work
COUNT_BOUND = 100_000  # the engine stops counting here


@dataclass(frozen=True)
class ServiceSettings:
    dsn: str = field(repr=False)  # of a login bound by setting; may contain a password
    pooled: bool = False  # the DSN connects through pgbouncer in transaction mode
    # A direct DSN for the connection that wakes waiting workers: LISTEN does not work through a
    # pooler. Without it, workers poll.
    listen_dsn: str | None = field(default=None, repr=False)
    connections: int = 10
    connect_seconds: float = 3.0
    statement_seconds: float = 10.0
    wait_seconds: float = 5.0  # for a free connection
    check_seconds: float = 60.0  # for all invariants of a check
    replay_seconds: float = 2.0  # for one range of the ledger
    replay_batches: int = 200_000  # at most in one range
    retry_seconds: float = 1.0  # total time of retries while the database is unreachable
    head_seconds: float = 15.0  # for a connected client to send a request head
    body_seconds: float = 15.0  # to send the body after the head
    read_seconds: float = 30.0  # to read a part of a response that waits to be sent
    idle_seconds: int = 30  # between a response and the next request
    max_connections: int = 4_000  # beyond it, the longest idle connection is closed
    memory: int = MEMORY  # of the process in bytes; bodies of requests in progress get a part
    max_requests: int = 2_000  # concurrent requests with a token, waiting ones included
    requests_per_second: float = 500.0  # per token, in this process
    burst: int = 1_000
    anonymous_per_second: float = 10.0  # per address: without a valid token, or logins
    anonymous_burst: int = 100
    max_pending: int = COUNT_BOUND  # per queue; further submissions get 429
    max_streams: int = 64
    max_waits: int = 1_000  # worker requests that wait for work
    poll_seconds: float = 0.5  # between two reads of a stream
    duties: bool = True  # run background duties
    # The tenant whose tokens read the counters of the process, which cover all tenants; None: any.
    metrics_tenant: str | None = None
    # Host names that requests may have; () for any. "*.example.org" includes all its subdomains.
    allowed_hosts: tuple[str, ...] = ()
    # Addresses or networks of proxies whose X-Forwarded-For names the client.
    trusted_proxies: tuple[str, ...] = ()
    policy: Policy | None = None  # for idempotency keys; by default they are optional
    keys: tuple[SigningKey, ...] = ()  # published; the last one signs receipts and seals
    seal_to: Path | None = None  # directory that gets a seal every `seal_seconds`
    seal_seconds: float = 3600.0
    redis: str | None = None  # whose streams the service looks at, for metrics

    @property
    def signer(self) -> Signer | None:
        return self.keys[-1].signer if self.keys else None

    def __post_init__(self) -> None:
        parse_dsn(self.dsn)
        object.__setattr__(self, "allowed_hosts", host_names(self.allowed_hosts))
        proxy_networks(self.trusted_proxies)
        if self.listen_dsn is not None:
            parse_dsn(self.listen_dsn)
        if not 1 <= self.max_pending <= COUNT_BOUND:
            raise Refused(
                f"max_pending: expected 1 to {COUNT_BOUND}, got {self.max_pending}: "
                "the engine does not count further"
            )
        if self.memory < LEAST_MEMORY:
            raise Refused(
                f"memory: expected at least {LEAST_MEMORY // 2**20} MiB, got {self.memory} bytes"
            )
        if self.seal_to is not None and not self.keys:
            raise Refused("expected a key to sign seals with, got none; see `helixq key create`")
        for name in ("connections", "connect_seconds", "statement_seconds", "wait_seconds",
                     "head_seconds", "body_seconds", "read_seconds", "idle_seconds",
                     "max_connections", "max_requests", "requests_per_second", "burst",
                     "anonymous_per_second", "anonymous_burst", "max_streams", "max_waits",
                     "poll_seconds", "seal_seconds"):  # fmt: skip
            if not getattr(self, name) > 0:
                raise Refused(f"{name}: expected a number above 0, got {getattr(self, name)!r}")
