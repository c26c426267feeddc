"""Print to a terminal without control codes from texts, and wrap lines."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable
from typing import Any

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment
from rich.text import Text

from dedup.cli.printing import say, shown, while_read


class SafeConsole(Console):
    """A console of Rich that writes control codes for styles, but no control codes from texts."""

    def render(
        self, renderable: RenderableType, options: ConsoleOptions | None = None
    ) -> Iterable[Segment]:
        """Return the segments of a renderable. Rich calls this for everything that it prints."""
        for segment in super().render(renderable, options):
            text, style, control = segment
            yield segment if control else Segment(shown(text), style)


class Terminal(SafeConsole):
    """A console that prints texts unchanged, without Rich's markup and emoji."""

    def __init__(self, **options: Any) -> None:
        super().__init__(markup=False, emoji=False, highlight=False, **options)

    def on_broken_pipe(self) -> None:
        """Raise the BrokenPipeError again for the caller. Rich would exit with code 1."""
        raise


def lines_width(most: int, least: int = 0) -> int:
    """Return the terminal's width, limited to `least` and `most`, or `most` in a pipe."""
    console = Terminal()
    return max(least, min(most, console.width)) if console.is_terminal else most


def wrapped(text: str, width: int = 80, *, indent: str = "") -> list[str]:
    """Return a text as lines, without breaking words. Only the first line is not indented."""
    return textwrap.wrap(
        text, width, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False
    )


def print_lines(lines: Iterable[RenderableType]) -> None:
    console = Terminal()
    with while_read():
        for line in lines:
            if isinstance(line, str):
                say(line)
                continue
            console.print(line, soft_wrap=isinstance(line, Text))
