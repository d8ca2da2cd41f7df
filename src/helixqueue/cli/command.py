"""How commands are registered, and how their help is laid out.

Typer's own help shows types and ranges (`<int range>`, `[1<=x<=100000]`). Here each option shows
its metavar, its help text and its default, and the help of each command ends with an example.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from typer.core import TyperCommand

if TYPE_CHECKING:
    from collections.abc import Callable

    import typer


class HelpCommand(TyperCommand):
    """A command whose help lists arguments and options without their types."""

    def collect_usage_pieces(self, ctx: Any) -> list[str]:  # noqa: ANN401 - click's own type
        """Required arguments without the braces of newer versions of Typer."""
        return [
            re.sub(r"^\{(.*)\}(\.\.\.)?$", r"\1\2", piece)
            for piece in super().collect_usage_pieces(ctx)
        ]

    def format_options(self, ctx: Any, formatter: Any) -> None:  # noqa: ANN401 - click's own types
        arguments: list[tuple[str, str]] = []
        flags: list[tuple[str, str]] = []
        for parameter in self.get_params(ctx):
            if getattr(parameter, "hidden", False):
                continue
            rows = arguments if parameter.param_type_name == "argument" else flags
            rows.append((_usage(parameter), _text(parameter)))
        for title, rows in (("Arguments", arguments), ("Options", flags)):
            if rows:
                with formatter.section(title):
                    formatter.write_dl(rows, col_max=24)


def _usage(parameter: Any) -> str:  # noqa: ANN401 - click's own type
    if parameter.param_type_name == "argument":
        return str(parameter.metavar or parameter.name.upper())
    names = ", ".join(sorted(parameter.opts, key=len))
    if parameter.secondary_opts:
        names += " / " + ", ".join(parameter.secondary_opts)
    if parameter.is_flag or parameter.count:
        return names
    return f"{names} {parameter.metavar or 'TEXT'}"


def _text(parameter: Any) -> str:  # noqa: ANN401 - click's own type
    text = parameter.help or ""
    if parameter.required:
        return f"{text} [required]"
    default = parameter.default
    shown = bool(parameter.show_default) and not getattr(parameter, "is_flag", False)
    if shown and default is not None and not callable(default):
        default = int(default) if isinstance(default, float) and default.is_integer() else default
        return f"{text} [default: {default}]"
    return text


def command(
    app: typer.Typer, name: str, *, example: str, text: str | None = None
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Register a command; `text` replaces the docstring of its function as help."""
    return app.command(name, cls=HelpCommand, help=text, epilog=f"Example: {example}")
