"""Copies the files of an attempt to the staging prefix of its manifest."""

from __future__ import annotations

from typing import TYPE_CHECKING

from helixqueue.failpoints import failpoint
from helixqueue.outputs.store import staged_name
from helixqueue.outputs.threads import in_thread, in_threads
from helixqueue.records.output import StagedFile

if TYPE_CHECKING:
    from collections.abc import Sequence
    from uuid import UUID

    from helixqueue.outputs.scratch import ScratchFile
    from helixqueue.outputs.store import Store


async def stage(store: Store, manifest: UUID, files: Sequence[ScratchFile]) -> list[StagedFile]:
    """Copy and hash; the place of a file in the list is the name of its copy."""

    def copy(numbered: tuple[int, ScratchFile]) -> StagedFile:
        number, file = numbered
        size, sha256 = store.stage(file.source, staged_name(manifest, number))
        failpoint("outputs.stage")
        return StagedFile(file.path, size, sha256)

    staged = await in_threads(copy, list(enumerate(files)))
    await in_thread(store.sync)
    return staged
