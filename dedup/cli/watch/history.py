"""What `dedup watch` shows of the micro-batches before the last where a terminal has room."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich.text import Text

from dedup.cli.figures import size
from dedup.core.duration import iso, span
from dedup.core.metrics import STAGES
from dedup.monitor.watched import PacedBatch, Watched

#: Rows of the table at most, and lines that it is worth its head for.
_ROWS, _LEAST_ROWS = 30, 3
_LEVELS = "▁▂▃▄▅▆▇█"
_LABEL, _ENDS = 17, 30
#: Columns of the table: name and width.
_COLUMNS = (
    ("number", 8), ("done (UTC)", 10), ("took", 8), ("every", 8), ("records", 10),
    ("duplicate", 10), ("late", 8), ("GC lag", 11),
)  # fmt: skip
_WIDTH = sum(wide for _, wide in _COLUMNS) + len(_COLUMNS) - 1
#: And of a stage's.
_STAGE_WIDTH = 9
#: Seconds are told to so many characters.
_EXACT_MS = 100_000


def took(duration_ms: float | None) -> str:
    """A short time, e.g. ``0.81 s``; from 100 s on as ``00:02:03``."""
    if duration_ms is None:
        return "-"
    if duration_ms >= _EXACT_MS:
        return span(round(duration_ms))
    seconds = duration_ms / 1000
    return f"{seconds:.2f} s" if seconds < 9.995 else f"{seconds:.1f} s"


def history(one: Watched, width: int, room: int) -> list[Text]:
    """Curves of the micro-batches that are known and a table of the last ones, newest first.

    Parameters
    ----------
    one : Watched
    width, room : int
        Columns and lines that there are. Stages have columns where these are more than 80.
    """
    steps = one.steps()
    if len(steps) < 2:
        return []
    curves = list(_curves(steps, width))
    if room < len(curves) + 2:
        return []
    lines = [Text(), Text(f"the last {len(steps)} micro-batches", style="bold"), *curves]
    rows = min(room - len(lines) - 2, _ROWS)
    if rows >= _LEAST_ROWS and width >= _WIDTH:
        lines += [Text(), *_table(steps, width, rows)]
    for line in lines:
        line.truncate(width, overflow="ellipsis")
    return lines


def _curves(steps: Sequence[PacedBatch], width: int) -> Iterator[Text]:
    """A line for each figure, the newest micro-batch to the right."""
    recent = steps[-max(1, width - _LABEL - _ENDS) :]
    batches = [step.batch for step in recent]
    took_ms = [step.took_ms for step in recent]
    yield _curve("duration", took_ms, took(_least(took_ms)), took(_most(took_ms)))
    for label, counts in (
        ("records", [batch.records_in for batch in batches]),
        ("duplicates", [batch.duplicate for batch in batches]),
        ("live IDs", [batch.live_ids for batch in batches]),
    ):
        yield _curve(label, counts, f"{min(counts):,}", f"{max(counts):,}")
    sizes = [b.state_bytes + b.segment_bytes + b.sidecar_bytes for b in batches]
    yield _curve("bytes", sizes, size(min(sizes)), size(max(sizes)))
    lags = [batch.gc_lag_newest_ms for batch in batches]
    yield _curve("GC lag", lags, span(_least(lags)), span(_most(lags)))


def _curve(label: str, values: Sequence[int | None], low: str, high: str) -> Text:
    """From nothing to the most; a figure that hardly moves is a bar of one height."""
    most = _most(values) or 1
    marks = "".join(
        " " if value is None else _LEVELS[min(7, max(0, value) * 8 // most)] for value in values
    )
    line = Text(f"{label:<{_LABEL}}")
    line.append(marks, style="cyan")
    return line.append(f"  {low}" if low == high else f"  {low} to {high}")


def _table(steps: Sequence[PacedBatch], width: int, rows: int) -> Iterator[Text]:
    shown = steps[: -rows - 1 : -1]
    room = (width - _WIDTH) // (_STAGE_WIDTH + 1)
    total = {stage: sum(s.batch.stage_us.get(stage, 0) for s in shown) for stage in STAGES}
    longest = sorted(STAGES, key=lambda stage: -total[stage])[:room]
    stages = [stage for stage in STAGES if stage in longest]
    head = [f"{name:>{wide}}" for name, wide in _COLUMNS]
    head += [f"{stage + ' ms':>{_STAGE_WIDTH}}" for stage in stages]
    yield Text(" ".join(head), style="dim")
    for step in shown:
        batch = step.batch
        cells = (
            str(batch.batch_id), (iso(step.at_ms) or "-")[11:19], took(step.took_ms),
            took(step.every_ms), f"{batch.records_in:,}", f"{batch.duplicate:,}",
            f"{batch.late:,}", span(batch.gc_lag_newest_ms),
        )  # fmt: skip
        line = [f"{cell:>{wide}}" for cell, (_, wide) in zip(cells, _COLUMNS, strict=True)]
        line += [f"{batch.stage_us.get(s, 0) / 1000:>{_STAGE_WIDTH},.0f}" for s in stages]
        yield Text(" ".join(line))


def _least(values: Sequence[int | None]) -> int | None:
    return min((value for value in values if value is not None), default=None)


def _most(values: Sequence[int | None]) -> int | None:
    return max((value for value in values if value is not None), default=None)
