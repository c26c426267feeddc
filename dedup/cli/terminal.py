"""Consoles whose texts cannot send control codes (`dedup.cli.printing`), and lines for them."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable
from typing import Any

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment
from rich.text import Text

from dedup.cli.printing import say, shown, while_read


class SafeConsole(Console):
    """Writes the control codes of styles, but no control codes from texts."""

    def render(
        self, renderable: RenderableType, options: ConsoleOptions | None = None
    ) -> Iterable[Segment]:
        """Return the segments of a renderable. Rich calls this for everything that it prints."""
        for segment in super().render(renderable, options):
            text, style, control = segment
            yield segment if control else Segment(shown(text), style)


class Terminal(SafeConsole):
    """Prints texts unchanged: brackets are not markup, and colons not emoji."""

    def __init__(self, **options: Any) -> None:
        super().__init__(markup=False, emoji=False, highlight=False, **options)

    def on_broken_pipe(self) -> None:
        """Leave a closed pipe to the caller. Rich would exit with code 1."""
        raise


def lines_width(most: int, least: int = 0) -> int:
    """Return the width of lines: the terminal's from `least` to `most`, or `most` in a pipe."""
    console = Terminal()
    return max(least, min(most, console.width)) if console.is_terminal else most


def wrapped(text: str, width: int = 80, *, indent: str = "") -> list[str]:
    """Return lines of a text, with names and paths unbroken. `indent` begins later lines."""
    return textwrap.wrap(
        text, width, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False
    )


def print_lines(lines: Iterable[RenderableType]) -> None:
    """Print the result of a command to stdout, until the reader closes the pipe."""
    console = Terminal()
    with while_read():
        for line in lines:
            if isinstance(line, str):
                say(line)
                continue
            console.print(line, soft_wrap=isinstance(line, Text))
