"""`helixq`: finds the verb, loads its module alone, and turns errors into a line and a number.

`helixq --help` loads no verb: importing what they need takes a second, and help is asked for often.
So the table below has each verb's one-line help, and a test compares it with the verb's own.
"""

from __future__ import annotations

import io
import json
import os
import signal
import sys
import threading
import traceback
from importlib import import_module
from typing import TYPE_CHECKING, Annotated, NoReturn

import typer

from helixqueue import __version__
from helixqueue.cli import leave_quietly
from helixqueue.cli.exits import Exit, exit_for
from helixqueue.cli.sanitize import plain
from helixqueue.errors import HelixError, NotInstalled

if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import ModuleType

# Verb: the module that registers it, and its help.
VERBS: dict[str, tuple[str, str]] = {
    "up": (
        "helixqueue.cli.up",
        "Run everything until Ctrl-C: databases, service, workers.",
    ),
    "demo": (
        "helixqueue.cli.demo",
        "Watch a lab's samples take effect once, though workers die.",
    ),
    "submit": ("helixqueue.cli.submit", "Submit one batch, or many from JSON, JSONL or CSV."),
    "work": ("helixqueue.cli.work", "Do the work of a queue, by Python handlers or any program."),
    "batch": ("helixqueue.cli.batch", "Batches: list, show, retry, cancel, release, erase."),
    "worker": ("helixqueue.cli.worker", "Workers: list."),
    "queue": ("helixqueue.cli.queue", "Queues: list, show, set, pause, resume."),
    "fence": ("helixqueue.cli.fence", "Fences: list, show, explain, rehearse, resolve."),
    "receipt": ("helixqueue.cli.receipt", "Receipts: verify."),
    "serve": ("helixqueue.cli.serve", "Serve the HTTP API until a signal ends it."),
    "token": ("helixqueue.cli.token", "Tokens of a service: create, list, rotate, revoke, link."),
    "generate": (
        "helixqueue.cli.generate",
        "Files for running it: systemd, kubernetes.",
    ),
    "migrate": (
        "helixqueue.cli.migrate",
        "Bring a database to the schema this release needs.",
    ),
    "doctor": (
        "helixqueue.cli.doctor",
        "Tell whether a database is set up so that the guarantees hold.",
    ),
    "check": ("helixqueue.cli.check", "Check every invariant, with witnesses."),
    "replay": ("helixqueue.cli.replay", "Prove that the ledger gives the current state."),
    "recover": ("helixqueue.cli.recover", "End every lease after a restore or a split."),
}

# What to install for a verb that needs more than the core.
EXTRAS = {"up": "service,embedded", "demo": "embedded", "migrate": "migrate"}


def build(wanted: str) -> typer.Typer:
    """The application with the verb `wanted` loaded, and the others by name only."""
    app = typer.Typer(
        name="helixq",
        help="HelixQueue: every piece of work takes effect once, and you can prove it.",
        no_args_is_help=True,
        add_completion=True,
        pretty_exceptions_enable=False,
        # Plain help: rich would double its time. Answers are rich.
        rich_markup_mode=None,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    app.callback()(_common)
    for verb, (module, summary) in VERBS.items():
        if wanted == verb:
            _loaded(verb, module).register(app)
        else:
            app.command(verb, help=summary)(_not_loaded)
    return app


def _loaded(verb: str, module: str) -> ModuleType:
    try:
        return import_module(module)
    except ModuleNotFoundError as error:
        if (error.name or "").startswith("helixqueue"):
            raise
        raise NotInstalled(error.name, EXTRAS.get(verb, "all")) from error


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Run one command and end the process with its exit code."""
    args = list(sys.argv[1:] if arguments is None else arguments)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            # What a terminal cannot write is shown by number; it is no reason to fail.
            stream.reconfigure(errors="backslashreplace")
    _demand_text(args)
    sys.exit(_flushed(_ended(args)))


def _ended(args: Sequence[str]) -> int:
    """What the command ends with; whatever goes wrong, people read a line and scripts a number."""
    try:
        _heed_interrupts()
        build(_wanted(args))(args, prog_name="helixq")
    except SystemExit as ended:
        return int(ended.code or 0)
    except KeyboardInterrupt:
        return Exit.INTERRUPTED
    except HelixError as error:
        _report(error, as_json="--json" in args)
        return exit_for(error)
    except OSError as error:
        # A full disk, a file that may not be read: the machine's matter, and no bug.
        sys.stderr.write(f"helixq: {plain(str(error))}\n")
        return Exit.FAILED
    except Exception:  # noqa: BLE001 - the last handler of the process
        traceback.print_exc()
        sys.stderr.write("helixq: this is a bug; please report it with the lines above\n")
        return Exit.BUG
    return Exit.OK


def _heed_interrupts() -> None:
    """From here on Ctrl-C is an exception, which lets a command clean up (see `cli/__init__`)."""
    if (
        threading.current_thread() is threading.main_thread()
        and signal.getsignal(signal.SIGINT) is leave_quietly
    ):
        signal.signal(signal.SIGINT, signal.default_int_handler)


def _flushed(code: int) -> int:
    """An answer that could not be written down was not given."""
    try:
        sys.stdout.flush()
    except OSError as error:
        if not isinstance(error, BrokenPipeError):  # whoever reads has had enough
            sys.stderr.write(f"helixq: the answer could not be written: {error.strerror}\n")
        # Or the interpreter would try again when it ends, and complain.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return code or Exit.FAILED
    return code


def _wanted(args: Sequence[str]) -> str:
    """The verb on the command line, or on the one that a shell completes; "" for none."""
    if "_HELIXQ_COMPLETE" in os.environ:
        # Bash hands it over in the first of these, zsh and fish in the second.
        line = os.environ.get("COMP_WORDS") or os.environ.get("_TYPER_COMPLETE_ARGS", "")
        args = line.split()[1:]
    return next((word for word in args if not word.startswith("-")), "")


def _demand_text(args: Sequence[str]) -> None:
    """Bytes that are no UTF-8 have no place in the database."""
    for word in args:
        if any("\ud800" <= char <= "\udfff" for char in word):
            sys.stderr.write(f"helixq: expected arguments in UTF-8, got {word!a}\n")
            sys.exit(Exit.USAGE)


def _report(error: HelixError, *, as_json: bool) -> None:
    """Programs read standard output, people the other; a shell that completes words, neither."""
    if "_HELIXQ_COMPLETE" in os.environ:
        return
    if as_json:
        facts = {name: value for name, value in vars(error).items() if not name.startswith("_")}
        told = {"kind": type(error).__name__, "message": str(error), **facts}
        sys.stdout.write(json.dumps({"error": told}, ensure_ascii=False, default=str) + "\n")
    sys.stderr.write(f"helixq: {plain(str(error))}\n")


def _version(asked: bool) -> None:  # noqa: FBT001 - Typer calls it with the flag
    if asked:
        typer.echo(f"helixq {__version__}")
        raise typer.Exit


def _common(
    *,
    version: Annotated[
        bool | None, typer.Option("--version", callback=_version, is_eager=True, help="Show it.")
    ] = None,
) -> None:
    """Options before the verb."""


def _not_loaded() -> None:
    raise AssertionError("a verb was called by a name that was not on the command line")


if __name__ == "__main__":
    main()
