"""Make commands of typer from dataclasses of flags, with exit codes and help screens."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Iterator
from dataclasses import MISSING, dataclass, field, fields
from importlib import import_module
from inspect import Parameter, Signature, getdoc
from typing import Annotated, Any, ClassVar, NamedTuple, Self, get_type_hints

import typer
from rich.console import RenderableType
from typer import rich_utils
from typer.core import TyperArgument, TyperCommand, TyperGroup

from dedup.cli.failures import INTERRUPTED, TRACEBACK, explain
from dedup.cli.printing import say
from dedup.cli.terminal import SafeConsole, print_lines
from dedup.errors.cause import LINK

# Typer's errors quote arguments. These may be file names that hold control codes.
rich_utils.Console = SafeConsole  # type: ignore[attr-defined]


def argument(metavar: str, text: str, *, default: Any = MISSING, **more: Any) -> Any:
    """Declare a field that holds a positional argument. `more` becomes metadata of the field."""
    shown = typer.Argument(metavar=metavar, help=text)
    return field(default=default, metadata=more | {"shown": shown})


def option(
    metavar: str | None,
    text: str,
    *names: str,
    default: Any = None,
    panel: str | None = None,
    least: float | None = None,
    most: float | None = None,
    **more: Any,
) -> Any:
    """Declare a field that holds an option. The option is required if `default` is MISSING."""
    shown = typer.Option(
        ..., *names, metavar=metavar, help=text, min=least, max=most, rich_help_panel=panel
    )
    return field(default=default, metadata=more | {"shown": shown})


def switch(text: str, *names: str, **more: Any) -> Any:
    """Declare a field that holds an option without a value. `more` becomes the field's metadata."""
    return option(None, text, *names, default=False, **more)


def parameter(name: str, kind: Any, shown: Any, default: Any) -> Parameter:
    """Return a parameter for typer. The parameter is required if `default` is MISSING."""
    default = Parameter.empty if default is MISSING else default
    annotation = Annotated[kind, shown]
    return Parameter(name, Parameter.KEYWORD_ONLY, default=default, annotation=annotation)


@dataclass(frozen=True, kw_only=True)
class Flags:
    """Base class of a command's flags. The docstring of a subclass is the command's help text.

    Declare every field with `option`, `switch` or `argument`.
    """

    #: Name of the function that runs the command, as ``module:function``. It takes the flags and
    #: returns a `Done`. Typer imports it late, so that ``dedup --help`` loads no Spark.
    work: ClassVar[str]
    #: A command line for the help screen.
    example: ClassVar[str]

    as_json: bool = switch("Print one JSON object on stdout.", "--json")

    @classmethod
    def of(cls, values: dict[str, Any]) -> Self:
        return cls(**values)

    @classmethod
    def parameters(cls) -> Iterator[Parameter]:
        """Yield the parameters that typer reads: the command's own flags, then inherited flags."""
        hints = get_type_hints(cls)
        for each in sorted(fields(cls), key=lambda each: each.name not in cls.__annotations__):
            if "shown" in each.metadata:
                shown = each.metadata["shown"]
                yield parameter(each.name, hints[each.name], shown, each.default)


class Done(NamedTuple):
    """Result of a command: exit code, JSON object for ``--json``, and lines for people."""

    code: int
    body: dict[str, Any]
    lines: Iterable[RenderableType] = ()


def finish(work: Callable[[], Done], *, as_json: bool) -> None:
    try:
        done = work()
    except KeyboardInterrupt:
        say("Interrupted.", as_error=True)
        done = Done(INTERRUPTED, {"status": "interrupted"})
    except (typer.Exit, ModuleNotFoundError):
        raise
    except Exception as error:
        if os.environ.get(TRACEBACK):
            raise
        failure = explain(error)
        body = {"status": "failed", "error": failure.kind, "message": failure.message}
        say(f"error: {failure.message}", as_error=True)
        if failure.remedy is not None:
            body["remedy"] = failure.remedy
            say(f"{LINK}{failure.remedy}", as_error=True)
        done = Done(failure.exit_code, body)
    lines = done.lines
    if as_json:
        # JSON escapes every control code except DEL.
        text = json.dumps(done.body | {"exit_code": done.code}, sort_keys=True)
        lines = [text.replace("\x7f", "\\u007f")]
    print_lines(lines)
    raise typer.Exit(done.code)


class App(typer.Typer):
    """A typer application that knows `-h`. Its help screens omit typer's type names."""

    def __init__(self, **settings: Any) -> None:
        settings["context_settings"] = {"help_option_names": ["--help", "-h"]}
        super().__init__(cls=_Group, add_completion=False, no_args_is_help=True, **settings)

    def add(self, *commands: type[Flags]) -> None:
        """Add a command for each class of flags. The command has the name of its function."""
        for flags in commands:
            name = flags.work.partition(":")[2].replace("_", "-")
            self.command(name, cls=_Command, epilog=f"Example: {flags.example}")(_runner(flags))


def _runner(flags: type[Flags]) -> Callable[..., None]:
    module, _, function = flags.work.partition(":")

    def run(**values: Any) -> None:
        finish(
            lambda: getattr(import_module(module), function)(flags.of(values)),
            as_json=values["as_json"],
        )

    paragraphs = (getdoc(flags) or "").split("\n\n")  # rich keeps line breaks in a paragraph
    run.__doc__ = "\n\n".join(" ".join(text.split()) for text in paragraphs)
    run.__signature__ = Signature(list(flags.parameters()))  # type: ignore[attr-defined]
    return run


class _Plain:
    def get_params(self, ctx: Any) -> list[Any]:
        params: list[Any] = super().get_params(ctx)  # type: ignore[misc]
        for param in params:
            if isinstance(param, TyperArgument):
                # Typer would print `<str>` after the metavar.
                param.display_type_rich = lambda ctx: None  # type: ignore[method-assign]
            elif getattr(param, "is_flag", False):
                # Typer would print `<bool>`.
                param.metavar = ""
        return params

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        """Return the words of the usage line, with arguments such as ``ROOT`` and ``[TOPIC]``.

        Typer itself writes ``{ROOT}`` and ``[[TOPIC]]``.
        """
        pieces: list[str] = super().collect_usage_pieces(ctx)  # type: ignore[misc]
        named = [p for p in self.get_params(ctx) if isinstance(p, TyperArgument)]
        # The first piece stands for all options.
        return [*pieces[:1], *(str(p.metavar) for p in named), *pieces[1 + len(named) :]]


class _Command(_Plain, TyperCommand):
    pass


class _Group(_Plain, TyperGroup):
    pass
