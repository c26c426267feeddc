"""Help screens: `-h` beside `--help`, and the words of the commands without typer's types."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import typer
from typer import rich_utils
from typer.core import TyperArgument, TyperCommand, TyperGroup

from dedup.cli.terminal import SafeConsole

# Typer's errors name arguments, which a shell may have made of file names.
rich_utils.Console = SafeConsole  # type: ignore[attr-defined]


class App(typer.Typer):
    """A typer whose commands have these help screens."""

    def __init__(self, **settings: Any) -> None:
        settings.setdefault("context_settings", {"help_option_names": ["--help", "-h"]})
        super().__init__(cls=_Group, add_completion=False, no_args_is_help=True, **settings)

    def command(self, *names: Any, **settings: Any) -> Callable[[Any], Any]:
        """Add a command, as typer does, with its example below the flags."""
        return lambda run: super(App, self).command(
            *names, **{"cls": _Command, "epilog": f"Example: {run.example}", **settings}
        )(run)


class _Plain:
    """Shows arguments by their metavar alone, and flags without one."""

    def get_params(self, ctx: Any) -> list[Any]:
        params: list[Any] = super().get_params(ctx)  # type: ignore[misc]
        for param in params:
            if isinstance(param, TyperArgument):
                # Else typer writes `<str>` behind the name that says it already.
                param.display_type_rich = _nothing  # type: ignore[method-assign]
            elif getattr(param, "is_flag", False):
                # Else it writes `<bool>`.
                param.metavar = ""
        return params

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        """As they are named below; typer writes `{ROOT}`, and `[[TOPIC]]`."""
        pieces: list[str] = super().collect_usage_pieces(ctx)  # type: ignore[misc]
        named = [p for p in self.get_params(ctx) if isinstance(p, TyperArgument)]
        # Arguments follow what stands for the options.
        return [*pieces[:1], *(str(p.metavar) for p in named), *pieces[1 + len(named) :]]


class _Command(_Plain, TyperCommand):
    pass


class _Group(_Plain, TyperGroup):
    pass


def _nothing(ctx: Any) -> None:
    return None
