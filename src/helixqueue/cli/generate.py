"""`helixq generate systemd | kubernetes`: text to look through, keep in a repository, and apply."""

from __future__ import annotations

import json
import re
import shutil
import sys
from hashlib import sha256
from importlib.resources import files
from pathlib import Path
from typing import Annotated, Any

import typer

from helixqueue import __version__
from helixqueue.cli import connection, show
from helixqueue.cli.command import command
from helixqueue.errors import Refused
from helixqueue.identity import check_name

app = typer.Typer(no_args_is_help=True, help="Files for running it: systemd, kubernetes.")

UNITS = ("helixq-migrate.service", "helixq-service.service", "helixq-worker@.service")
# What stands in a unit or a manifest as a word of its own, and can be nothing else.
_FORMS = {
    "user": r"[a-z_][a-z0-9_-]{0,30}",
    "host": r"[A-Za-z0-9.:-]{1,253}",
    "path": r"/[A-Za-z0-9._/+-]{1,4000}",
    "namespace": r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?",
    "image": r"[a-z0-9][a-z0-9._/:-]{0,254}(@sha256:[0-9a-f]{64})?",
}

Write = Annotated[
    Path | None,
    typer.Option("--write", metavar="DIR", help="Write the files there.", show_default=False),
]
Slots = Annotated[int, typer.Option("--slots", min=1, max=1000, help="Batches at a time.")]
Grace = Annotated[
    int, typer.Option("--grace", min=0, max=86_400, help="Seconds for what runs when stopped.")
]
AsJson = Annotated[bool, typer.Option("--json", help="The files as JSON: name and text.")]

WHY = "generate writes files, and asks no service and no database"


def register(parent: typer.Typer) -> None:
    parent.add_typer(app, name="generate")


@app.command("systemd")
@connection.without_service(WHY)
def _systemd(
    *,
    helixq: Annotated[
        str | None,
        typer.Option("--helixq", metavar="PATH", help="The program, else this one."),
    ] = None,
    user: Annotated[str, typer.Option("--user", help="Whom it runs as.")] = "helixq",
    config: Annotated[
        str, typer.Option("--config", metavar="DIR", help="Where the .env files are.")
    ] = "/etc/helixq",
    host: Annotated[str, typer.Option("--host", help="The service's address.")] = "127.0.0.1",
    port: Annotated[int, typer.Option("--port", min=1, max=65535)] = 8080,
    slots: Slots = 4,
    grace: Grace = 60,
    write: Write = None,
    as_json: AsJson = False,
) -> None:
    """Units for systemd: migrate, the service, and workers by queue.

    docs/deploy/systemd.md says what to do with them.
    """
    values = {
        "helixq": _word("path", "--helixq", helixq or _this_program()),
        "user": _word("user", "--user", user),
        "config": _word("path", "--config", config),
        "host": _word("host", "--host", host),
        "port": str(port),
        "slots": str(slots),
        "grace": str(grace),
        "stop": str(grace + 30),
    }
    _give({name: _filled(name, values) for name in UNITS}, write, as_json=as_json)


@app.command("kubernetes")
@connection.without_service(WHY)
def _kubernetes(
    *,
    image: Annotated[str, typer.Option("--image", help="An image that has helixq in its PATH.")],
    namespace: Annotated[str, typer.Option("--namespace", help="Where it runs.")] = "helixq",
    replicas: Annotated[int, typer.Option("--replicas", min=1, max=100)] = 2,
    queue: Annotated[
        list[str] | None,
        typer.Option("--queue", help="Workers for this queue; again for more.", show_default=False),
    ] = None,
    program: Annotated[
        str, typer.Option("--exec", metavar="COMMAND", parser=command, help="What the workers run.")
    ] = "/app/work",
    slots: Slots = 1,
    grace: Grace = 60,
    write: Write = None,
    as_json: AsJson = False,
) -> None:
    """Manifests for Kubernetes: migrate, service, workers by queue.

    docs/deploy/kubernetes.md says what to do with them.
    """
    values = {
        "version": __version__,
        "release": __version__.replace(".", "-").replace("+", "-"),
        "image": _word("image", "--image", image),
        "namespace": _word("namespace", "--namespace", namespace),
        "replicas": str(replicas),
        "program": json.dumps(program),
        "slots": str(slots),
        "grace": str(grace),
        "stop": str(grace + 30),
    }
    text = _filled("kubernetes.yaml", values)
    for name in queue or []:
        worker = _label(check_name("queue", name))
        text += _filled("kubernetes-worker.yaml", values | {"queue": f'"{name}"', "worker": worker})
    _give({"helixq.yaml": text}, write, as_json=as_json)


def _label(queue: str) -> str:
    """A queue's name as Kubernetes takes one; no two queues have the same."""
    plain = re.sub(r"[^a-z0-9-]", "-", queue)[:30].strip("-")
    return plain if plain == queue else f"{plain}-{sha256(queue.encode()).hexdigest()[:8]}"


def _filled(name: str, values: dict[str, str]) -> str:
    text = (files("helixqueue.cli") / "templates" / name).read_text(encoding="utf-8")
    # Not string.Template: `$` and `%` mean something to systemd and to Kubernetes.
    return re.sub(r"@\{([a-z]+)\}", lambda found: values[found[1]], text)


def _give(made: dict[str, str], directory: Path | None, *, as_json: bool) -> None:
    if directory is not None:
        directory.mkdir(parents=True, exist_ok=True)
        for name, text in made.items():
            (directory / name).write_text(text, encoding="utf-8")
    if as_json:
        told: list[dict[str, Any]] = [{"name": n, "text": text} for n, text in made.items()]
        show.as_json({"files": told})
    elif directory is not None:
        for name in made:
            show.line(str(directory / name))
    else:
        heads = len(made) > 1
        shown = [f"# {name}\n{text}" if heads else text for name, text in made.items()]
        sys.stdout.write("\n".join(shown))


def _word(form: str, option: str, value: str) -> str:
    if not re.fullmatch(_FORMS[form], value):
        raise Refused(f"{option}: expected a {form} such as fits a file, got {value!a}")
    return value


def _this_program() -> str:
    beside = Path(sys.executable).with_name("helixq")  # where pip puts it
    found = shutil.which(sys.argv[0]) or shutil.which("helixq") or shutil.which(beside)
    if found is None:
        raise Refused("expected helixq in the PATH; name it with --helixq")
    return str(Path(found).absolute())
