"""Report the progress of a run: figures on stderr, and metrics for other programs."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, closing, contextmanager, suppress
from pathlib import Path

from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery
from rich.console import Console
from rich.live import Live
from rich.text import Text

from dedup.cli.figures import Figures
from dedup.cli.run.input.bad_rows import BAD
from dedup.cli.run.options import RunOptions
from dedup.cli.terminal import Terminal
from dedup.core.metrics import BatchMetrics
from dedup.sources.files.file_log import FileLog, log_offset
from dedup.spark.observations import as_dict, from_progress, pack_name
from dedup.tools.watch.listener import DedupListener
from dedup.values.duration import span

#: Longest time to wait until the listener has heard of the end of the last query.
_END_MS = 5_000
#: Seconds between two lines in a pipe, so that the log of a long run stays short.
_PLAIN_EVERY_S = 10.0


class Reporter:
    """Prints the progress of a run to a console, or nothing if the console is None.

    On a terminal, one line changes in place. In a pipe, a new line appears every 10 seconds.
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
        if self._console is not None:
            self._console.print(text, soft_wrap=True)

    def update(self, figures: Figures, total_files: int) -> None:
        """Show the figures so far. In a pipe, print them only if they have changed."""
        line, state = one_line(figures, total_files), (figures.batches, figures.files)
        if self._live is not None:
            self._live.update(Text(line, overflow="ellipsis", no_wrap=True))
        elif figures.batches and state != self._printed and time.monotonic() >= self._next_s:
            self._next_s, self._printed = time.monotonic() + _PLAIN_EVERY_S, state
            self.note(line)

    def close(self) -> None:
        if self._live is not None:
            self._live.stop()


def reporting(*, quiet: bool) -> AbstractContextManager[Reporter]:
    return closing(Reporter(None if quiet else Terminal(stderr=True)))


def one_line(figures: Figures, total_files: int) -> str:
    counts = figures.counts
    return (
        f"{figures.files:,}/{total_files:,} files  "
        f"{counts['records_in']:,} rows  {figures.rows_per_second:,.0f} rows/s  "
        f"{counts['duplicate']:,} duplicates  "
        f"GC lag {span(figures.levels['gc_lag_newest_ms'])}"
    )


class RunProgress:
    """Collects the micro-batches of a run's queries, and reports them."""

    def __init__(
        self, checkpoint: Path, listed: Iterable[str], emitted: frozenset[str], reporter: Reporter
    ) -> None:
        self.reporter = reporter
        self._emitted = emitted
        self._checkpoint, self._log = checkpoint, FileLog(checkpoint)
        # A micro-batch that an earlier run began but did not commit counts for this run.
        self._before = self._log.count(self._log.committed())
        self._total = len(self._log.ahead(listed))
        #: Metrics and number of bad records of each micro-batch.
        self._done: dict[int, tuple[BatchMetrics | None, int]] = {}
        self._files = 0
        self._start_s = time.monotonic()

    @property
    def figures(self) -> Figures:
        done = [self._done[batch_id] for batch_id in sorted(self._done)]
        return Figures.of(
            [metrics for metrics, _ in done if metrics is not None],
            emitted=self._emitted,
            files=self._files,
            seconds=time.monotonic() - self._start_s,
            bad=sum(bad for _, bad in done),
        )

    def look(self, query: StreamingQuery) -> None:
        """Collect the micro-batches that were completed since the last call, and report them.

        Raises StateError if a shard continued from an older state than the others.
        """
        last = query.lastProgress
        if last is not None and last["batchId"] not in self._done:
            for progress in query.recentProgress:
                observed = progress.get("observedMetrics", {}).get(pack_name("dedup"))
                metrics = from_progress(progress)
                if metrics is not None:
                    metrics.check_together()
                bad = 0 if observed is None else int(as_dict(observed)[BAD] or 0)
                self._done[progress["batchId"]] = metrics, bad
            self._log.refresh()
            done = self._log.count(log_offset(self._checkpoint, max(self._done)))
            self._files = max(0, done - self._before)
        self.reporter.update(self.figures, max(self._total, self._files))


@contextmanager
def publish_metrics(
    spark: SparkSession, options: RunOptions, note: Callable[[str], None]
) -> Iterator[None]:
    listener = DedupListener(
        lambda batch: None,
        log=options.log,
        prometheus_port=options.prometheus_port,
        prometheus_address=options.prometheus_address,
    )
    spark.streams.addListener(listener)
    try:
        if listener.prometheus_port is not None:
            address = options.prometheus_address
            host = f"[{address}]" if ":" in address else address
            note(f"Metrics are served at http://{host}:{listener.prometheus_port}/metrics")
        yield
    finally:
        with suppress(Exception):  # Java may have ended
            spark.sparkContext._jsc.sc().listenerBus().waitUntilEmpty(_END_MS)
        spark.streams.removeListener(listener)
