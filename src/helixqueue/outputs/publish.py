"""Gives granted files their final names, and removes what has no reader.

Every step may be repeated, also by two processes at once: a name is created or found with the same
content, and removing what is gone succeeds.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Any

from helixqueue.errors import HelixError
from helixqueue.failpoints import failpoint
from helixqueue.outputs.staging import in_threads
from helixqueue.outputs.stores import NameOccupied, digest, open_store, staged_name

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
    from uuid import UUID

    from helixqueue.outputs.stores import Store
    from helixqueue.records.output import OutputTask, TaskFile

LOG = logging.getLogger("helixqueue.outputs")
TASKS_MAX = 20  # of one call


class Publisher:
    """Runs tasks of one database or service: `run` executes a call of `calls`."""

    def __init__(
        self,
        run: Callable[[Any], Awaitable[Any]],
        calls: Any,
        **options: Any,
    ) -> None:
        self._run = run
        self._calls = calls
        self._options = options

    async def publish(self, manifests: Sequence[UUID] | None = None) -> list[OutputTask]:
        """Do the tasks that are due, or those of `manifests`; returns those that were taken."""
        tasks: list[OutputTask] = await self._run(
            self._calls.take_outputs(limit=TASKS_MAX, manifests=manifests, **self._options)
        )
        for task in tasks:
            try:
                await self._do(task)
            except HelixError as error:  # another process, or the next time
                LOG.warning("outputs of batch %s: %s failed: %s", task.batch_id, task.task, error)
            except OSError as error:
                LOG.warning("outputs of batch %s: %s failed: %s", task.batch_id, task.task, error)
        return tasks

    async def _do(self, task: OutputTask) -> None:
        store = await asyncio.to_thread(open_store, task.destination)
        if task.task == "publish":
            if not await self._publish(task, store):
                return
        elif task.task == "remove":
            await asyncio.to_thread(store.remove_staging, task.manifest)
            await self._remove(task, store)
            await self._end(task, "removed")
            return
        await asyncio.to_thread(store.remove_staging, task.manifest)
        await self._end(task, "cleaned")

    async def _publish(self, task: OutputTask, store: Store) -> bool:
        """Publish and seal; false if the manifest is blocked."""

        def name(file: TaskFile) -> None:
            staged = staged_name(task.manifest, file.number)
            store.publish(staged, file.name, file.size, file.sha256)
            failpoint("outputs.publish")

        count = 0
        try:
            async for page in self._pages(task):
                await in_threads(name, page)
                count += len(page)
        except NameOccupied as error:
            LOG.error("outputs of batch %s are blocked: %s", task.batch_id, error)  # noqa: TRY400
            await self._end(task, "blocked", problem=str(error))
            return False
        await asyncio.to_thread(store.sync)
        failpoint("outputs.seal")
        await self._end(task, "sealed", files=count)
        failpoint("outputs.sealed")
        return True

    async def _remove(self, task: OutputTask, store: Store) -> None:
        def remove(file: TaskFile) -> None:
            # Before the seal, an object may be another's.
            if task.sealed or _is_ours(store, file):
                store.remove(file.name)

        async for page in self._pages(task):
            await in_threads(remove, page)

    async def _pages(self, task: OutputTask) -> AsyncIterator[list[TaskFile]]:
        after = ""
        while page := await self._run(
            self._calls.output_files(manifest=task.manifest, after=after, **self._options)
        ):
            yield page
            after = page[-1].path

    async def _end(self, task: OutputTask, outcome: str, **details: Any) -> None:
        await self._run(
            self._calls.end_outputs(
                manifest=task.manifest, outcome=outcome, **details, **self._options
            )
        )


def _is_ours(store: Store, file: TaskFile) -> bool:
    try:
        return digest(store, file.name) == (file.size, file.sha256)
    except (FileNotFoundError, NotADirectoryError):
        return False
