"""Figures of a run, summed over its micro-batches, as a table or as JSON."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from rich import box
from rich.table import Table

from dedup.cli.terminal import Terminal
from dedup.core.metrics import RECORDS, VERDICTS, BatchMetrics
from dedup.values.duration import cell, counted, iso, size, span

#: Counts that a run sums up over its micro-batches.
COUNTS = (
    *RECORDS,
    "segments_written",
    "segments_merged",
    "segments_expired",
    "segments_deleted",
    "views_built",
    "bytes_written",
)
#: Values that hold after a micro-batch. A run shows the values after its last micro-batch.
LEVELS = (
    "live_ids",
    "tail_ids",
    "buckets",
    "segments",
    "segments_pending",
    "state_bytes",
    "filter_state_bytes",
    "sidecar_bytes",
    "segment_bytes",
    "newest_ms",
    "low_watermark_ms",
    "late_watermark_ms",
    "gc_watermark_ms",
    "gc_lag_newest_ms",
    "gc_lag_now_ms",
)
#: Smallest width of a screen at which the notes beside the figures need no second line.
_WIDTH_OF_NOTES = 70


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """The figures of a run so far."""

    #: The sum of every count in `COUNTS` over this run's micro-batches.
    counts: dict[str, int]
    #: Every value in `LEVELS` after the last micro-batch.
    levels: dict[str, int | None]
    #: Number of files that complete micro-batches read, and number of these micro-batches.
    files: int
    batches: int
    #: Time since the query started.
    seconds: float
    #: Number of records that could not be read. No other count includes these records.
    bad: int = 0

    @classmethod
    def of(
        cls,
        batches: Iterable[BatchMetrics],
        *,
        emitted: frozenset[str],
        files: int,
        seconds: float,
        bad: int = 0,
    ) -> Figures:
        """Return the figures of a run, given its micro-batches in order.

        The count ``emitted`` is the number of rows whose verdict is in `emitted`. The operator's
        own count would not do, because with a verdict column the operator emits every row.
        """
        done = list(batches)
        last = done[-1] if done else None
        counts = {name: sum(getattr(b, name) for b in done) for name in COUNTS}
        counts["emitted"] = sum(counts[verdict] for verdict in emitted)
        return cls(
            counts=counts,
            levels={name: getattr(last, name) if last else None for name in LEVELS},
            files=files,
            batches=len(done),
            seconds=seconds,
            bad=bad,
        )

    @property
    def rows_per_second(self) -> float:
        return self.counts["records_in"] / self.seconds if self.seconds > 0 else 0.0

    @property
    def reads(self) -> int:
        """Number of IDs that a filter hit sent to the exact catalog."""
        return self.counts["filter_true_positive"] + self.counts["filter_false_positive"]

    @property
    def fpr(self) -> float | None:
        """False-positive rate of the filters, or None if they have judged no new ID yet."""
        unknown = self.counts["filter_negative"] + self.counts["filter_false_positive"]
        return self.counts["filter_false_positive"] / unknown if unknown else None

    def to_json(self) -> dict[str, Any]:
        """Return a flat object with the names of `BatchMetrics`. Times are also in ISO 8601."""
        return {
            **self.counts,
            **self.levels,
            "low_watermark": iso(self.levels["low_watermark_ms"]),
            "gc_watermark": iso(self.levels["gc_watermark_ms"]),
            "files": self.files,
            "batches": self.batches,
            "bad_records": self.bad,
            "seconds": round(self.seconds, 3),
            "rows_per_second": round(self.rows_per_second, 1),
        }


def table(figures: Figures, title: str, notes: Sequence[tuple[str, str, str]] = ()) -> Table:
    """Return a table with one figure per line, whose sums a reader can check.

    `notes` are additional lines at the end, as name, value and remark.
    """
    n, at = figures.counts, figures.levels
    rows = Table(title=title, box=box.SIMPLE, show_header=False, title_justify="left")
    rows.add_column(no_wrap=True)
    rows.add_column(justify="right", no_wrap=True)
    rows.add_column(style="dim")

    def line(name: str, value: object, note: str = "") -> None:
        rows.add_row(name, cell(value), note)

    verdict = "=" if sum(n[name] for name in VERDICTS) == n["records_in"] else "DIFFERS FROM"
    # Only rarely used options give a fifth or sixth verdict.
    lines = ("four", "five", "six")[bool(n["untimed"]) + bool(n["conflict"])]
    line("records in", n["records_in"], f"{verdict} sum of the next {lines}")
    line("  unique", n["unique"])
    line("  duplicate", n["duplicate"])
    line("  late", n["late"], "behind the late watermark")
    line("  null ID", n["null_id"])
    if n["untimed"]:
        line("  untimed", n["untimed"], "an ID, but no timestamp")
    if n["conflict"]:
        line("  conflict", n["conflict"], "a copy whose payload differs")
    if n["unchecked"]:
        line("  not looked up", n["unchecked"], "of these, under at-least-once")
    line("records out", n["emitted"])
    if figures.bad:
        line("bad records", figures.bad, "not read, and counted nowhere else")
    rows.add_section()
    line("cleared by the filters", n["filter_negative"], "new IDs, without the catalog")
    line("  in Spark state alone", n["filter_negative"] - n["filter_sidecar"])
    line("read from the catalog", figures.reads, "IDs that a filter may hold")
    rate = "" if figures.fpr is None else f"{figures.fpr:.2%} of the new IDs"
    line("  false positives", n["filter_false_positive"], rate)
    if n["filter_unconfirmed"]:
        lost = n["expected_lost_millionths"] / 1e6
        line("not confirmed", n["filter_unconfirmed"], "dropped because a filter may hold the ID")
        line("  lost, as expected", f"{lost:,.1f}", "of these, by how full the filters are")
    rows.add_section()
    line("live IDs", at["live_ids"])
    line("Spark state", size(at["state_bytes"]), f"filters {size(at['filter_state_bytes'])}")
    line("filter sidecars", size(at["sidecar_bytes"]))
    line("segments", size(at["segment_bytes"]), f"{cell(at['segments'])} live")
    line("segments written", n["segments_written"], f"{n['segments_merged']:,} merged again")
    pending = f"{cell(at['segments_pending'])} wait, merged ones too"
    line("segments expired", n["segments_expired"], f"{n['segments_deleted']:,} deleted; {pending}")
    rows.add_section()
    line("GC watermark", iso(at["gc_watermark_ms"]) or "none yet", "older IDs are forgotten")
    line("GC lag", span(at["gc_lag_newest_ms"]), "behind the newest record")
    rows.add_section()
    line("files", figures.files, counted(figures.batches, "micro-batch"))
    pace = f"{figures.rows_per_second:,.0f} rows/s, without Spark's start"
    line("seconds", f"{figures.seconds:.1f}", pace)
    for note in notes:
        line(*note)
    if Terminal().width < _WIDTH_OF_NOTES:
        rows.columns.pop()
    return rows
