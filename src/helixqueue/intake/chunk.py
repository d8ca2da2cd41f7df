"""Writes a chunk of entries in one transaction: batches, and dead letters for the rest."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, Final, TypeVar

from helixqueue.engine import calls, letters, streams
from helixqueue.engine.call_set import POSTGRES_CALLS
from helixqueue.errors import HelixError, InvalidIdentity, NotPermitted, Refused, Unavailable
from helixqueue.failpoints import failpoint
from helixqueue.identity import key_bytes
from helixqueue.intake.settings import EVERY_QUEUE
from helixqueue.log.events import log_refused_identities
from helixqueue.log.lines import event
from helixqueue.operations.batches import Operations
from helixqueue.operations.instructions import Execute, run_instructions
from helixqueue.operations.message import (
    Poison,
    encode_fields,
    letter_of,
    poison_of,
    poison_of_answer,
    read_message,
    vanished_letter,
)
from helixqueue.operations.prepare import prepare, refused_identity
from helixqueue.postgres.database import Database
from helixqueue.postgres.transaction_bounds import limited_transaction
from helixqueue.records.submission import Source, SubmissionRow
from helixqueue.states import State

if TYPE_CHECKING:
    from helixqueue.intake.figures import IntakeCounters, StreamSnapshot
    from helixqueue.intake.settings import IntakeSettings
    from helixqueue.intake.stream import Entry
    from helixqueue.operations.instructions import Instruction
    from helixqueue.operations.prepare import KnownQueue
    from helixqueue.postgres.call import Call
    from helixqueue.records.letter import NewLetter
    from helixqueue.records.submission import SubmittedRow

T = TypeVar("T")
LOG = logging.getLogger("helixqueue.intake")
KIND: Final = "stream"
STATEMENT_SECONDS: Final = 60.0


@dataclass
class _SortedChunk:
    """Entries sorted into rows by queue, and letters."""

    rows: dict[str, list[tuple[Entry, SubmissionRow]]] = field(default_factory=dict)
    letters: list[NewLetter] = field(default_factory=list)
    profiles: dict[str, str] = field(default_factory=dict)
    # Refused identities by queue, as bytes with the reason.
    refused: dict[str, list[tuple[bytes, str]]] = field(default_factory=dict)
    answered: list[tuple[str, Entry, SubmittedRow]] = field(default_factory=list)


class ChunkWriter:
    """The database side of an intake; not safe for concurrent use."""

    def __init__(self, settings: IntakeSettings, dsn: Callable[[], str]) -> None:
        self._settings = settings
        self._dsn = dsn
        self._database: Database | None = None
        self._operations = Operations(
            POSTGRES_CALLS,
            tenant=settings.tenant,
            actor=f"intake {settings.group}/{settings.consumer}"[:200],
            retry_seconds=0,
        )
        self._group = streams.StreamGroup(settings.tenant, settings.stream, settings.group)
        self._await_until = time.monotonic() + settings.await_queues

    def close(self) -> None:
        if self._database is not None:
            self._database.close()
            self._database = None

    def run(self, call: Call[T]) -> T:
        """Run one call in its own transaction."""
        with self._transaction() as database:
            return database.run(call)

    @contextmanager
    def _transaction(self) -> Iterator[Database]:
        """A transaction with limits; a broken connection is replaced at the next."""
        database = self._connection()
        try:
            with limited_transaction(database):
                yield database
        except HelixError:
            if database.connection.broken:
                self.close()
            raise

    def _connection(self) -> Database:
        if self._database is None:
            self._database = Database.connect(
                self._dsn(),
                pooled=self._settings.pooled,
                statement_seconds=STATEMENT_SECONDS,
                tenant=self._settings.tenant,
            )
        return self._database

    def write(self, entries: Sequence[Entry], counters: IntakeCounters, *, alone: bool) -> None:
        """Commit the decisions about these entries; raises if nothing was committed."""
        chunk = self._sort(entries)
        failpoint("intake.write")
        with self._transaction() as database:
            database.run(streams.count_entries(self._group, deliveries=len(entries)))
            decisions = self._write_within(database, chunk, entries if alone else ())
            failpoint("intake.commit")
        failpoint("intake.committed")
        counters.new += decisions.count("new")
        counters.duplicate += decisions.count("duplicate")
        counters.letters += len(chunk.letters)
        self._log(chunk)
        for letter in chunk.letters:
            LOG.warning(
                "entry %s of %s is a dead letter (%s): %s",
                letter.source, self._settings.stream, letter.reason, letter.detail[:200],
            )  # fmt: skip
        for rows in chunk.rows.values():
            for entry, row in rows:
                if row.identity is None:
                    counters.unnamed += 1
                    LOG.warning("entry %s has no identity; only its redelivery is known", entry.id)

    @staticmethod
    def _log(chunk: _SortedChunk) -> None:
        """Name the batch of each entry, and refused identities in hex, as every way in does."""
        for queue, refused in chunk.refused.items():
            log_refused_identities(queue, refused)
        if not LOG.isEnabledFor(logging.INFO):
            return
        for queue, entry, answer in chunk.answered:
            batch = None if answer.receipt is None else answer.receipt.batch_id
            event(
                LOG, logging.INFO, "submit",
                queue=queue, entry=entry.id, decision=answer.decision, batch=batch,
            )  # fmt: skip

    def _write_within(
        self, database: Database, chunk: _SortedChunk, alone: Sequence[Entry]
    ) -> list[str]:
        """Submit, write letters and end the counts of entries that are processed alone."""
        decisions: list[str] = []
        for queue in sorted(chunk.rows):  # in one order, so that intakes do not block each other
            decisions += self._submit(database, queue, chunk)
        if chunk.letters:
            database.run(self._letters_call(chunk.letters))
        for queue, refused in sorted(chunk.refused.items()):
            database.run(
                calls.note_refused(
                    tenant=self._settings.tenant,
                    queue=queue,
                    refused=refused,
                    actor=self._operations.actor,
                )
            )
        for entry in alone:
            source = self.source(entry.id)
            database.run(letters.clear_tries(tenant=self._settings.tenant, source=source))
        return decisions

    def _sort(self, entries: Sequence[Entry]) -> _SortedChunk:
        chunk = _SortedChunk()
        for entry in entries:
            try:
                known, row = self._read(entry, chunk)
            except Poison as poison:
                chunk.letters.append(letter_of(entry.id, encode_fields(entry.fields), poison))
            else:
                chunk.rows.setdefault(known.row.name, []).append((entry, row))
                chunk.profiles[known.row.name] = known.row.profile
        return chunk

    def _read(self, entry: Entry, chunk: _SortedChunk) -> tuple[KnownQueue, SubmissionRow]:
        named, submission = read_message(entry.fields)
        queue = self._settings.queue_of(named)
        known = None if queue is None else self._known(queue)
        if known is None and queue is not None and time.monotonic() < self._await_until:
            raise Unavailable(f"queue {queue} does not exist yet; the program may declare it soon")
        if known is None:
            allowed = ", ".join(self._settings.queues)
            raise Poison(
                "queue", f"expected a queue that exists among {allowed}; got {named!a}"[:500], named
            )
        try:
            row = prepare(known, submission._replace(source=self.source(entry.id)))
        except Refused as error:
            if isinstance(error, InvalidIdentity):
                noted = refused_identity(submission.identity, error)
                chunk.refused.setdefault(known.row.name, []).append(noted)
            raise poison_of(error, queue) from None
        return known, row

    def source(self, entry: str) -> Source:
        return Source(KIND, self._settings.source_name, entry)

    def _known(self, name: str) -> KnownQueue | None:
        try:
            return run_instructions(self._operations.known(name), self._perform)
        except NotPermitted:
            raise
        except Refused:
            return None

    def _perform(self, instruction: Instruction) -> Any:  # noqa: ANN401 - the result of any call
        return (
            self.run(instruction.call)
            if isinstance(instruction, Execute)
            else time.sleep(instruction.seconds)
        )

    def _submit(self, database: Database, queue: str, chunk: _SortedChunk) -> list[str]:
        rows = chunk.rows[queue]
        answers = database.run(
            calls.submit(
                tenant=self._settings.tenant,
                queue=queue,
                profile=chunk.profiles[queue],
                rows=[row for _, row in rows],
                actor=self._operations.actor,
            )
        )
        for (entry, _), answer in zip(rows, answers, strict=True):
            chunk.answered.append((queue, entry, answer))
            if answer.decision not in {"new", "duplicate"}:
                poison = poison_of_answer(answer, queue)
                key = None if answer.receipt is None else key_bytes(answer.receipt.key)
                body = encode_fields(entry.fields)
                chunk.letters.append(letter_of(entry.id, body, poison, key))
            elif answer.decision == "duplicate" and answer.state is State.FAILED:
                LOG.warning("entry %s asks for a FAILED batch; `helixq batch retry`", entry.id)
        return [answer.decision for answer in answers]

    def write_vanished(self, ids: Sequence[str]) -> int:
        """Record entries that were deleted while pending; returns how many were a loss."""
        with self._transaction() as database:
            written = database.run(self._letters_call([vanished_letter(entry) for entry in ids]))
            lost = sum(letter is not None for letter in written)
            database.run(streams.count_entries(self._group, vanished=lost))
        return lost

    def _letters_call(self, new: Sequence[NewLetter]) -> Call[list[int | None]]:
        return letters.write_letters(
            tenant=self._settings.tenant,
            kind=KIND,
            name=self._settings.source_name,
            letters=new,
            actor=self._operations.actor,
            keep_seconds=self._settings.keep_letters,
        )

    def count_try(self, entry: Entry) -> int:
        """Count a try of an entry alone, before it is made."""
        return self.run(
            letters.count_try(tenant=self._settings.tenant, source=self.source(entry.id))
        )

    def write_failed(self, entry: Entry, tries: int, error: str) -> None:
        """Make a letter of an entry that failed too often."""
        poison = Poison("failures", f"failed {tries} times while the database answered: {error}")
        letter = letter_of(entry.id, encode_fields(entry.fields), poison)
        source = self.source(entry.id)
        with self._transaction() as database:
            database.run(streams.count_entries(self._group, deliveries=1))
            database.run(self._letters_call([letter]))
            database.run(letters.clear_tries(tenant=self._settings.tenant, source=source))

    def knows_group(self) -> bool:
        """Whether an intake has read this group before."""
        return self.run(streams.knows_group(self._group))

    def store_look(self, snapshot: StreamSnapshot, seconds: float) -> None:
        """Store what Redis said about the group so many seconds ago."""
        self.run(streams.store_look(self._group, seconds=seconds, figures=asdict(snapshot)))

    def count_xack_failures(self, failures: int) -> None:
        self.run(streams.count_entries(self._group, xack_failures=failures))

    def check_schema(self) -> None:
        """Fail at the start for a missing queue or a login without the functions."""
        for queue in self._settings.queues:
            if self._known(queue) is None and self._settings.queues != EVERY_QUEUE:
                LOG.warning(
                    "tenant %s has no queue %s: its messages become dead letters",
                    self._settings.tenant, queue,
                )  # fmt: skip
