"""One consumer of one group, as Redis commands. Works on Redis 6.2 and later, and on Valkey.

Replies are read as they come (RESP2): the client library's own parsers differ between versions and
drop repeated fields.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from helixqueue.errors import Unavailable
from helixqueue.intake.figures import StreamSnapshot

if TYPE_CHECKING:
    from helixqueue.intake.settings import IntakeSettings
    from helixqueue.operations.message import Fields

SOCKET_SECONDS: Final = 10.0
ACK_IDS: Final = 1_000
READER_SECONDS: Final = 90.0  # a consumer that waits for entries reads at least this often
_PAGE = 100
# Deletes a consumer only while nothing is pending for it: XGROUP DELCONSUMER discards its list.
_FORGET = """
for _, consumer in ipairs(redis.call('XINFO', 'CONSUMERS', KEYS[1], ARGV[1])) do
  local facts = {}
  for at = 1, #consumer, 2 do facts[consumer[at]] = consumer[at + 1] end
  if facts['name'] == ARGV[2] then
    if facts['pending'] == 0 and facts['idle'] >= tonumber(ARGV[3]) then
      return redis.call('XGROUP', 'DELCONSUMER', KEYS[1], ARGV[1], ARGV[2]) + 1
    end
  end
end
return 0
"""


class RedisUnavailable(Unavailable):
    """Redis does not answer, or not as a stream server should; entries stay pending."""


class Entry(NamedTuple):
    id: str
    fields: Fields
    deliveries: int = 1  # how often Redis delivered it


class Claimed(NamedTuple):
    entries: list[Entry]
    vanished: list[str]  # ids whose entries were deleted
    next: str  # where the next claim continues; 0-0 at the end


class StreamConsumer:
    def __init__(self, settings: IntakeSettings) -> None:
        self._settings = settings
        self._key, self._group = settings.stream, settings.group
        self._client = redis.Redis.from_url(
            settings.redis,
            username=settings.redis_username,
            password=settings.password(),
            socket_connect_timeout=SOCKET_SECONDS,
            socket_timeout=settings.block + SOCKET_SECONDS,
            retry=Retry(NoBackoff(), 0),
            protocol=2,
            decode_responses=False,
        )
        self._client.response_callbacks.clear()

    def close(self) -> None:
        with contextlib.suppress(redis.RedisError, OSError):
            self._client.close()

    def _do(self, *command: str | float) -> Any:  # noqa: ANN401 - a reply of Redis
        try:
            return self._client.execute_command(*command)  # type: ignore[no-untyped-call]
        except redis.ResponseError as error:
            if str(error).startswith("NOGROUP"):
                raise _NoGroup from error
            raise RedisUnavailable(f"Redis refused {command[0]!s}: {str(error)[:200]}") from error
        except (redis.RedisError, OSError) as error:
            raise _unavailable(error) from error

    def _do_in_group(self, *command: str | float) -> Any:  # noqa: ANN401
        """Run a command; create the group first if Redis has lost it."""
        try:
            return self._do(*command)
        except _NoGroup:
            self.create_group()
            try:
                return self._do(*command)
            except _NoGroup as error:
                raise RedisUnavailable("the consumer group was deleted again") from error

    def create_group(self, *, first: bool = False) -> None:
        """Create the group, and the stream if there is none.

        `start` of the settings holds the first time. A group that Redis lost begins at the first
        entry: what arrived since was not read.
        """
        start = self._settings.start if first else "0"
        try:
            self._client.execute_command(  # type: ignore[no-untyped-call]
                "XGROUP", "CREATE", self._key, self._group, start, "MKSTREAM"
            )
        except redis.ResponseError as error:
            if not str(error).startswith("BUSYGROUP"):
                raise RedisUnavailable(f"Redis refused XGROUP: {str(error)[:200]}") from error
        except (redis.RedisError, OSError) as error:
            raise _unavailable(error) from error

    def read_new(self) -> list[Entry]:
        """Wait for entries that were not delivered yet."""
        settings = self._settings
        block = max(1, round(settings.block * 1000))
        return self._read(settings.count, ">", ("BLOCK", block)).entries

    def read_own(self, after: str) -> Claimed:
        """Read entries that are pending for this consumer: a former process did not finish them."""
        found = self._read(self._settings.count, after, ())
        counts = self._deliveries([*[entry.id for entry in found.entries], *found.vanished])
        entries = [entry._replace(deliveries=counts.get(entry.id, 1)) for entry in found.entries]
        return Claimed(entries, found.vanished, found.next)

    def _read(self, count: int, after: str, block: Sequence[str | int]) -> Claimed:
        group = ("GROUP", self._group, self._settings.consumer)
        reply = self._do_in_group(
            "XREADGROUP", *group, "COUNT", count, *block, "STREAMS", self._key, after
        )
        rows = reply[0][1] if reply else []
        last = rows[-1][0].decode() if rows else "0-0"
        gone = [entry.decode() for entry, fields in rows if not fields]
        return Claimed([_entry(row) for row in rows if row[1]], gone, last)

    def claim(self, start: str) -> Claimed:
        """Take over entries that were pending too long. The caller continues at `next`.

        Redis 6.2 does not say which entries are deleted, and later versions remove them from the
        pending list in XAUTOCLAIM, also those of live consumers. They are looked up first, so that
        they are recorded before they are removed, and only when they were pending too long.
        """
        idle = max(1, round(self._settings.idle * 1000))
        most = self._settings.claim_count
        pending = self._do_in_group("XPENDING", self._key, self._group, start, "+", most)
        ids = [row[0].decode() for row in pending]
        abandoned = [row[0].decode() for row in pending if int(row[2]) >= idle]
        deleted = self._deleted(ids)
        if lost := [entry for entry in abandoned if entry in deleted]:
            return Claimed([], lost, start)
        following = _after(ids[-1]) if len(ids) == most else "0-0"
        if not abandoned:
            return Claimed([], [], following)
        consumer = (self._key, self._group, self._settings.consumer, idle)
        if deleted:  # by others, while their consumer works on them
            rows, vanished = self._do_in_group("XCLAIM", *consumer, *abandoned), []
        else:
            # With this count the command ends at the last entry that was looked up.
            reply = self._do_in_group("XAUTOCLAIM", *consumer, start, "COUNT", len(abandoned))
            rows = reply[1]
            vanished = [entry.decode() for entry in reply[2]] if len(reply) > 2 else []
        entries = [_entry(row) for row in rows if row is not None and row[1]]
        counts = self._deliveries([entry.id for entry in entries])
        entries = [entry._replace(deliveries=counts.get(entry.id, 1)) for entry in entries]
        return Claimed(entries, vanished, following)

    def _deleted(self, ids: Sequence[str]) -> set[str]:
        """Return which entries do not exist, in one round trip."""
        pipe = self._client.pipeline(transaction=False)
        for entry in ids:
            pipe.execute_command("XRANGE", self._key, entry, entry, "COUNT", 1)  # type: ignore[no-untyped-call]
        try:
            found = pipe.execute()
        except (redis.RedisError, OSError) as error:
            raise _unavailable(error) from error
        return {entry for entry, rows in zip(ids, found, strict=True) if not rows}

    def _deliveries(self, ids: list[str]) -> dict[str, int]:
        """Return how often each entry was delivered."""
        if not ids:
            return {}
        ids.sort(key=entry_order)
        rows = self._do_in_group(
            *("XPENDING", self._key, self._group, ids[0], ids[-1], 10_000, self._settings.consumer)
        )
        return {row[0].decode(): int(row[3]) for row in rows}

    def acknowledge(self, ids: Sequence[str]) -> None:
        with contextlib.suppress(_NoGroup):  # Redis lost the group and with it the pending list
            for at in range(0, len(ids), ACK_IDS):
                self._do("XACK", self._key, self._group, *ids[at : at + ACK_IDS])

    def snapshot(self) -> StreamSnapshot | None:
        """Read what Redis says about the group; None if it has no such stream or group."""
        now = int(self._do("TIME")[0])
        try:
            groups = [_pairs(row) for row in self._do("XINFO", "GROUPS", self._key)]
            total, least, _, consumers = self._do("XPENDING", self._key, self._group)
            readers = [
                _pairs(row) for row in self._do("XINFO", "CONSUMERS", self._key, self._group)
            ]
        except _NoGroup:
            return None
        except RedisUnavailable as error:
            if "no such key" in str(error):
                return None
            raise
        own = next(group for group in groups if group["name"] == self._group.encode())
        oldest = [] if least is None else [least.decode()]
        last = own["last-delivered-id"].decode()
        unread = self._do("XRANGE", self._key, f"({last}", "+", "COUNT", 1)
        oldest += [unread[0][0].decode()] if unread else []
        ages = [now - entry_order(entry)[0] / 1000 for entry in oldest]
        lag = own.get("lag")
        return StreamSnapshot(
            length=int(self._do("XLEN", self._key)),
            pending=int(total),
            lag=None if lag is None else int(lag),
            oldest_seconds=round(max(0.0, *ages), 3) if ages else None,
            readers=sum(int(reader["idle"]) < READER_SECONDS * 1000 for reader in readers),
            pending_by_consumer={
                name.decode("utf-8", "backslashreplace"): int(count)
                for name, count in (consumers or [])[:_PAGE]
            },
        )

    def trim(self) -> int:
        """Delete entries that every group has been delivered and has acknowledged."""
        needed: list[tuple[int, int]] = []
        for group in (_pairs(row) for row in self._do("XINFO", "GROUPS", self._key)):
            milliseconds, number = entry_order(group["last-delivered-id"].decode())
            needed.append((milliseconds, number + 1))
            if int(group["pending"]):
                least = self._do_in_group("XPENDING", self._key, group["name"])[1]
                needed += [] if least is None else [entry_order(least.decode())]
        if not needed:
            return 0
        milliseconds, number = min(needed)
        return int(self._do("XTRIM", self._key, "MINID", f"{milliseconds}-{number}"))

    def forget_consumers(self, idle_seconds: float) -> int:
        """Delete consumers that are long idle and have nothing pending."""
        idle, forgotten = round(idle_seconds * 1000), 0
        for row in self._do_in_group("XINFO", "CONSUMERS", self._key, self._group):
            facts = _pairs(row)
            name = facts["name"]
            if name == self._settings.consumer.encode():
                continue
            if int(facts["pending"]) == 0 and int(facts["idle"]) >= idle:
                forgotten += bool(self._do("EVAL", _FORGET, 1, self._key, self._group, name, idle))
        return forgotten


def _unavailable(error: Exception) -> RedisUnavailable:
    """Names the kind of the error only: its text may contain what the client sent."""
    if isinstance(error, redis.AuthenticationError):
        return RedisUnavailable(
            "Redis refused the user name or the password; the intake tries again"
        )
    return RedisUnavailable(
        f"Redis does not answer ({type(error).__name__}); the intake tries again"
    )


class _NoGroup(Exception):
    """Redis has no such stream or group."""


def entry_order(entry: str) -> tuple[int, int]:
    """Return the position of an entry id."""
    milliseconds, _, number = entry.partition("-")
    return int(milliseconds), int(number or 0)


def _after(entry: str) -> str:
    milliseconds, number = entry_order(entry)
    return f"{milliseconds}-{number + 1}"


def _entry(row: Sequence[Any]) -> Entry:
    entry, parts = row
    return Entry(entry.decode(), list(zip(parts[::2], parts[1::2], strict=True)))


def _pairs(row: Iterable[Any]) -> dict[str, Any]:
    parts = list(row)
    return {name.decode(): value for name, value in zip(parts[::2], parts[1::2], strict=True)}
