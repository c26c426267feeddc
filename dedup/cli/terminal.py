"""Consoles whose texts cannot send control codes (`dedup.cli.printing`)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment

from dedup.cli.printing import shown


class SafeConsole(Console):
    """Writes the control codes of styles, but not those in texts."""

    def render(
        self, renderable: RenderableType, options: ConsoleOptions | None = None
    ) -> Iterable[Segment]:
        """Return the segments of a renderable; rich calls this for everything it prints."""
        for segment in super().render(renderable, options):
            text, style, control = segment
            yield segment if control else Segment(shown(text), style)


class Terminal(SafeConsole):
    """Prints texts unchanged: brackets are not markup, and colons not emoji."""

    def __init__(self, **options: Any) -> None:
        super().__init__(markup=False, emoji=False, highlight=False, **options)
