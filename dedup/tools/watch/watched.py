"""A query at one moment, as `dedup watch` shows it: health, watermarks, pace, rates and sizes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import median
from typing import Any

from dedup.core.forecast import BANDS
from dedup.core.metrics import STAGES, BatchMetrics, difference_ms, filter_fpr
from dedup.core.sequence import SEQUENCE_VERDICTS
from dedup.core.sequence_metrics import SEQUENCE_STAGES, AnyMetrics, SequenceMetrics
from dedup.sinks.figures import SinkMetrics, total
from dedup.tools.watch.health import WINDOW, Health, TimedBatch
from dedup.values.duration import cell, size, span, took
from dedup.values.html import escaped, for_notebook, table

#: A pause of this many times the median pause is long. Rates start after the last long pause.
LONG_PAUSE = 10
#: Counts in each micro-batch that are shown per second.
RATES = (
    "records_in", "unique", "duplicate", "late", "null_id", "untimed", "conflict",
    "future", "catalog_reads", "bytes_written",
)  # fmt: skip
#: Counts of `dedup_by_sequence` that are shown per second.
SEQUENCE_RATES = ("records_in", *SEQUENCE_VERDICTS, "future")
#: Counts of `dedup_by_sequence` that are summed over the window.
TOTALS = (
    *SEQUENCE_VERDICTS, "missing", "recovered", "producers_new", "producers_expired",
)  # fmt: skip
#: Counts of a sink that are summed over the window.
SINK_COUNTS = (
    "rows", "bytes", "retries", "fenced", "undelivered", "task_us", "driver_us",
)  # fmt: skip

#: Figures of a micro-batch: the label, the field or property, and the function that formats it.
Figures = Sequence[tuple[str, str, Callable[[int | None], str]]]
_FIGURES: Figures = (
    ("records", "records_in", cell), ("duplicates", "duplicate", cell),
    ("live IDs", "live_ids", cell), ("bytes", "stored_bytes", size),
    ("GC lag", "gc_lag_newest_ms", span),
)  # fmt: skip
_SEQUENCE_FIGURES: Figures = (
    *_FIGURES[:2], ("missing", "missing", cell), ("producers", "producers", cell),
    ("bytes", "stored_bytes", size),
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class PacedBatch:
    """A micro-batch, the time of its report, its duration, and its interval.

    `every_ms` is the time since the previous micro-batch of the run started, or None for the first.
    """

    at_ms: int
    batch: AnyMetrics
    took_ms: int | None
    every_ms: int | None


@dataclass(frozen=True)
class Watched:
    """One query at one moment."""

    query_id: str
    name: str | None
    #: Time of this moment by the watcher's clock.
    now_ms: int
    health: Health
    #: The last micro-batches, at most `HISTORY`. All belong to one operator.
    history: tuple[TimedBatch, ...]
    #: Time of the last event of the query, with or without a micro-batch.
    heard_ms: int | None
    #: Number of unreadable lines in the metrics log.
    unreadable: int
    #: Metrics of sinks in the last micro-batches, oldest first.
    sink_history: tuple[SinkMetrics, ...] = ()

    @property
    def batches(self) -> tuple[TimedBatch, ...]:
        return self.history[-WINDOW:]

    @property
    def last(self) -> AnyMetrics | None:
        return self.history[-1].batch if self.history else None

    @property
    def of_ids(self) -> list[BatchMetrics]:
        """The last micro-batches if the query uses `dedup_by_id`, else an empty list."""
        return [batch for _, batch in self.batches if isinstance(batch, BatchMetrics)]

    @property
    def of_sequences(self) -> list[SequenceMetrics]:
        """The last micro-batches if the query uses `dedup_by_sequence`, else an empty list."""
        return [batch for _, batch in self.batches if isinstance(batch, SequenceMetrics)]

    @property
    def figures(self) -> Figures:
        """The figures of a micro-batch that show how a query of its operator does."""
        return _SEQUENCE_FIGURES if self.of_sequences else _FIGURES

    def _repr_html_(self) -> str:
        """Return the verdict, the window's micro-batches and the sinks, for a notebook."""
        name, health = self.name or self.query_id, self.health
        verdict = f"<p><b>{health.status}</b> {escaped(name)}: {escaped(health.reason)}</p>"
        batches = [
            (
                step.batch.batch_id,
                took(step.took_ms),
                took(step.every_ms),
                *(written(getattr(step.batch, field)) for _, field, written in self.figures),
            )
            for step in reversed(self.steps()[-WINDOW:])
        ]
        head = ("micro-batch", "took", "every", *(label for label, _, _ in self.figures))
        sinks = [(sink, *sums.values()) for sink, sums in self.sinks().items()]
        of_sinks = table(("sink", "micro-batches", *SINK_COUNTS), sinks) if sinks else ""
        return for_notebook(verdict, table(head, batches) if batches else "", of_sinks)

    def rates(self) -> dict[str, float | None]:
        """Return counts per second since the last long pause, or None after a single micro-batch.

        The measured time ends at the last micro-batch. If the next micro-batch is overdue, it ends
        now, so that the rates of an idle query fall.
        """
        names = SEQUENCE_RATES if self.of_sequences else RATES
        pauses_ms = [after.at_ms - before.at_ms for before, after in pairwise(self.batches)]
        long_ms = LONG_PAUSE * median(pauses_ms) if pauses_ms else 0
        first = max((n for n, ms in enumerate(pauses_ms, 1) if ms > long_ms), default=0)
        batches = self.batches[first:]
        if len(batches) < 2:
            return dict.fromkeys(names)
        begin_ms, end_ms = batches[0].at_ms, batches[-1].at_ms
        if self.now_ms - end_ms > 2 * max(pauses_ms[first:]):
            end_ms = self.now_ms
        if end_ms <= begin_ms:
            return dict.fromkeys(names)
        # The first micro-batch only marks the start of the measured time.
        return {
            name: sum(getattr(batch, name) for _, batch in batches[1:]) * 1000 / (end_ms - begin_ms)
            for name in names
        }

    def steps(self) -> list[PacedBatch]:
        steps: list[PacedBatch] = []
        before: PacedBatch | None = None
        for at_ms, batch in self.history:
            # The log may lack the lines of some micro-batches.
            passed = 0 if before is None else batch.batch_id - before.batch.batch_id
            every_ms = None
            if before is not None and passed > 0 and batch.run_id == before.batch.run_id:
                starts_ms = at_ms - batch.batch_ms - (before.at_ms - before.batch.batch_ms)
                every_ms = max(0, starts_ms) // passed
            before = PacedBatch(at_ms, batch, batch.batch_ms or None, every_ms)
            steps.append(before)
        return steps

    def pace(self) -> dict[str, int | None]:
        """Return how long micro-batches take and how often they start, in ms, or None if unknown.

        ``took_ms`` is the duration of the last micro-batch. ``usual_ms`` is the median duration
        over the last micro-batches, and ``every_ms`` the median time from one start to the next.
        """
        recent = self.steps()[-WINDOW:]
        return {
            "took_ms": recent[-1].took_ms if recent else None,
            "usual_ms": _median([step.took_ms for step in recent]),
            "every_ms": _median([step.every_ms for step in recent]),
        }

    def stage_ms(self) -> dict[str, float]:
        """Return the mean task time that each stage takes in a micro-batch, in milliseconds."""
        of = max(1, len(self.batches))
        return {
            stage: sum(batch.stage_us.get(stage, 0) for _, batch in self.batches) / 1000 / of
            for stage in (SEQUENCE_STAGES if self.of_sequences else STAGES)
        }

    def sinks(self) -> dict[str, dict[str, int | None]]:
        """Return the sums of `SINK_COUNTS` over the last micro-batches, by the sink's name.

        ``batches`` is the number of these micro-batches. Unknown counts are None.
        """
        first = min((batch.batch_id for _, batch in self.batches), default=0)
        recent = [one for one in self.sink_history if one.batch_id >= first]
        by_sink: dict[str, dict[str, int | None]] = {}
        for sink in dict.fromkeys(one.sink for one in recent):
            own = [one for one in recent if one.sink == sink]
            sums = {name: total(getattr(one, name) for one in own) for name in SINK_COUNTS}
            by_sink[sink] = {"batches": len(own), **sums}
        return by_sink

    def totals(self) -> dict[str, int]:
        return {name: sum(getattr(batch, name) for batch in self.of_sequences) for name in TOTALS}

    def answered_by_state(self) -> float | None:
        """Return the share of new IDs that filters in Spark state alone have cleared recently."""
        cleared = sum(batch.filter_negative for batch in self.of_ids)
        outside = sum(batch.filter_sidecar for batch in self.of_ids)
        return (cleared - outside) / cleared if cleared else None

    def expected_lost(self) -> float | None:
        """Return how many new IDs the guarantee at-most-once has probably dropped recently.

        Returns None if the query checked every filter hit in the catalog.
        """
        if not any(batch.filter_unconfirmed for batch in self.of_ids):
            return None
        return sum(batch.expected_lost for batch in self.of_ids)

    def gaps(self) -> dict[str, int | None]:
        """Return the milliseconds between the clock, the newest timestamp and the watermarks.

        ``source`` is the time from the newest timestamp to the clock. ``watermark`` is the time
        from the low watermark to the newest timestamp. The low watermark waits for the slowest
        source partition. ``kept`` is the time from the GC watermark to the low watermark.
        ``excess`` is the part of ``kept`` beyond lateness and horizon, or beyond `expire_after`.
        """
        last = self.last
        if last is None:
            return dict.fromkeys(("source", "watermark", "kept", "excess"))
        kept_ms = difference_ms(last.low_watermark_ms, last.gc_watermark_ms)
        return {
            "source": difference_ms(self.now_ms, last.newest_ms),
            "watermark": difference_ms(last.newest_ms, last.low_watermark_ms),
            "kept": kept_ms,
            "excess": None if kept_ms is None else kept_ms - last.remembered_ms,
        }

    def expiry(self) -> list[tuple[int, int, int]]:
        """Return how many IDs will expire as the GC watermark advances.

        A tuple holds an advance in milliseconds, and the IDs and bytes that expire with it.
        """
        if not self.of_ids:
            return []
        last = self.of_ids[-1]
        return [
            (last.horizon_ms * (band + 1) // BANDS, ids, size)
            for band, (ids, size) in enumerate(last.expiring)
        ]

    def to_json(self) -> dict[str, Any]:
        last = self.last
        body: dict[str, Any] = {
            "query_id": self.query_id,
            "name": self.name,
            "status": str(self.health.status),
            "reason": self.health.reason,
            "evidence": self.health.evidence,
            "window": WINDOW,
            "at_ms": self.now_ms,
            "heard_ms": self.heard_ms,
            "last_batch_ms": self.batches[-1].at_ms if self.batches else None,
            "gaps_ms": self.gaps(),
            "per_second": self.rates(),
            "unreadable": self.unreadable,
            "sinks": self.sinks(),
        }
        if self.of_sequences:
            body["totals"] = self.totals()
        else:
            body["filter_fpr"] = filter_fpr(self.of_ids)
            body["expected_lost"] = self.expected_lost()
        if last is not None:
            body["pace"] = self.pace()
            body["stage_ms"] = self.stage_ms()
            if self.of_ids:
                body["expiry"] = [
                    {"within_ms": within_ms, "ids": ids, "bytes": size}
                    for within_ms, ids, size in self.expiry()
                ]
            body["last"] = last.to_json()
        return body


def _median(values: Sequence[int | None]) -> int | None:
    known = [value for value in values if value is not None]
    return round(median(known)) if known else None
