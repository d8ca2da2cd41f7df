"""What `helixq up` prints when it is ready."""

from __future__ import annotations

import os
import pwd
import shlex
import sys
import webbrowser
from functools import partial
from shutil import which
from typing import TYPE_CHECKING, Any

from helixqueue.cli import connection, options, show
from helixqueue.engine import tokens
from helixqueue.identity import is_name
from helixqueue.postgres.database import Database
from helixqueue.up.intake import xadd_command

if TYPE_CHECKING:
    from helixqueue.cli.up_options import UpOptions
    from helixqueue.intake.settings import IntakeSettings
    from helixqueue.up.databases import Databases
    from helixqueue.up.directory_lock import DirectoryLock


def facts_of(
    invocation: UpOptions, found: Databases, url: str, intake: IntakeSettings | None
) -> dict[str, Any]:
    """The contents of the banner, with a new login link."""
    code = tokens.new_token("hl_")
    offer = partial(
        tokens.offer_login, tenant=invocation.tenant, code_hash=code.hash, actor="helixq up"
    )
    with Database.connect(found.dsn, tenant=invocation.tenant) as database:
        until = database.run(offer(person=_person()))
        if until is None:  # a token of a program has that name
            until = database.run(offer())
    return {
        "url": url,
        "login": f"{url}/login?code={code.token}",
        "login_until": None if until is None else until.isoformat(timespec="seconds"),
        "tenant": invocation.tenant,
        "data": None if found.data is None else str(found.data),
        "dsn": _dsn_of_programs(found),
        "redis": found.redis,
        "stream": None if intake is None else intake.stream,
        "xadd": None if intake is None else xadd_command(intake),
        "workers": invocation.workers,
        "next": _next_command(invocation, found),
        "pid": os.getpid(),
    }


def _person() -> str | None:
    """The user of the operating system, if people can have that name."""
    try:
        name = pwd.getpwuid(os.geteuid()).pw_name.lower()
    except KeyError:  # a container may run as a uid without a user
        return None
    return name if is_name(name) else None


def _next_command(invocation: UpOptions, found: Databases) -> str:
    """What to try next, as it can be typed in this directory."""
    # `make run` starts the program of a virtual environment that is not active.
    path = os.path.relpath(sys.argv[0])
    program = "helixq" if which("helixq") else sys.argv[0] if path.startswith("..") else path
    if found.data is None:
        dsn = shlex.quote(connection.without_password(found.dsn))
        return f"{program} queue list --watch 2 --dsn {dsn}"
    is_default = found.data == connection.data_directory(None).resolve()
    data = "" if is_default else f" --data {shlex.quote(os.path.relpath(found.data))}"
    if invocation.demo or invocation.app is not None:
        return f"{program} queue list --watch 2{data}"
    is_default = invocation.tenant == options.DEFAULT_TENANT
    tenant = "" if is_default else f" --tenant {invocation.tenant}"
    return f"{program} submit basecall Sample-1 --create{data}{tenant}"


def _dsn_of_programs(found: Databases) -> str | None:
    """The login of workers and programs; the one of an embedded database has no password."""
    if found.work_dsn is None or found.data is not None:
        return found.work_dsn
    return connection.without_password(found.work_dsn)


def print_banner(
    facts: dict[str, Any], lock: DirectoryLock | None, *, as_json: bool, opens: bool
) -> None:
    if lock is not None:
        lock.publish(facts["url"], facts["tenant"])
    if opens:
        webbrowser.open(facts["login"])
    if as_json:
        show.json_line(f"HelixQueue is up at {facts['url']}", **facts)
    else:
        show.line("\nOpen the dashboard, once and within 15 minutes:", "bold green")
        # A line of its own, which fits 80 columns and can be copied.
        show.line(facts["login"])
        show.line(f"HelixQueue is up at {facts['url']}, tenant {facts['tenant']}")
        for name in ("data", "dsn", "redis", "workers"):
            if facts[name]:
                show.line(f"{name}: {facts[name]}")
        if facts["stream"] is not None:
            show.line(f"stream: {facts['stream']}; submit with:")
            show.line(facts["xadd"])
        show.line("Ctrl-C stops it; all data is kept. Next, in another terminal:")
        show.line(f"{facts['next']}\n")
    sys.stdout.flush()
