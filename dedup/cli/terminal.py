"""The consoles of commands, whose texts cannot steer a terminal (`dedup.cli.printing`)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment

from dedup.cli.printing import shown


class SafeConsole(Console):
    """Writes the control codes of its styles, and none that are in a text."""

    def render(
        self, renderable: RenderableType, options: ConsoleOptions | None = None
    ) -> Iterable[Segment]:
        """Return the segments of a renderable; rich calls this for all that it prints."""
        for segment in super().render(renderable, options):
            text, style, control = segment
            yield segment if control else Segment(shown(text), style)


class Terminal(SafeConsole):
    """Takes every text as it is: brackets are no markup, and colons no emoji."""

    def __init__(self, **options: Any) -> None:
        super().__init__(markup=False, emoji=False, highlight=False, **options)
