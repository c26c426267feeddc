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
    """Prints the progress of a run to a console, or nothing without one.

    A terminal has one line that changes. In a pipe a line is printed every 10 seconds.
    """

    def __init__(self, console: Console | None = None) -> None:
        self._console = console
        self._live: Live | None = None
        self._next_s = 0.0
        self._printed = (0, 0)
        if console is not None and console.is_terminal:
            self._live = Live(Text("starting"), console=console, transient=True)
            self._live.start()

    def note(self, text: str) -> None:
        """Print a message, above the line of a terminal."""
        if self._console is not None:
            self._console.print(text, soft_wrap=True)

    def update(self, figures: Figures, total_files: int) -> None:
        """Show the figures so far, or in a pipe print them if something has changed."""
        line, state = one_line(figures, total_files), (figures.batches, figures.files)
        if self._live is not None:
            self._live.update(Text(line, overflow="ellipsis", no_wrap=True))
        elif figures.batches and state != self._printed and time.monotonic() >= self._next_s:
            self._next_s, self._printed = time.monotonic() + _PLAIN_EVERY_S, state
            self.note(line)

    def close(self) -> None:
        """Remove the line of a terminal."""
        if self._live is not None:
            self._live.stop()


@contextmanager
def reporting(*, quiet: bool) -> Iterator[Reporter]:
    """Give a reporter to stderr, and close it at the end."""
    reporter = Reporter(None if quiet else Terminal(stderr=True))
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
