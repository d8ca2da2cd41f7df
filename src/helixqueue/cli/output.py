"""`helixq output list | show | get | verify | publish | reconcile | root`."""

from __future__ import annotations

import asyncio
import uuid
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from helixqueue.cli import batch_ref, connection, operation, options, shapes, show
from helixqueue.cli.command import command
from helixqueue.cli.derived_commands import verb
from helixqueue.cli.options import argument, option
from helixqueue.engine import outputs as calls
from helixqueue.errors import Refused
from helixqueue.operations import outputs
from helixqueue.outputs.publish import Publisher
from helixqueue.outputs.reconcile import reconcile
from helixqueue.outputs.scratch import output_path
from helixqueue.outputs.store import digest
from helixqueue.outputs.stores import open_store

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from uuid import UUID

    from helixqueue.operations.batches import Operations
    from helixqueue.operations.instructions import Instructions
    from helixqueue.records.output import ManifestRow, OutputRow, OutputTask
    from helixqueue.records.page import Page

app = typer.Typer(
    no_args_is_help=True,
    help="Output files: list, show, get, verify, publish and more.",
)
PAGE = 500
NO_SERVICE = "it needs an operator's login; run it with --dsn or --data"


def register(parent: typer.Typer) -> None:
    parent.add_typer(app, name="output")


@verb(app, "list", outputs.list_manifests, example="helixq output list --state blocked")
def _list(page: Page[ManifestRow]) -> None:
    show.table(
        ("batch", "queue", "state", "files", "bytes", "attempt", "worker", "folder", "problem"),
        [
            (
                str(row.batch_id), row.queue, row.state, str(row.files or ""), str(row.bytes or ""),
                str(row.attempt), row.worker, row.folder, row.problem or "",
            )
            for row in page.rows
        ],
        ["bold red" if row.state == "blocked" else "" for row in page.rows],
        empty="no outputs",
        optional=("attempt", "bytes"),
    )  # fmt: skip


def _outputs_of(
    operations: Operations,
    *,
    batch_id: str,
    **values: Any,  # noqa: ANN401
) -> Instructions[Page[OutputRow]]:
    found = yield from batch_ref.find(operations, batch_id, queue=None, revision=None)
    return (yield from outputs.list_outputs(operations, found, **values))


@verb(
    app,
    "show",
    outputs.list_outputs,
    example="helixq output show Sample-07",
    instead=_outputs_of,
    more={"batch_id": options.BatchRef},
)
def _show(page: Page[OutputRow]) -> None:
    show.table(
        ("path", "bytes", "sha256", "uri"),
        [(row.path, str(row.size), row.sha256, row.uri) for row in page.rows],
        optional=("sha256",),
    )


@command(app, "get", example="helixq output get Sample-07 --to ./results")
@connection.service_or_database
def _get(
    batch: options.BatchRef,
    *,
    to: Annotated[Path, option("--to DIRECTORY", "Where to write the files.")],
    tenant: options.Tenant = None,
    as_json: options.AsJson = False,
) -> None:
    """Download the published files of a batch.

    Compares each with its SHA-256. Needs the credentials of the destination in the environment.
    """
    files = []
    for row in _files(batch, tenant):
        file = output_path(to, row.path)  # a service must not choose other places
        if file.exists():
            raise Refused(f"expected a new file, {file} exists")
        part = file.with_name(f".{uuid.uuid4()}.part")
        try:
            with part.open("xb") as copy:
                _demand_same(row, copy.write)
            part.rename(file)
        finally:
            part.unlink(missing_ok=True)
        files.append(str(file))
        if not as_json:
            show.line(str(file))
    if as_json:
        show.as_json({"files": files})


@command(app, "verify", example="helixq output verify Sample-07")
@connection.service_or_database
def _verify(
    batch: options.BatchRef, *, tenant: options.Tenant = None, as_json: options.AsJson = False
) -> None:
    """Compare published files with their manifest.

    Reads each file whole. Exit code 1 names the first that is missing or differs.
    """
    count = 0
    for row in _files(batch, tenant):
        _demand_same(row)
        count += 1
    if as_json:
        show.as_json({"files": count})
    else:
        show.line(f"{count} files are as their manifest says")


def _demand_same(row: OutputRow, write: Callable[[bytes], object] = len) -> None:
    """Read the file once, give each block to `write`, and compare."""
    directory, _, name = row.uri.rpartition("/")
    try:
        size, sha256 = digest(open_store(directory), name, write)
    except FileNotFoundError:
        show.line(f"{row.uri}: missing")
        raise typer.Exit(1) from None
    if (size, sha256.hex()) != (row.size, row.sha256):
        show.line(f"{row.uri}: expected {row.size} bytes with SHA-256 {row.sha256}, got {size} "
                  f"bytes with {sha256.hex()}")  # fmt: skip
        raise typer.Exit(1)


def _files(batch: str, tenant: str | None) -> Iterator[OutputRow]:
    with connection.open_target() as target:
        ask = operation.Runner(target, tenant, None, every_tenant=True)
        after = None
        while True:
            page = ask(partial(_outputs_of, batch_id=batch, after=after, limit=PAGE))
            yield from page.rows
            after = page.next
            if after is None:
                return


@command(app, "publish", example="helixq output publish Sample-07")
@connection.database_only("it works as a publisher; run it with --dsn or --data")
def _publish(
    batch: Annotated[str | None, argument("BATCH", "Batch; without it, all that is due.")] = None,
    *,
    tenant: options.Tenant = None,
    as_json: options.AsJson = False,
) -> None:
    """Publish granted files that no worker published.

    A named batch is tried again although it is blocked. What was erased is removed. Needs the
    credentials of the destination in the environment.
    """
    ids: list[UUID] | None = None
    if batch is not None:
        with connection.open_target() as target:
            ask = operation.Runner(target, tenant, None, every_tenant=True)
            found = ask(lambda ops: batch_ref.find(ops, batch, queue=None, revision=None))
            ids = [row.manifest for row in ask(
                lambda ops: outputs.list_manifests(ops, batch=found, limit=PAGE)).rows]  # fmt: skip
    with connection.open_database() as database:

        async def run(call: Any) -> Any:  # noqa: ANN401
            return await asyncio.to_thread(database.run, call)

        async def publish() -> list[OutputTask]:
            publisher = Publisher(run, calls)
            tasks = taken = await publisher.publish(ids)
            while ids is None and taken:
                taken = await publisher.publish()
                tasks += taken
            return tasks

        tasks = asyncio.run(publish())
        states = {}
        for task in tasks:
            page = database.run(calls.manifests(ids=[task.batch_id]))
            [state] = [row.state for row in page.rows if row.manifest == task.manifest]
            states[str(task.batch_id)] = state
    if as_json:
        show.as_json(states)
    else:
        for batch_id, state in states.items():
            show.line(f"batch {batch_id}: {state}")
    if {"granted", "blocked", "removing"} & set(states.values()):
        raise typer.Exit(1)


@command(app, "reconcile", example="helixq output reconcile s3://lab/runs")
@connection.database_only(NO_SERVICE)
def _reconcile(
    uri: Annotated[str, argument("URI", "Destination, such as s3://bucket/prefix.")],
    *,
    remove: Annotated[
        bool, option("--remove", "Remove the staging that no attempt needs.")
    ] = False,
    as_json: options.AsJson = False,
) -> None:
    """Compare what is at a destination with the database.

    Lists staging that no attempt needs, such as that of a database that was restored, and files
    that no completed batch published. Exit code 1 if there are any. Needs the credentials of the
    destination in the environment.
    """
    with connection.open_database() as database:
        store = open_store(uri)
        found = reconcile(store, uri, database.run)
    for row in found.staging if remove else ():
        store.remove_staging(row.name.partition("/")[2])
    if as_json:
        show.as_json(shapes.plain(found))
    else:
        rows = [("staging", f"{uri}/{row.name}", str(row.bytes)) for row in found.staging]
        rows += [("file", f"{uri}/{row.name}", str(row.bytes)) for row in found.files]
        show.table(("kind", "uri", "bytes"), rows, empty=f"{uri} is as the database says")
    if found.files or (found.staging and not remove):
        raise typer.Exit(1)


@command(app, "root", example='helixq output root s3://lab/runs --reason "new store"')
@connection.database_only(NO_SERVICE)
def _root(
    uri: Annotated[str, argument("URI", "Root, such as s3://bucket/prefix or file:///srv/out.")],
    *,
    reason: options.Reason,
    remove: Annotated[bool, option("--remove", "Remove the root; queues keep theirs.")] = False,
    stored_at: Annotated[
        str | None, option("--stored-at URI", "Where runs find what they name below this root.")
    ] = None,
    inputs: Annotated[bool, option("--inputs", "Only for inputs of runs.")] = False,
    tenant: options.Tenant = None,
    actor: options.Actor = None,
    as_json: options.AsJson = False,
) -> None:
    """Allow output files below a root.

    Runs also read their inputs there. For queues of the tenant; `--tenant '*'` is for all tenants.
    Needs an operator's login. The change is recorded with its reason.
    """
    with connection.open_database() as database:
        name = tenant if tenant == connection.EVERY_TENANT else (
            connection.tenant_to_change(database, tenant)
        )  # fmt: skip
        call = calls.set_root(
            tenant=name,
            uri=uri,
            reason=reason,
            removed=remove,
            stored_at=stored_at,
            is_input=inputs,
            actor=actor,
        )
        changed = database.run(call)
    if as_json:
        show.as_json({"uri": uri, "tenant": name, "removed": remove, "changed": changed})
    else:
        done = "removed" if remove else "added"
        show.line(f"{uri}: {done if changed else 'as it was'}")
