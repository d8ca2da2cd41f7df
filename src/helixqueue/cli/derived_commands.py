"""Commands made from operations: arguments and options from the signature, help from the docstring.

The decorated function prints the answer for people; `--json` prints the record.

    @verb(app, "show", letters.show_letter, example="helixq letter show 7")
    def _show(letter: LetterDetail) -> None: ...
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from datetime import datetime
from functools import partial
from typing import (
    TYPE_CHECKING,
    Annotated,
    Any,
    Concatenate,
    Final,
    TypeVar,
    get_origin,
)

import typer

from helixqueue.cli import connection, operation, options, pages, shapes, show, times
from helixqueue.cli.command import command
from helixqueue.cli.exits import Exit
from helixqueue.operations.operation import UNCHANGED
from helixqueue.records.page import Page
from helixqueue.records.parameter import Cursor, Limit, Reason, kind_of, words_of

if TYPE_CHECKING:
    from helixqueue.operations.operation import Operation, Parameter

T = TypeVar("T")
Show = Callable[Concatenate[T, ...], None]
# Parameters whose options have a parser or limits of their own.
OPTIONS: Final[tuple[tuple[Any, Any], ...]] = (
    (Reason, options.Reason), (Limit, options.Limit), (Cursor, options.After),
)  # fmt: skip
# Type, parser and more help of options, by their metavar.
PARSERS: Final[dict[str | None, tuple[Any, Callable[[str], Any], str]]] = {
    "DURATION": (float, times.span, ""),
    "TIME": (datetime, times.moment, f" Times are written {options.TIME_HELP}."),
}


def verb(
    app: typer.Typer,
    name: str,
    declared: Operation[..., T],
    *,
    example: str,
    every_tenant: bool = False,
    refused: Callable[[T], bool] = lambda _: False,
) -> Callable[[Show[T]], Show[T]]:
    """Register a command; the function may also take parameters of the operation by keyword.

    every_tenant: without --tenant, read all tenants that the login may see.
    refused: whether the answer is no: exit code 1.
    """

    def decorate(show_answer: Show[T]) -> Show[T]:
        _, *also = inspect.signature(show_answer).parameters.values()
        takes_all = any(item.kind is inspect.Parameter.VAR_KEYWORD for item in also)

        def run(
            *,
            tenant: str | None,
            as_json: bool,
            actor: str | None = None,
            **values: Any,  # noqa: ANN401
        ) -> None:
            named = {key: value for key, value in values.items() if value is not None}
            with connection.open_target() as target:
                ask = partial(operation.run, target, tenant, actor, every_tenant=every_tenant)
                answer = _read(declared, named, ask)
            if as_json:
                show.as_json(shapes.plain(answer))
            else:
                wanted = named if takes_all else {item.name: values[item.name] for item in also}
                show_answer(answer, **wanted)
            if isinstance(answer, Page):
                pages.print_next(answer.next)
            if refused(answer):
                raise typer.Exit(Exit.NO)

        run.__signature__ = _signature(declared)  # type: ignore[attr-defined]
        run.__doc__ = declared.__doc__
        command(app, name, example=example)(connection.service_or_database(run))
        return show_answer

    return decorate


def _read(declared: Operation[..., T], values: dict[str, Any], ask: Callable[..., Any]) -> Any:  # noqa: ANN401
    """The answer; of a list, as many rows as --limit asks for."""
    if get_origin(declared.answer) is not Page:
        return ask(lambda operations: declared(operations, **values))

    def page(**cursor: Any) -> Any:  # noqa: ANN401
        return ask(lambda operations: declared(operations, **values | cursor))

    rows, after = pages.gather(page, values.pop("limit", 50), values.pop("after", None))
    return Page(tuple(rows), after)


def _signature(declared: Operation[..., Any]) -> inspect.Signature:
    """What Typer reads."""
    kinds = {
        name: (
            _option(name, parameter),
            None if parameter.default is UNCHANGED else parameter.default,
        )
        for name, parameter in declared.parameters.items()
    }
    shared: dict[str, tuple[Any, Any]] = (
        {} if declared.method == "GET" else {"actor": (options.Actor, None)}
    )
    shared |= {"tenant": (options.Tenant, None), "as_json": (options.AsJson, False)}
    required = {name for name, parameter in declared.parameters.items() if parameter.required}
    return inspect.Signature(
        [
            inspect.Parameter(
                name, inspect.Parameter.KEYWORD_ONLY, annotation=kind,
                default=UNCHANGED if name in required else default,
            )
            for name, (kind, default) in (kinds | shared).items()
        ]
    )  # fmt: skip


def _option(name: str, parameter: Parameter) -> Any:  # noqa: ANN401 - an annotation
    base, param, _ = kind_of(parameter.annotation)
    for common, option in OPTIONS:
        if param is kind_of(common).param:
            return option
    typed: dict[str, Any] = {"metavar": param.metavar or "TEXT", "help": param.text}
    flag = param.option or f"--{name.removesuffix('_seconds').replace('_', '-')}"
    kind: Any = str
    if base in {int, float, bool}:
        kind = base
        typed |= {"min": param.least, "max": param.most} if base is not bool else {}
    if param.metavar in PARSERS:
        kind, parser, more = PARSERS[param.metavar]
        typed |= {"parser": parser, "min": None, "max": None, "help": param.text + more}
    elif get_origin(base) is list:
        kind = list[str]
    elif words := words_of(base):
        typed["parser"] = partial(_one_of, words)
    elif get_origin(base) in {Mapping, dict}:
        kind, typed["parser"] = Any, partial(options.parse_object, flag)
        typed["help"] = f"{param.text} JSON, or a file that contains it."
    if parameter.positional:
        return Annotated[kind, typer.Argument(**typed)]
    if base is bool:
        typed.pop("metavar")
    return Annotated[kind if parameter.required else kind | None, typer.Option(flag, **typed)]


def _one_of(words: tuple[str, ...], text: str) -> str:
    """The word that was typed, in upper or lower case."""
    for word in words:
        if word.lower() == text.lower():
            return word
    raise typer.BadParameter(f"expected {', '.join(words[:-1])} or {words[-1]}, got {text!r}")
