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
from types import MappingProxyType
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

from helixqueue.cli import connection, operation, options, pages, shapes, show, times, watch
from helixqueue.cli.command import command
from helixqueue.operations import queues
from helixqueue.operations.operation import UNCHANGED
from helixqueue.records.page import Page
from helixqueue.records.parameter import ActionLimit, Cursor, Limit, Reason, kind_of, words_of

if TYPE_CHECKING:
    from helixqueue.cli.exits import Exit
    from helixqueue.operations.instructions import Instructions
    from helixqueue.operations.operation import Operation, Parameter

T = TypeVar("T")
Show = Callable[Concatenate[T, ...], None]
# Parameters whose options have a parser or limits of their own.
OPTIONS: Final[tuple[tuple[Any, Any], ...]] = (
    (Reason, options.Reason), (Limit, options.Limit), (Cursor, options.After),
    (ActionLimit, options.ActionLimit),
)  # fmt: skip
# Type, parser and more help of options, by their metavar.
PARSERS: Final[dict[str | None, tuple[Any, Callable[[str], Any], str]]] = {
    "DURATION": (float, times.span, ""),
    "TIME": (datetime, times.each_moment, f" Times are written {options.TIME_HELP}."),
}


def verb(
    app: typer.Typer,
    name: str,
    declared: Operation[..., T],
    *,
    example: str,
    every_tenant: bool | Callable[[Mapping[str, Any]], bool] = False,
    refused: Callable[[Any], Exit | bool] = lambda _: False,
    instead: Callable[..., Instructions[Any]] | None = None,
    more: Mapping[str, Any] = MappingProxyType({}),
) -> Callable[[Show[T]], Show[T]]:
    """Register a command; the function may also take parameters of the operation by keyword.

    A parameter `ask` of the function is what runs further operations.
    every_tenant: without --tenant, read all tenants that the login may see; or whether the values
    of a command allow it, because they name what it changes.
    refused: whether the answer is no: exit code 1, or the one that it returns.
    instead: what runs in place of the operation, such as a search for what a user names.
    more: options of `instead` besides the parameters of the operation.
    """

    def decorate(show_answer: Show[T]) -> Show[T]:
        _, *also = inspect.signature(show_answer).parameters.values()
        takes_all = any(item.kind is inspect.Parameter.VAR_KEYWORD for item in also)

        def run(
            *,
            tenant: str | None,
            as_json: bool,
            actor: str | None = None,
            watch_seconds: float | None = None,
            **values: Any,  # noqa: ANN401
        ) -> None:
            def reader(target: connection.Target) -> Callable[[], Any]:
                spans = every_tenant(values) if callable(every_tenant) else every_tenant
                ask = operation.Runner(target, tenant, actor, every_tenant=spans)
                return partial(read_and_show, ask)

            def read_and_show(ask: operation.Runner) -> Any:  # noqa: ANN401
                now = current(values)
                named = {name: value for name, value in now.items() if value is not None}
                answer = _read(declared, dict(named), ask, instead or declared)
                if as_json:
                    show.as_json(shapes.plain(answer))
                else:
                    known = now | {"ask": ask}
                    wanted = named if takes_all else {item.name: known[item.name] for item in also}
                    show_answer(answer, **wanted)
                if watch_seconds is not None and isinstance(answer, Page) and answer.next:
                    show.progress("more rows: raise --limit")
                return answer

            if watch_seconds is not None:
                watch.watch(watch_seconds, reader, as_json=as_json)
            with connection.open_target() as target:
                answer = reader(target)()
            if isinstance(answer, Page):
                pages.print_next(answer.next)
            if code := refused(answer):
                raise typer.Exit(int(code))

        run.__signature__ = _signature(declared, more)  # type: ignore[attr-defined]
        run.__doc__ = declared.__doc__
        command(app, name, example=example)(connection.service_or_database(run))
        return show_answer

    return decorate


def current(values: Mapping[str, Any]) -> dict[str, Any]:
    """The values of options; relative times such as `5m` are relative to now."""
    return {name: value() if callable(value) else value for name, value in values.items()}


def _read(
    declared: Operation[..., T],
    values: dict[str, Any],
    ask: operation.Runner,
    instead: Callable[..., Instructions[Any]],
) -> Any:  # noqa: ANN401
    """The answer; of a list, as many rows as --limit asks for."""
    if get_origin(declared.answer) is not Page or "limit" not in declared.parameters:
        return ask(lambda operations: instead(operations, **values))

    def page(**cursor: Any) -> Any:  # noqa: ANN401
        return ask(lambda operations: instead(operations, **values | cursor))

    rows, after = pages.gather(page, values.pop("limit", None), values.pop("after", None))
    if not rows:
        ask.demand_tenant()
    if not rows and "queue" in values:
        # A misspelled queue must not look like one without rows.
        ask(partial(queues.require_queue, queue=values["queue"]))
    return Page(tuple(rows), after)


def _signature(declared: Operation[..., Any], more: Mapping[str, Any]) -> inspect.Signature:
    """What Typer reads."""
    found = parameters_of(declared, more)
    shared: dict[str, tuple[Any, Any]] = {}
    if declared.method != "GET":
        shared["actor"] = (options.Actor, None)
    elif get_origin(declared.answer) is Page:
        shared["watch_seconds"] = (watch.Watch, None)
    shared |= {"tenant": (options.Tenant, None), "as_json": (options.AsJson, False)}
    found += [_keyword(name, kind, default) for name, (kind, default) in shared.items()]
    return inspect.Signature(found)


def parameters_of(
    declared: Operation[..., Any], more: Mapping[str, Any] = MappingProxyType({})
) -> list[inspect.Parameter]:
    """The parameters of an operation as arguments and options, and more options."""
    found = {
        name: _keyword(name, more.get(name) or _option(name, item), _default(item))
        for name, item in declared.parameters.items()
    }
    added = {name: _keyword(name, option, None) for name, option in more.items()}
    return list((added | found).values())


def _default(parameter: Parameter) -> Any:  # noqa: ANN401
    if parameter.required:
        return UNCHANGED
    return None if parameter.default is UNCHANGED else parameter.default


def _keyword(name: str, kind: Any, default: Any) -> inspect.Parameter:  # noqa: ANN401
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, annotation=kind, default=default)


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
        typed["autocompletion"] = _completion(words)
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


def _completion(words: tuple[str, ...]) -> Callable[[str], list[str]]:
    def beginning_with(incomplete: str) -> list[str]:  # Typer refuses a partial
        return [word for word in words if word.lower().startswith(incomplete.lower())]

    return beginning_with
