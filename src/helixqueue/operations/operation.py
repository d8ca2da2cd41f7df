"""An operation: a function that says what happens, declared once for every surface.

    @operation("GET /v1/letters/{letter}", scope="read", raises=[NoSuchLetter])
    def show_letter(operations: Operations, letter: Letter) -> Instructions[LetterDetail]:
        ...

On a database a call runs the function. On a service it becomes the request that the declaration
describes, and the service runs the function. Route and OpenAPI entry (`service/derived_routes.py`),
request (`transport/http/derived_calls.py`) and command (`cli/derived_commands.py`) follow from the
signature, the docstring and the arguments of the decorator. Nothing here does I/O.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from functools import cached_property
from types import ModuleType
from typing import (
    TYPE_CHECKING,
    Any,
    Concatenate,
    Final,
    Generic,
    Literal,
    NamedTuple,
    ParamSpec,
    TypeVar,
    get_args,
    get_type_hints,
    is_typeddict,
)  # fmt: skip

from helixqueue.records.parameter import ABSENT, check_value, kind_of

if TYPE_CHECKING:
    from helixqueue.errors import HelixError
    from helixqueue.operations.batches import Operations
    from helixqueue.operations.instructions import Instructions

P = ParamSpec("P")
T = TypeVar("T")
Scope = Literal["any", "read", "submit", "work", "operate", "payloads", "admin", "seal", "run"]
# The default of a setting that stays as it is unless it is named.
UNCHANGED: Final = inspect.Parameter.empty


class Parameter(NamedTuple):
    annotation: Any
    default: Any  # UNCHANGED: none
    required: bool
    in_path: bool
    positional: bool = False  # on the command line an argument, not an option


class Operation(Generic[P, T]):
    """A declared function; call it as the function."""

    def __init__(
        self,
        function: Callable[Concatenate[Operations, P], Instructions[T]],
        route: str,
        *,
        scope: Scope,
        raises: Sequence[type[HelixError]],
        fenced: bool,
        computes: bool,
        status: int,
    ) -> None:
        self.function = function
        self.name = function.__name__
        self.method, self.path = route.split(" ")
        self.scope, self.raises = scope, raises
        self.fenced, self.computes, self.status = fenced, computes, status
        self.__doc__ = inspect.cleandoc(function.__doc__ or "")
        self.summary, _, self.description = self.__doc__.partition("\n\n")

    def __call__(
        self, operations: Operations, /, *args: P.args, **kwargs: P.kwargs
    ) -> Instructions[T]:
        values = self.checked(args, kwargs)
        remote = operations.call_set.remote
        if remote is None:
            function: Callable[..., Instructions[T]] = self.function
            return function(operations, **values)
        return operations.ask(remote(self, values))

    def checked(self, args: tuple[Any, ...], values: dict[str, Any]) -> dict[str, Any]:
        """The arguments by name; refuses those that their parameters do not allow."""
        values = dict(zip(self.parameters, args, strict=False)) | values
        values = {name: value for name, value in values.items() if value is not ABSENT}
        for name, value in values.items():
            if name not in self.parameters:
                raise TypeError(f"{self.name}: unexpected argument {name!r}")
            annotation = self.parameters[name].annotation
            read = kind_of(annotation).param.read
            if read is not None and value is not None:
                values[name] = read(value)
            check_value(name, annotation, values[name])
        return values

    @cached_property
    def parameters(self) -> dict[str, Parameter]:
        """The parameters after `operations`; `**settings` of a TypedDict are one each."""
        found: dict[str, Parameter] = {}
        _, *own = inspect.signature(self.function).parameters.values()
        for item in own:
            annotation = self._evaluate(item.annotation)
            if item.kind is inspect.Parameter.VAR_KEYWORD:
                [settings] = get_args(annotation)  # Unpack[...]
                assert is_typeddict(settings)  # noqa: S101 - else FastAPI could not list them
                for name, hint in get_type_hints(settings, include_extras=True).items():
                    found[name] = Parameter(hint, UNCHANGED, required=False, in_path=False)
            else:
                required = item.default is inspect.Parameter.empty
                in_path = f"{{{item.name}}}" in self.path
                positional = item.kind is not inspect.Parameter.KEYWORD_ONLY
                found[item.name] = Parameter(
                    annotation, item.default, required, in_path, positional
                )
        return found

    @cached_property
    def signature(self) -> inspect.Signature:
        """The signature of a client's method: `self` in place of `operations`."""
        own = inspect.signature(self.function)
        first, *others = own.parameters.values()
        this = first.replace(name="self", annotation=UNCHANGED)
        answer = own.return_annotation.removeprefix("Instructions[").removesuffix("]")
        return own.replace(parameters=[this, *others], return_annotation=answer)

    @cached_property
    def answer(self) -> Any:
        """The type of the result: T of Instructions[T]."""
        return get_args(self._evaluate(inspect.signature(self.function).return_annotation))[2]

    def _evaluate(self, annotation: Any) -> Any:
        return eval(annotation, vars(inspect.getmodule(self.function)))  # noqa: S307 - our own source


def operation(
    route: str,
    *,
    scope: Scope,
    raises: Sequence[type[HelixError]] = (),
    fenced: bool = False,
    computes: bool = False,
    status: int = 200,
) -> Callable[[Callable[Concatenate[Operations, P], Instructions[T]]], Operation[P, T]]:
    """Declare an operation.

    route: HTTP method and path; parameters that the path names are path parameters, the others
        are the query of a GET, and else the members of the body.
    scope: what a token needs.
    raises: errors besides those of every operation, for the OpenAPI document.
    fenced: the service accepts an idempotency key, and its client sends one.
    computes: it may hold the event loop of a service, which runs it in a thread.
    status: of the response.
    """

    def declare(function: Callable[Concatenate[Operations, P], Instructions[T]]) -> Operation[P, T]:
        return Operation(
            function, route, scope=scope, raises=raises, fenced=fenced, computes=computes,
            status=status,
        )  # fmt: skip

    return declare


def operations_of(subject: ModuleType) -> list[Operation[..., Any]]:
    """The operations that a module declares, in its order; not those that it imports."""
    return [
        item
        for item in vars(subject).values()
        if isinstance(item, Operation) and item.function.__module__ == subject.__name__
    ]
