"""How a command starts a run: the spec, the workers that can run it, its datums."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from helixqueue.cli import show
from helixqueue.errors import NotPermitted, Refused
from helixqueue.failpoints import failpoint
from helixqueue.identity import derive_key, public_id
from helixqueue.operations import run_calls, runs
from helixqueue.operations.workers import list_workers
from helixqueue.runs.spec import DEFAULT_QUEUE, PFS_LABEL, RunSpec, load_spec
from helixqueue.runs.spool import write_spool

if TYPE_CHECKING:
    from collections.abc import Iterator
    from uuid import UUID

    from helixqueue.cli.operation import Runner
    from helixqueue.operations.batches import Operations
    from helixqueue.operations.instructions import Instructions
    from helixqueue.records.run import RunDetail, RunProgress


def read_text(file: str) -> str:
    """The text of a file, or of standard input."""
    return sys.stdin.read() if file == "-" else Path(file).read_text(encoding="utf-8")


def read_spec(
    text: str, *, egress: str | None = None, queue: str | None = None, pfs: bool = True
) -> RunSpec:
    """The spec of a file with what the command says otherwise, checked again."""
    spec = load_spec(text)
    if egress is not None:
        spec = spec.model_copy(update={"egress": spec.egress.model_copy(update={"uri": egress})})
    changes: dict[str, Any] = {} if queue is None else {"queue": queue}
    changes |= {} if pfs else {"pfs": False}
    return load_spec(spec.model_copy(update=changes).as_run())


def demand_pfs(spec: RunSpec, ask: Runner, *, examine: bool) -> None:
    """Refuse a run that needs /pfs where no worker can show it.

    While no worker is alive, `examine` asks this machine instead.
    """
    if not spec.pfs:
        return
    try:
        page = ask(lambda operations: list_workers(operations, limit=500))
    except NotPermitted:  # without the scope read; such batches wait for a worker that can
        return
    alive = [row for row in page.rows if row.status == "alive"]
    labels: list[Any] = [row.free.get("labels") or {} for row in alive]
    if any(PFS_LABEL in each for each in labels):
        return
    if alive:
        why = f"none of {len(alive)} workers can"
    elif examine:
        from helixqueue.worker.private_mounts import problem  # noqa: PLC0415 - only for /pfs

        found = problem()
        if found is None:
            return
        why = f"this machine cannot: {found}"
    else:
        return
    raise Refused(
        f"expected workers that show /pfs to commands, {why}; helixq doctor explains. Start "
        "`helixq work --runs` on one that can, or use --no-pfs: HELIX_IN and HELIX_OUT then name "
        "the directories"
    )


def start(ask: Runner, spec: RunSpec, received: str, key: str, spool: Path) -> RunProgress:
    """Expand the spec into the spool, and submit its datums."""
    roots = {row.uri: row.stored_at for row in ask(runs.list_roots).rows}
    with show.bar("expanding", "datums", None) as update:
        written = write_spool(spec, roots, spool, lambda _phase, count: update(count, count))
    failpoint("run.spooled")
    if not written.datums:
        globs = ", ".join(f"{atom.uri} {atom.glob}" for atom in spec.input.atoms())
        show.warning(f"no input matches {globs}: the run has no datums, and is done")

    def read(first: int) -> Iterator[dict[str, Any]]:
        for datum in written.read(first):
            inputs = [{"uri": item.uri, "path": item.path} for item in datum.inputs]
            yield {"name": datum.name, "inputs": inputs}

    def submit(operations: Operations) -> Instructions[RunProgress]:
        queue = spec.queue or DEFAULT_QUEUE
        yield from operations.known(queue, create=True)
        with show.bar("queuing", "datums", written.datums) as update:
            begun = yield from run_calls.submit_run(
                operations,
                read=read,
                progress=lambda count: update(count, count),
                key=key,
                name=spec.pipeline.name,
                digest=written.digest,
                datums=written.datums,
                spec=spec.as_run(),
                received=received,
                queue=queue,
                egress=spec.egress.uri,
                layout=spec.egress.layout,
                tries=spec.datum_tries,
                timeout_seconds=spec.job_timeout_seconds,
                priority=5 if spec.priority is None else spec.priority,
                requires=spec.requires() or None,
            )
        return begun

    return ask(submit)


def batch_of(run: RunDetail, datum: str) -> UUID:
    """The id of the batch of a datum."""
    return public_id(derive_key(run.tenant, run.queue, (run.name, datum)))
