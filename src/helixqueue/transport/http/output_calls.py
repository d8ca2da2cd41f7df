"""The calls of a worker about its output files (`helixqueue.engine.outputs`), over HTTP.

Publication needs a database connection: the service publishes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final
from uuid import UUID

from helixqueue.records.output import OutputAnswer
from helixqueue.transport.http.call import HttpCall, at, post
from helixqueue.transport.http.calls import lease_text

if TYPE_CHECKING:
    from collections.abc import Sequence

    from helixqueue.records.lease import LeaseRef
    from helixqueue.records.output import StagedFile

PAGE_FILES: Final = 500  # whose paths fit in one request, each with 900 bytes


def open_outputs(
    *, worker: str, lease: LeaseRef, size: int | None = None
) -> HttpCall[OutputAnswer]:
    body = {"worker": worker, "lease": lease_text(lease), "size": size}
    return post(at("work", "outputs", "open"), body, _read_answer)


def register_outputs(
    *,
    worker: str,
    lease: LeaseRef,
    first: int,
    staged: Sequence[StagedFile],
    files: int | None = None,
) -> HttpCall[OutputAnswer]:
    rows = [{"path": row.path, "size": row.size, "sha256": row.sha256.hex()} for row in staged]
    body = {"worker": worker, "lease": lease_text(lease), "first": first, "staged": rows}
    if files is not None:
        body["files"] = files
    return post(at("work", "outputs", "register"), body, _read_answer)


def _read_answer(document: dict[str, Any]) -> OutputAnswer:
    manifest = document["manifest"]
    return OutputAnswer(**document | {"manifest": None if manifest is None else UUID(manifest)})
