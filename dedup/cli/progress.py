"""Progress of a run on stderr: a live line on a terminal, plain lines in a pipe, or nothing."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.live import Live
from rich.text import Text

from dedup.cli.figures import Figures
from dedup.cli.terminal import Terminal
from dedup.core.duration import span

#: Seconds between plain lines, so that the log of a long run stays short.
_PLAIN_EVERY_S = 10.0


class Reporter:
    """Receives a run's progress and prints nothing; every method returns at once."""

    def note(self, text: str) -> None:
        """Print a message."""

    def update(self, figures: Figures, total_files: int) -> None:
        """Show the figures so far."""

    def close(self) -> None:
        """Restore the terminal."""


class PlainLines(Reporter):
    """Prints a line every 10 seconds, for logs and pipes."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._next_s = 0.0
        self._printed = (-1, -1)

    def note(self, text: str) -> None:
        """Print a message."""
        self._console.print(text, soft_wrap=True)

    def update(self, figures: Figures, total_files: int) -> None:
        """Print a line if the last one is old enough and something has changed."""
        state = (figures.batches, figures.files)
        if time.monotonic() < self._next_s or state == self._printed or not figures.batches:
            return
        self._next_s = time.monotonic() + _PLAIN_EVERY_S
        self._printed = state
        self.note(one_line(figures, total_files))


class LiveLine(Reporter):
    """Updates one line of a terminal."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._live = Live(Text("starting"), console=console, refresh_per_second=4, transient=True)
        self._live.start()

    def note(self, text: str) -> None:
        """Print a message above the line."""
        self._console.print(text, soft_wrap=True)

    def update(self, figures: Figures, total_files: int) -> None:
        """Update the line."""
        self._live.update(Text(one_line(figures, total_files), overflow="ellipsis", no_wrap=True))

    def close(self) -> None:
        """Remove the line."""
        self._live.stop()


@contextmanager
def reporting(*, quiet: bool) -> Iterator[Reporter]:
    """Give the reporter that fits stderr, and close it at the end."""
    console = Terminal(stderr=True)
    talks = LiveLine if console.is_terminal else PlainLines
    reporter = Reporter() if quiet else talks(console)
    try:
        yield reporter
    finally:
        reporter.close()


def one_line(figures: Figures, total_files: int) -> str:
    """Return files, rows per second, duplicates so far and GC lag."""
    counts = figures.counts
    return (
        f"{figures.files:,}/{total_files:,} files  "
        f"{counts['records_in']:,} rows  {figures.rows_per_second:,.0f} rows/s  "
        f"{counts['duplicate']:,} duplicates  "
        f"GC lag {span(figures.levels['gc_lag_newest_ms'])}"
    )
