"""Gives granted files their final names, and removes what has no reader.

Every step may be repeated, also by two processes at once: a name is created or found with the same
content, and removing what is gone succeeds.
"""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from helixqueue.errors import HelixError
from helixqueue.failpoints import failpoint
from helixqueue.outputs.store import (
    LOGS,
    NameOccupied,
    StoreUnavailable,
    digest,
    staged_name,
)
from helixqueue.outputs.stores import open_store
from helixqueue.outputs.threads import in_thread, in_threads

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
    from uuid import UUID

    from helixqueue.outputs.store import Store
    from helixqueue.records.output import ManifestState, OutputTask, TaskFile

LOG = logging.getLogger("helixqueue.outputs")
TASKS_MAX = 20  # of one call


class Publisher:
    """Runs tasks of one database or service: `run` executes a call of `calls`.

    `queues`: take tasks of these only.
    """

    def __init__(
        self,
        run: Callable[[Any], Awaitable[Any]],
        calls: Any,
        *,
        queues: Sequence[str] | None = None,
        **options: Any,
    ) -> None:
        self._run = run
        self._calls = calls
        self._queues = queues
        self._options = options

    async def publish(self, manifests: Sequence[UUID] | None = None) -> list[OutputTask]:
        """Do the tasks that are due, or those of `manifests`; returns those that were taken."""
        tasks: list[OutputTask] = await self._run(
            self._calls.take_outputs(
                limit=TASKS_MAX, manifests=manifests, queues=self._queues, **self._options
            )
        )
        groups: dict[str, list[OutputTask]] = {}
        for task in tasks:
            groups.setdefault(task.destination, []).append(task)
        await asyncio.gather(*map(self._do_all, groups.values()))
        return tasks

    async def _do_all(self, tasks: Sequence[OutputTask]) -> None:
        """The tasks of one destination: it is tried once, and does not delay others."""
        unreachable: StoreUnavailable | None = None
        for task in tasks:
            with suppress(HelixError):  # another process, or the next time
                try:
                    if unreachable is not None:
                        raise unreachable
                    await self._do(task)
                except StoreUnavailable as error:
                    unreachable = error
                    await self._fail(task, error)
                except (HelixError, OSError) as error:
                    await self._fail(task, error)

    async def _do(self, task: OutputTask) -> None:
        store = await in_thread(open_store, task.destination)
        await in_thread(store.require)
        if task.task == "publish" and await self._publish(task, store) != "sealed":
            return
        await in_thread(store.remove_staging, task.manifest)
        if task.task == "remove":
            await in_thread(store.remove_staging, f"{LOGS}/{task.manifest}")
            async for page in self._pages(task):
                await _remove(store, page, sealed=task.sealed)
        await self._end(task, "removed" if task.task == "remove" else "cleaned")

    async def _publish(self, task: OutputTask, store: Store) -> ManifestState:
        """Publish and seal; returns the state of the manifest."""

        def name(file: TaskFile) -> None:
            staged = staged_name(task.manifest, file.number)
            store.publish(staged, file.name, file.size, file.sha256)
            failpoint("outputs.publish")

        count = 0
        page: Sequence[TaskFile] = ()
        try:
            async for page in self._pages(task):
                await in_threads(name, page)
                count += len(page)
            await in_thread(store.sync)
            failpoint("outputs.seal")
            state = await self._end(task, "sealed", files=count)
            failpoint("outputs.sealed")
        except NameOccupied as error:
            LOG.error("outputs of batch %s are blocked: %s", task.batch_id, error)  # noqa: TRY400
            state = await self._end(task, "blocked", problem=str(error))
        except StoreUnavailable:
            raise
        except (HelixError, OSError) as error:
            state = await self._fail(task, error)
        if state in {"removing", "removed"}:
            # They were erased while this process was frozen between reading and creating objects.
            await _remove(store, page, sealed=False)
        return state

    async def _pages(self, task: OutputTask) -> AsyncIterator[list[TaskFile]]:
        after = ""
        while page := await self._run(
            self._calls.output_files(manifest=task.manifest, after=after, **self._options)
        ):
            yield page
            after = page[-1].path

    async def _fail(self, task: OutputTask, error: Exception) -> ManifestState:
        LOG.warning("outputs of batch %s: %s failed: %s", task.batch_id, task.task, error)
        return await self._end(task, "failed", problem=str(error))

    async def _end(self, task: OutputTask, outcome: str, **details: Any) -> ManifestState:
        state: ManifestState = await self._run(
            self._calls.end_outputs(
                manifest=task.manifest, outcome=outcome, **details, **self._options
            )
        )
        return state


async def _remove(store: Store, files: Sequence[TaskFile], *, sealed: bool) -> None:
    def remove(file: TaskFile) -> None:
        # Before the seal, an object may be another's.
        if sealed or _is_ours(store, file):
            store.remove(file.name)

    await in_threads(remove, files)


def _is_ours(store: Store, file: TaskFile) -> bool:
    try:
        return digest(store, file.name) == (file.size, file.sha256)
    except (FileNotFoundError, NotADirectoryError):
        return False
