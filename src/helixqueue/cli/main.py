"""`helixq`: loads the module of one verb, and turns errors into a message and an exit code.

`helixq --help` loads no verb, because their imports take a second. So the table below repeats the
first line of each verb's help, and a test compares the two.
"""

from __future__ import annotations

import io
import json
import logging
import os
import re
import signal
import sys
import threading
from contextvars import copy_context
from importlib import import_module
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer
from typer.main import get_command

from helixqueue import __version__
from helixqueue.cli import leave_quietly
from helixqueue.cli.exits import Exit, exit_for
from helixqueue.errors import HelixError, NotInstalled
from helixqueue.log import terminal

if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import ModuleType

# Typer exports only this subclass of the errors in a command line.
UsageError: type[Exception] = typer.BadParameter.__mro__[1]

# Verb: the module that registers it, and the first line of its help.
VERBS: dict[str, tuple[str, str]] = {
    "up": (
        "helixqueue.cli.up",
        "Run databases, service, stream intake and workers until Ctrl-C.",
    ),
    "demo": (
        "helixqueue.cli.demo",
        "Show that samples take effect once although workers die.",
    ),
    "submit": ("helixqueue.cli.submit", "Submit one batch, or many from JSON, JSONL or CSV."),
    "work": ("helixqueue.cli.work", "Process batches with Python handlers or any program."),
    "batch": (
        "helixqueue.cli.batch",
        "Batches: list, show, retry, cancel, erase and more.",
    ),
    "worker": ("helixqueue.cli.worker", "Workers: list, show, withdraw, return."),
    "queue": ("helixqueue.cli.queue", "Queues: list, show, set, pause, resume, delete."),
    "identity": ("helixqueue.cli.identity", "Identities: refused, twins."),
    "output": (
        "helixqueue.cli.output",
        "Output files: list, show, get, verify, publish and more.",
    ),
    "run": (
        "helixqueue.cli.run",
        "Runs: start, list, show, wait, watch, logs, retry and more.",
    ),
    "falconeri": ("helixqueue.cli.falconeri", "Verbs of Falconeri: job, datum."),
    "fence": ("helixqueue.cli.fence", "Fences: list, show, explain, rehearse, resolve."),
    "intake": ("helixqueue.cli.intake", "Intakes of Redis Streams: run, status."),
    "webhook": (
        "helixqueue.cli.webhook",
        "Sources of webhooks: apply, list, show, rotate, test.",
    ),
    "letter": ("helixqueue.cli.letter", "Dead letters: list, show, redrive, discard."),
    "ledger": (
        "helixqueue.cli.ledger",
        "Ledgers: list, declare, append, show, replay, seal, verify.",
    ),
    "feed": ("helixqueue.cli.feed", "Feeds: list, show, pause, resume, rewind, run."),
    "receipt": ("helixqueue.cli.receipt", "Receipts: verify."),
    "key": ("helixqueue.cli.key", "Signing keys: create, list, public, rotate."),
    "secret": ("helixqueue.cli.secret", "Fingerprint secret: rotate."),
    "serve": ("helixqueue.cli.serve", "Serve the HTTP API until a signal."),
    "token": ("helixqueue.cli.token", "Tokens of a service: create, list, rotate, revoke, link."),
    "generate": (
        "helixqueue.cli.generate",
        "Files: systemd, kubernetes, alerts, grafana, schema.",
    ),
    "migrate": (
        "helixqueue.cli.migrate",
        "Update a database to the schema of this release.",
    ),
    "doctor": (
        "helixqueue.cli.doctor",
        "Check that a database is set up for the guarantees.",
    ),
    "duty": ("helixqueue.cli.duty", "Background duties: list, set, findings."),
    "check": ("helixqueue.cli.check", "Check every invariant and show violating rows."),
    "seal": ("helixqueue.cli.seal", "Signed seals of the ledger: make, list."),
    "replay": ("helixqueue.cli.replay", "Prove that the ledger replays to the current state."),
    "recover": ("helixqueue.cli.recover", "End every lease after a restore or a split brain."),
}

# The extra to install for verbs that need more than the core.
EXTRAS = {"up": "service,embedded", "intake": "intake", "demo": "embedded", "migrate": "migrate"}


def build(verb: str) -> typer.Typer:
    """The application with `verb` loaded, and the other verbs by name only."""
    app = typer.Typer(
        name="helixq",
        help="HelixQueue: every piece of work takes effect once, and you can prove it.",
        no_args_is_help=True,
        add_completion=True,
        pretty_exceptions_enable=False,
        # Plain help: rich would double the time it takes.
        rich_markup_mode=None,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    app.callback()(_common)
    for name, (module, summary) in VERBS.items():
        if name == verb:
            _load(name, module).register(app)
        else:
            app.command(name, help=summary)(_not_loaded)
    return app


def _load(verb: str, module: str) -> ModuleType:
    try:
        return import_module(module)
    except ModuleNotFoundError as error:
        if (error.name or "").startswith("helixqueue"):
            raise
        raise NotInstalled(error.name, EXTRAS.get(verb, "all")) from error


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Run one command and exit with its code."""
    args = list(sys.argv[1:] if arguments is None else arguments)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            # Characters that the terminal cannot encode are printed as escapes.
            stream.reconfigure(errors="backslashreplace")
    _require_utf_8(args)
    # In a context of its own, which has the service of the command.
    sys.exit(_flush(copy_context().run(_run, args)))


def _run(args: Sequence[str]) -> int:
    """Run the command and return its exit code; errors become one line on standard error."""
    terminal.reset_log_mode()
    try:
        _execute(args)
    except SystemExit as ended:
        return int(ended.code or 0)
    except KeyboardInterrupt:
        return Exit.INTERRUPTED
    except HelixError as error:
        _report(error, as_json="--json" in args)
        return exit_for(error)
    except OSError as error:
        # Such as a full disk or an unreadable file.
        terminal.write(f"helixq: {error}", logging.ERROR)
        return Exit.FAILED
    except Exception:  # noqa: BLE001 - the last handler of the process
        terminal.write_traceback()
        terminal.write(
            "helixq: unexpected error; please report it with the lines above", logging.ERROR
        )
        return Exit.BUG
    return Exit.OK


def _execute(args: Sequence[str]) -> None:
    try:
        command = get_command(build(_verb(args)))
        _handle_interrupts()
        code = command.main(list(args), prog_name="helixq", standalone_mode=False)
    except ImportError as error:
        if not isinstance(error, ModuleNotFoundError):
            import_module("helixqueue.postgres.database")  # says so if libpq is missing
        raise
    except UsageError as error:
        _report_usage(error)
        raise SystemExit(Exit.USAGE) from None
    raise SystemExit(code if isinstance(code, int) else Exit.OK)


def _report_usage(error: Any) -> None:  # noqa: ANN401 - Typer does not export its type
    """Print what was wrong with the command line, and where its help is."""
    text = error.format_message()
    if error.ctx is None or text.startswith("Usage: "):  # a group without a command: its help
        error.show()
        return
    text = re.sub(r"^Invalid value: ", "", text).replace(": Value error, ", ": ", 1)
    text = re.sub(r"^Invalid value for '?(.+?)'?: ", r"\1: ", text, count=1)
    text = text.replace(": Input should be ", ": expected a value ", 1).removesuffix(".")
    if text[1:2].islower():
        text = f"{text[0].lower()}{text[1:]}"
    terminal.write(f"helixq: {text}", logging.ERROR)
    terminal.write(f"help: {error.ctx.command_path} --help")


def _handle_interrupts() -> None:
    """Make Ctrl-C raise KeyboardInterrupt from now on, so that a command can clean up.

    Not before the modules of the command are loaded (see `cli/__init__`).
    """
    if (
        threading.current_thread() is threading.main_thread()
        and signal.getsignal(signal.SIGINT) is leave_quietly
    ):
        signal.signal(signal.SIGINT, signal.default_int_handler)


def _flush(code: int) -> int:
    """Fail when the output cannot be written."""
    try:
        sys.stdout.flush()
    except OSError as error:
        if not isinstance(error, BrokenPipeError):  # the reader closed the pipe
            sys.stderr.write(f"helixq: the output could not be written: {error.strerror}\n")
        # Else the interpreter would flush again at its exit, and print an error.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return code or Exit.FAILED
    return code


def _verb(args: Sequence[str]) -> str:
    """The verb of the command line, or of the line that a shell completes; "" for none."""
    if "_HELIXQ_COMPLETE" in os.environ:
        # Bash uses the first variable, zsh and fish the second.
        line = os.environ.get("COMP_WORDS") or os.environ.get("_TYPER_COMPLETE_ARGS", "")
        args = line.split()[1:]
    return next((word for word in args if not word.startswith("-")), "")


def _require_utf_8(args: Sequence[str]) -> None:
    """The database stores UTF-8 only."""
    for word in args:
        if any("\ud800" <= char <= "\udfff" for char in word):
            sys.stderr.write(f"helixq: expected arguments in UTF-8, got {word!a}\n")
            sys.exit(Exit.USAGE)


def _report(error: HelixError, *, as_json: bool) -> None:
    """Print the error; as JSON to standard output, too. Nothing during shell completion."""
    if "_HELIXQ_COMPLETE" in os.environ:
        return
    if as_json:
        facts = {name: value for name, value in vars(error).items() if not name.startswith("_")}
        document = {"kind": type(error).__name__, "message": str(error), **facts}
        sys.stdout.write(json.dumps({"error": document}, ensure_ascii=False, default=str) + "\n")
    terminal.write(f"helixq: {error}", logging.ERROR)


def _version(requested: bool) -> None:  # noqa: FBT001 - Typer calls it with the flag
    if requested:
        typer.echo(f"helixq {__version__}")
        raise typer.Exit


def _common(
    *,
    version: Annotated[
        bool | None,
        typer.Option(
            "--version", callback=_version, is_eager=True, help="Print the version and exit."
        ),
    ] = None,
) -> None:
    """Options before the verb."""


def _not_loaded() -> None:
    raise AssertionError("the verb of the command line was not loaded")


if __name__ == "__main__":
    main()
