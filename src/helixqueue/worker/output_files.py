"""The output files of a worker: staged and registered before the settlement, published after it."""

from __future__ import annotations

import asyncio
import logging
import shutil
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from helixqueue.errors import HelixError, LeaseLost, Refused, Unavailable
from helixqueue.failpoints import failpoint
from helixqueue.log.events import log_name_conflict, log_write
from helixqueue.outputs.publish import Publisher
from helixqueue.outputs.scratch import survey
from helixqueue.outputs.staging import stage
from helixqueue.outputs.store import log_prefix
from helixqueue.outputs.stores import open_store
from helixqueue.outputs.threads import in_thread
from helixqueue.transport.protocol import LeaseRef, WriteResult
from helixqueue.worker.outcomes import AttemptFailure, FailureClass, storable
from helixqueue.worker.retry import with_retries

if TYPE_CHECKING:
    from collections.abc import Sequence
    from uuid import UUID

    from helixqueue.outputs.scratch import ScratchFile
    from helixqueue.outputs.store import Store
    from helixqueue.records.output import OutputAnswer, StagedFile
    from helixqueue.transport.protocol import Settlement, Transport
    from helixqueue.worker.attempt import Attempt

LOG = logging.getLogger("helixqueue.worker")
PUBLISH_SECONDS = 5.0  # between two looks for what a worker that crashed left granted


class OutputFiles:
    def __init__(self, transport: Transport, queues: Sequence[str]) -> None:
        self._transport = transport
        self._queues = queues  # of this worker: it has the credentials of their destinations
        self._publishing: set[asyncio.Task[Any]] = set()
        self._is_used = asyncio.Event()

    # Before the settlement.

    async def stage_finished(self, attempt: Attempt) -> None:
        """Stage when the handler has returned; what a transaction of it staged must be all."""
        if attempt.staged is None and attempt.settled_as is None and attempt.unconfirmed is None:
            attempt.handler_runs = True  # it can be cancelled like a handler
            try:
                await self.stage(attempt)
            finally:
                attempt.handler_runs = False
        elif attempt.staged is not None and await self._survey(attempt) != attempt.staged:
            raise _failure("files were written after the lease was settled")

    async def stage(self, attempt: Attempt) -> None:
        """Copy the files to the staging prefix, and register them under the token."""
        if attempt.staged is not None:
            if await self._survey(attempt) != attempt.staged:
                raise _failure("files were written after they were staged")
            return
        files = await self._survey(attempt)
        if files:
            size = sum(file.size for file in files)
            opened = await self._call(attempt, "open_outputs", size=size)
            if opened.destination is None or opened.manifest is None:
                raise _failure(f"queue {attempt.row.queue} has no destination for output files")
            store = await in_thread(open_store, opened.destination)
            try:
                await self._fill(attempt, store, opened.manifest, files)
            except BaseException:
                with suppress(HelixError, OSError):
                    await in_thread(store.remove_staging, opened.manifest)
                raise
            attempt.manifest = opened.manifest
        attempt.staged = files

    async def _survey(self, attempt: Attempt) -> list[ScratchFile]:
        directory = attempt.output_directory
        if directory is None:
            return []
        try:
            return await in_thread(survey, directory)
        except Refused as error:
            raise _failure(str(error)) from None

    async def _fill(
        self, attempt: Attempt, store: Store, manifest: UUID, files: Sequence[ScratchFile]
    ) -> None:
        try:
            staged = await stage(store, manifest, files)
        except Unavailable:
            raise
        except (OSError, HelixError) as error:
            raise AttemptFailure(FailureClass.OUTPUTS, f"staging failed: {error}") from error
        failpoint("outputs.register")
        await self._register(attempt, staged)
        failpoint("outputs.registered")

    async def _register(self, attempt: Attempt, staged: Sequence[StagedFile]) -> None:
        size = self._transport.output_calls.PAGE_FILES
        for first in range(0, len(staged), size):
            page = staged[first : first + size]
            is_last = first + size >= len(staged)
            try:
                await self._call(
                    attempt,
                    "register_outputs",
                    first=first,
                    staged=page,
                    files=len(staged) if is_last else None,
                )
            except Refused as error:
                if isinstance(error, LeaseLost):
                    raise
                raise _failure(str(error)) from error

    async def _call(self, attempt: Attempt, name: str, **details: Any) -> OutputAnswer:
        """Make a call under the token of the attempt."""
        row, worker = attempt.row, self._transport.worker
        call = getattr(self._transport.output_calls, name)(
            worker=worker, lease=LeaseRef(row.batch, row.token), **details
        )
        answer: OutputAnswer = await with_retries(
            self._transport.run, call, seconds=row.lease_seconds
        )
        if answer.answer == "conflict":
            log_name_conflict(worker, row, answer.owner, answer.note)
            raise _failure(answer.note or "a name belongs to another batch")
        if answer.answer in {"refused", "illegal"}:
            result = WriteResult(row.batch, answer.answer, answer.owner, None, late=False)
            log_write(worker, "outputs", row, result)
            raise LeaseLost(f"the batch is {answer.state}", owner=answer.owner)
        return answer

    async def keep_logs(self, attempt: Attempt, failed: Settlement) -> Settlement:
        """Copy the output of a program to the destination of its queue, if there is one.

        It is no output file: it is kept of attempts that failed, until the batch is removed.
        """
        if attempt.log_directory is None or attempt.stop_kind not in {None, "timed out"}:
            return failed
        try:
            opened = await self._call(attempt, "open_outputs")
            if opened.destination is None:
                return failed
            store = await in_thread(open_store, opened.destination)
            for file in sorted(attempt.log_directory.iterdir()):
                name = f"{log_prefix(opened.manifest)}/{file.name}"
                await in_thread(store.stage, str(file), name)
        except (HelixError, AttemptFailure, OSError) as error:
            LOG.warning("batch %s: its log is not kept: %s", attempt.row.batch_id, error)
            return failed
        address = f"{opened.destination}/{log_prefix(opened.manifest)}"
        detail = storable(f"{failed.detail}\nlog: {address}")
        return failed._replace(detail=detail)

    async def remove_directories(self, attempt: Attempt) -> None:
        for directory in attempt.temporary:
            await in_thread(shutil.rmtree, directory, ignore_errors=True)

    # After it.

    def publish(self, manifest: UUID) -> None:
        """Publish what the settlement granted, in the background."""
        if not self._transport.publishes:
            return
        self._is_used.set()
        task = asyncio.create_task(self._publish([manifest]))
        self._publishing.add(task)
        task.add_done_callback(self._publishing.discard)

    async def publish_due(self) -> None:
        """Publish also what other workers left granted, once this worker had outputs of its own."""
        await self._is_used.wait()
        while True:
            await asyncio.sleep(PUBLISH_SECONDS)
            await self._publish(None)

    async def _publish(self, manifests: Sequence[UUID] | None) -> None:
        calls = self._transport.output_calls
        publisher = Publisher(self._transport.run, calls, queues=self._queues)
        with suppress(HelixError):  # else a later look publishes
            await with_retries(publisher.publish, manifests, seconds=60.0)

    async def close(self, seconds: float) -> None:
        """Wait for publications in progress; what is left is for other processes."""
        if self._publishing:
            await asyncio.wait(self._publishing, timeout=max(seconds, 1.0))


def _failure(detail: str) -> AttemptFailure:
    """Another attempt would fail as well."""
    return AttemptFailure(FailureClass.OUTPUTS, detail, permanent=True)
