"""Arguments and options that the commands of `helixq batch` share."""

from __future__ import annotations

from typing import Annotated

import typer

from helixqueue.cli import options
from helixqueue.states import State

Ref = Annotated[
    str, typer.Argument(metavar="BATCH", help="Id (at least 8 characters), key or identity.")
]
Refs = Annotated[
    list[str],
    typer.Argument(metavar="BATCH", help="Ids (at least 8 characters), keys or identities."),
]
InQueue = Annotated[
    str | None, typer.Option("--queue", metavar="NAME", help="Only batches of this queue.")
]
Revision = Annotated[
    str | None,
    typer.Option("--revision", metavar="TEXT", help="Revision, if the identity has several."),
]
Failure = Annotated[
    str | None,
    typer.Option("--failure", metavar="CLASS", help="Only FAILED batches of this failure class."),
]
InIdentity = Annotated[
    str | None,
    typer.Option(
        "--identity", metavar="TEXT", help="Only batches of this identity, in any spelling."
    ),
]
ByWorker = Annotated[
    str | None,
    typer.Option(
        "--worker",
        metavar="NAME",
        help="Only batches that this worker holds; with a finished state, that it finished.",
    ),
]
Since = Annotated[
    str | None,
    typer.Option("--since", metavar="TIME", help=f"From this time, {options.TIME_HELP}."),
]
Until = Annotated[str | None, typer.Option("--until", metavar="TIME", help="Before this time.")]
OptionalRefs = Annotated[
    list[str] | None,
    typer.Argument(metavar="BATCH", help="Ids, keys or identities; omit them to use filters."),
]
ActionLimit = Annotated[
    int | None,
    typer.Option(
        "--limit",
        metavar="N",
        min=1,
        max=options.LIMIT_MAX,
        help="Maximum number of batches that filters select. [default: all]",
    ),
]
DryRun = Annotated[
    bool, typer.Option("--dry-run", help="Show what would happen without changing anything.")
]
InState = Annotated[
    State | None,
    typer.Option("--state", metavar="STATE", case_sensitive=False, help=f"{', '.join(State)}."),
]
InRun = Annotated[
    int | None,
    typer.Option("--run", metavar="N", min=1, max=2**63 - 1, help="Only batches of this run."),
]
