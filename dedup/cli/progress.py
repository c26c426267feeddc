"""What a run says while it works: one line that renews itself, or plain lines, or nothing."""

from __future__ import annotations

import time

from rich.console import Console
from rich.live import Live
from rich.text import Text

from dedup.cli.figures import Figures
from dedup.cli.terminal import Terminal
from dedup.core.duration import span

#: Seconds between plain lines, so that a log of a long run stays short.
_PLAIN_EVERY_S = 10.0


class Reporter:
    """Hears of a run's progress, and says nothing; every method returns at once."""

    def note(self, text: str) -> None:
        """Say one thing."""

    def update(self, figures: Figures, total_files: int) -> None:
        """Say how far the run is."""

    def close(self) -> None:
        """Leave the terminal as it was."""


class PlainLines(Reporter):
    """A line now and then, for logs and pipes."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._next_s = 0.0
        self._said = (-1, -1)

    def note(self, text: str) -> None:
        """Print the text as a line."""
        self._console.print(text, soft_wrap=True)

    def update(self, figures: Figures, total_files: int) -> None:
        """Print a line if the last one is a while ago and there is something new."""
        state = (figures.batches, figures.files)
        if time.monotonic() < self._next_s or state == self._said or not figures.batches:
            return
        self._next_s = time.monotonic() + _PLAIN_EVERY_S
        self._said = state
        self.note(one_line(figures, total_files))


class LiveLine(Reporter):
    """A line that renews itself, for terminals."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._live = Live(Text("starting"), console=console, refresh_per_second=4, transient=True)
        self._live.start()

    def note(self, text: str) -> None:
        """Print the text above the line."""
        self._console.print(text, soft_wrap=True)

    def update(self, figures: Figures, total_files: int) -> None:
        """Renew the line."""
        self._live.update(Text(one_line(figures, total_files), overflow="ellipsis", no_wrap=True))

    def close(self) -> None:
        """Take the line away."""
        self._live.stop()


def reporter(*, quiet: bool) -> Reporter:
    """Choose by what stderr is."""
    if quiet:
        return Reporter()
    console = Terminal(stderr=True)
    return LiveLine(console) if console.is_terminal else PlainLines(console)


def one_line(figures: Figures, total_files: int) -> str:
    """Files, rows a second, duplicates so far and GC lag."""
    counts = figures.counts
    return (
        f"{figures.files:,}/{total_files:,} files  "
        f"{counts['records_in']:,} rows  {figures.rows_per_second:,.0f} rows/s  "
        f"{counts['duplicate']:,} duplicates  "
        f"GC lag {span(figures.levels['gc_lag_newest_ms'])}"
    )
