"""The figures of a run: summed from its micro-batches, as a table or as JSON."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from dedup.core.duration import counted, iso, size, span
from dedup.core.metrics import RECORDS, VERDICTS, BatchMetrics

if TYPE_CHECKING:
    from rich.table import Table

#: Counted in each micro-batch; a run has their sum.
COUNTS = (
    *RECORDS,
    "segments_written",
    "segments_merged",
    "segments_expired",
    "segments_deleted",
    "views_built",
    "bytes_written",
)
#: Measured after each micro-batch; a run has the last one's.
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """What a run did so far.

    Parameters
    ----------
    counts : dict of str to int
        Each of `COUNTS`, summed over the micro-batches of this run.
    levels : dict of str to int or None
        Each of `LEVELS`, after the last micro-batch; None where there was none, or no value.
    files : int
        Input files of the micro-batches that are complete.
    batches : int
        Complete micro-batches.
    seconds : float
        Since the query started.
    bad : int
        Records that could not be read, which are in no other count.
    """

    counts: dict[str, int]
    levels: dict[str, int | None]
    files: int
    batches: int
    seconds: float
    bad: int = 0

    @classmethod
    def of(
        cls,
        batches: Iterable[BatchMetrics],
        *,
        goes_on: frozenset[str],
        files: int,
        seconds: float,
        bad: int = 0,
    ) -> Figures:
        """Sum micro-batches, given in their order.

        ``emitted`` becomes the rows whose verdict is in `goes_on`: with a verdict column the
        operator itself lets every row go on.
        """
        done = list(batches)
        last = done[-1] if done else None
        counts = {name: sum(getattr(b, name) for b in done) for name in COUNTS}
        counts["emitted"] = sum(counts[verdict] for verdict in goes_on)
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
        """Records taken in per second since the query started."""
        return self.counts["records_in"] / self.seconds if self.seconds > 0 else 0.0

    @property
    def reads(self) -> int:
        """IDs that the filters sent to the exact catalog."""
        return self.counts["filter_true_positive"] + self.counts["filter_false_positive"]

    def to_json(self) -> dict[str, Any]:
        """Flat plain values; names are those of `BatchMetrics`, times also as ISO 8601 text."""
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
    """Figures that a reader can check against each other, one line each.

    Parameters
    ----------
    figures : Figures
    title : str
    notes : sequence of (str, str, str)
        More lines for the end: name, value, and what is to be said of it.
    """
    from rich import box
    from rich.table import Table

    n, at = figures.counts, figures.levels
    rows = Table(title=title, box=box.SIMPLE, show_header=False, title_justify="left")
    rows.add_column(no_wrap=True)
    rows.add_column(justify="right", no_wrap=True)
    rows.add_column(style="dim")

    def line(name: str, value: object, note: str = "") -> None:
        rows.add_row(name, f"{value:,}" if isinstance(value, int) else str(value), note)

    verdict = "=" if sum(n[name] for name in VERDICTS) == n["records_in"] else "DIFFERS FROM"
    # Few ever choose a policy under which there is a fifth.
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
    line("cleared by the filters", n["filter_negative"], "new IDs that cost no read")
    line("read from the catalog", figures.reads, "IDs that a filter may hold")
    line("  false positives", n["filter_false_positive"], _rate(n))
    if n["filter_unconfirmed"]:
        lost = n["expected_lost_millionths"] / 1e6
        line("not confirmed", n["filter_unconfirmed"], "IDs that the filters alone took for seen")
        line("  lost, as expected", f"{lost:,.1f}", "of these, by how full the filters are")
    rows.add_section()
    line("live IDs", _known(at["live_ids"]))
    line("Spark state", size(at["state_bytes"]), f"filters {size(at['filter_state_bytes'])}")
    line("filter sidecars", size(at["sidecar_bytes"]))
    line("segments", size(at["segment_bytes"]), f"{_known(at['segments'])} live")
    line("segments written", n["segments_written"], f"{n['segments_merged']:,} merged again")
    line(
        "segments expired",
        n["segments_expired"],
        f"{n['segments_deleted']:,} deleted; "
        f"{_known(at['segments_pending'])} wait, merged ones too",
    )
    rows.add_section()
    line("GC watermark", iso(at["gc_watermark_ms"]) or "none yet", "older IDs are forgotten")
    line("GC lag", span(at["gc_lag_newest_ms"]), "behind the newest record")
    rows.add_section()
    line("files", figures.files, counted(figures.batches, "micro-batch"))
    line(
        "seconds",
        f"{figures.seconds:.1f}",
        f"{figures.rows_per_second:,.0f} rows/s, without Spark's start",
    )
    for name, value, note in notes:
        line(name, value, note)
    return rows


def _rate(counts: dict[str, int]) -> str:
    unknown = counts["filter_negative"] + counts["filter_false_positive"]
    if not unknown:
        return ""
    return f"{counts['filter_false_positive'] / unknown:.2%} of the new IDs"


def _known(count: int | None) -> str:
    return "-" if count is None else f"{count:,}"
