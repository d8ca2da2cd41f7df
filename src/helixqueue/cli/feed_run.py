"""`helixq feed run`: a program for each event of a feed, behind a fence."""

from __future__ import annotations

import shlex
import shutil
import signal
import sys
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated

from helixqueue.cli import connection, options, show
from helixqueue.cli.command import command
from helixqueue.cli.options import argument, option
from helixqueue.client.feed_program import FeedProgram, FeedRunner
from helixqueue.client.sync import HelixQueue
from helixqueue.errors import Refused

if TYPE_CHECKING:
    from collections.abc import Iterator

    import typer


def register(app: typer.Typer) -> None:
    add = connection.database_only("the program runs behind a fence of the database")
    command(app, "run", example='helixq feed run notify --exec "./notify.sh"')(add(_run))


Exec = Annotated[
    str,
    option(
        "--exec COMMAND",
        "Program to run for each event.",
        parser=options.shell_command,
        show_default=False,
    ),
]
UntilIdle = Annotated[bool, option("--until-idle", "Exit when no event is left.")]
Replayable = Annotated[
    bool,
    option("--replayable", "The effect may run again with the same key: after a crash it does."),
]
Lease = Annotated[
    float,
    option("--lease SECONDS", "Until a holder that has stopped counts as lost.", min=1, max=3600),
]


def _run(
    *,
    feed: Annotated[str, argument("FEED", "Name of the feed.")],
    program: Exec,
    until_idle: UntilIdle = False,
    replayable: Replayable = False,
    lease: Lease = 30.0,
    actor: options.Actor = None,
    tenant: options.Tenant = None,
    as_json: options.AsJson = False,
) -> None:
    """Run a program for each event of a feed: once, or in doubt.

    The program gets the event as a JSON file in HELIX_EVENT, its fields in HELIX_ENTITY, HELIX_SEQ
    and HELIX_KIND, and a key for the next system in HELIX_IDEMPOTENCY_KEY. Exit code 0: done. 75:
    nothing happened, run it again later. Any other code, or a crash: in doubt, and the feed waits
    until `fence resolve` decides. One process runs a feed; others wait for it.
    """
    words = shlex.split(program)
    if shutil.which(words[0]) is None:
        raise Refused(f"--exec: expected an executable program, got {words[0]!a}")
    with connection.database_target() as target:
        from helixqueue.postgres.database import Database  # noqa: PLC0415 - a service needs none

        with Database.connect(target.dsn) as database:
            name = connection.tenant_to_change(database, tenant)
        with HelixQueue(target.dsn, name, actor=actor) as helix:
            runner = FeedRunner(
                helix.feed(feed),
                helix.fences,
                FeedProgram(words, sys.stderr if as_json else None),
                lease=lease,
                replayable=replayable,
            )
            with _stopping(runner.stop):
                for event, ran in runner.run(until_idle=until_idle):
                    if as_json:
                        show.as_json(
                            {"key": event.key, "entity": event.entity, "seq": event.seq, "ran": ran}
                        )
                    else:
                        done = "done" if ran else "done before"
                        show.progress(f"{event.entity} {event.seq} {event.kind}: {done}")


@contextmanager
def _stopping(stop: threading.Event) -> Iterator[None]:
    """SIGTERM lets the running program finish, then ends the command."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    previous = signal.signal(signal.SIGTERM, lambda *_: stop.set())
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, previous)
