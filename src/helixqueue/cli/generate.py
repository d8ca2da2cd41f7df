"""`helixq generate systemd | kubernetes | alerts | grafana | schema`: files to review and apply."""

from __future__ import annotations

import json
import re
import shutil
import sys
from hashlib import sha256
from importlib.resources import files
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from helixqueue import __version__
from helixqueue.cli import connection, options, show
from helixqueue.cli.command import command
from helixqueue.cli.options import argument, option
from helixqueue.errors import NotInstalled, Refused
from helixqueue.identity import check_name
from helixqueue.operate import alerts

app = typer.Typer(no_args_is_help=True, help="Files: systemd, kubernetes, alerts, grafana, schema.")

UNITS = ("helixq-migrate.service", "helixq-service.service", "helixq-worker@.service")
# Values that are safe to insert into a unit or a manifest.
_FORMS = {
    "user": r"[a-z_][a-z0-9_-]{0,30}",
    "host": r"[A-Za-z0-9.:-]{1,253}",
    "path": r"/[A-Za-z0-9._/+-]{1,4000}",
    "namespace": r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?",
    "image": r"[a-z0-9][a-z0-9._/:-]{0,254}(@sha256:[0-9a-f]{64})?",
}

Write = Annotated[
    Path | None,
    option("--write DIR", "Write the files to this directory instead of printing them."),
]
Slots = Annotated[int, option("--slots N", "Concurrent batches per worker.", min=1, max=1000)]
Grace = Annotated[
    int,
    option(
        "--grace SECONDS",
        "Time for running batches to finish when the worker is stopped.",
        min=0,
        max=86_400,
    ),
]
Memory = Annotated[
    int,
    option(
        "--memory MIB",
        "Memory of the service: the limit of the system, and of `helixq serve --memory`.",
        min=384,
        max=1024 * 1024,
    ),
]
AsJson = Annotated[bool, option("--json", "Print names and texts as JSON.")]

NO_SERVICE = "generate writes files and uses no service or database"


def register(parent: typer.Typer) -> None:
    parent.add_typer(app, name="generate")


@command(app, "systemd", example="helixq generate systemd --write /etc/systemd/system")
@connection.without_service(NO_SERVICE)
def _systemd(
    *,
    helixq: Annotated[
        str | None, option("--helixq PATH", "Path of the helixq program. [default: this program]")
    ] = None,
    user: Annotated[str, option("--user NAME", "User of the units.")] = "helixq",
    config: Annotated[str, option("--config DIR", "Directory of the .env files.")] = "/etc/helixq",
    host: Annotated[str, option("--host ADDRESS", "Address of the service.")] = "127.0.0.1",
    port: Annotated[int, option("--port PORT", "Port of the service.", min=1, max=65535)] = 8080,
    memory: Memory = 512,
    slots: Slots = 4,
    grace: Grace = 60,
    write: Write = None,
    as_json: AsJson = False,
) -> None:
    """Generate systemd units: migration, service, workers per queue.

    docs/deploy/systemd.md explains how to install them.
    """
    values = {
        "helixq": _checked("path", "--helixq", helixq or _this_program()),
        "user": _checked("user", "--user", user),
        "config": _checked("path", "--config", config),
        "host": _checked("host", "--host", host),
        "port": str(port),
        "memory": str(memory),
        "slots": str(slots),
        "grace": str(grace),
        "stop": str(grace + 30),
    }
    _output({name: _filled(name, values) for name in UNITS}, write, as_json=as_json)


@command(
    app,
    "kubernetes",
    example="helixq generate kubernetes --image registry.example/helixq:0.1.0 --queue basecall",
)
@connection.without_service(NO_SERVICE)
def _kubernetes(
    *,
    image: Annotated[str, option("--image IMAGE", "Container image with helixq in its PATH.")],
    namespace: Annotated[str, option("--namespace NAME", "Namespace.")] = "helixq",
    replicas: Annotated[
        int, option("--replicas N", "Replicas of the service.", min=1, max=100)
    ] = 2,
    memory: Memory = 512,
    queue: Annotated[
        list[str] | None, option("--queue NAME", "Add workers for this queue; repeat for several.")
    ] = None,
    program: Annotated[
        str, option("--exec COMMAND", "Program that the workers run.", parser=options.shell_command)
    ] = "/app/work",
    runs: Annotated[
        list[Path] | None,
        option("--run SPEC", "Add workers for runs of this spec, with its image; repeatable."),
    ] = None,
    slots: Slots = 1,
    grace: Grace = 60,
    write: Write = None,
    as_json: AsJson = False,
) -> None:
    """Generate Kubernetes manifests: migration, service, workers.

    docs/deploy/kubernetes.md explains how to apply them.
    """
    values = {
        "version": __version__,
        "release": __version__.replace(".", "-").replace("+", "-"),
        "image": _checked("image", "--image", image),
        "namespace": _checked("namespace", "--namespace", namespace),
        "replicas": str(replicas),
        "memory": str(memory),
        "program": json.dumps(program),
        "slots": str(slots),
        "grace": str(grace),
        "stop": str(grace + 30),
    }
    text = _filled("kubernetes.yaml", values)
    for name in queue or []:
        worker = _label(check_name("queue", name))
        text += _filled("kubernetes-worker.yaml", values | {"queue": f'"{name}"', "worker": worker})
    for file in runs or []:
        text += _filled("kubernetes-run.yaml", values | _run_values(file))
    _output({"helixq.yaml": text}, write, as_json=as_json)


@command(app, "alerts", example="helixq generate alerts --write /etc/prometheus/rules")
@connection.without_service(NO_SERVICE)
def _alerts(
    *,
    runbooks: Annotated[
        str, option("--runbooks URL", "Where your copy of the runbooks is; alerts link to it.")
    ] = alerts.RUNBOOKS,
    write: Write = None,
    as_json: AsJson = False,
) -> None:
    """Generate alert rules for Prometheus.

    docs/guides/operating.md explains how to use them.
    """
    _output({"helixqueue-alerts.yml": alerts.alert_rules(runbooks)}, write, as_json=as_json)


@command(app, "grafana", example="helixq generate grafana --write dashboards")
@connection.without_service(NO_SERVICE)
def _grafana(*, write: Write = None, as_json: AsJson = False) -> None:
    """Generate a dashboard for Grafana.

    Import it in Grafana, or put it into a directory that Grafana reads dashboards from.
    """
    _output({"helixqueue.json": alerts.grafana_dashboard()}, write, as_json=as_json)


@command(app, "schema", example="helixq generate schema run")
@connection.without_service(NO_SERVICE)
def _schema(
    kind: Annotated[Literal["run"], argument("KIND", "What the schema describes: run.")],
    *,
    write: Write = None,
    as_json: AsJson = False,
) -> None:
    """Generate the JSON Schema of a file.

    Editors check and complete the spec of a run with it.
    """
    try:
        from helixqueue.runs.spec import json_schema  # noqa: PLC0415 - of an extra
    except ModuleNotFoundError as error:
        raise NotInstalled(error.name, "runs") from error
    text = json.dumps(json_schema(), indent=2) + "\n"
    _output({f"{kind}.schema.json": text}, write, as_json=as_json)


def _run_values(file: Path) -> dict[str, str]:
    try:
        from helixqueue.cli.kubernetes_run import run_values  # noqa: PLC0415 - of an extra
    except ModuleNotFoundError as error:
        raise NotInstalled(error.name, "runs") from error
    return run_values(file)


def _label(queue: str) -> str:
    """A Kubernetes name for the queue; different queues get different names."""
    plain = re.sub(r"[^a-z0-9-]", "-", queue)[:30].strip("-")
    return plain if plain == queue else f"{plain}-{sha256(queue.encode()).hexdigest()[:8]}"


def _filled(name: str, values: dict[str, str]) -> str:
    text = (files("helixqueue.cli") / "templates" / name).read_text(encoding="utf-8")
    # Not string.Template: systemd and Kubernetes use `$` and `%`.
    return re.sub(r"@\{([a-z]+)\}", lambda match: values[match[1]], text)


def _output(generated: dict[str, str], directory: Path | None, *, as_json: bool) -> None:
    if directory is not None:
        directory.mkdir(parents=True, exist_ok=True)
        for name, text in generated.items():
            (directory / name).write_text(text, encoding="utf-8")
    if as_json:
        listed: list[dict[str, Any]] = [
            {"name": name, "text": text} for name, text in generated.items()
        ]
        show.as_json({"files": listed})
    elif directory is not None:
        for name in generated:
            show.line(str(directory / name))
    else:
        titled = len(generated) > 1
        texts = [f"# {name}\n{text}" if titled else text for name, text in generated.items()]
        sys.stdout.write("\n".join(texts))


def _checked(form: str, option: str, value: str) -> str:
    if not re.fullmatch(_FORMS[form], value):
        raise Refused(f"{option}: expected a valid {form}, got {value!a}")
    return value


def _this_program() -> str:
    beside = Path(sys.executable).with_name("helixq")  # where pip puts it
    path = shutil.which(sys.argv[0]) or shutil.which("helixq") or shutil.which(beside)
    if path is None:
        raise Refused("expected helixq in the PATH; give its path with --helixq")
    return str(Path(path).absolute())
