"""The past on a large screen of `dedup watch`: curves and a table of the last micro-batches."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from rich.text import Text

from dedup.core.duration import iso, size, span
from dedup.core.metrics import STAGES
from dedup.core.sequence_metrics import SEQUENCE_STAGES, SequenceMetrics
from dedup.tools.watch.watched import PacedBatch, Watched

#: Rows of the table at most, and fewest rows that justify its head.
_ROWS, _LEAST_ROWS = 30, 3
_LEVELS = "▁▂▃▄▅▆▇█"
_LABEL, _ENDS = 17, 30
#: Name and width of the table's first columns.
_COLUMNS = (("number", 8), ("done (UTC)", 10), ("took", 8), ("every", 8))
#: Label, field or property, and format of a micro-batch's figures.
_Figures = Sequence[tuple[str, str, Callable[[int | None], str]]]


def _count(value: int | None) -> str:
    return f"{value or 0:,}"


_CURVES: _Figures = (
    ("records", "records_in", _count), ("duplicates", "duplicate", _count),
    ("live IDs", "live_ids", _count), ("bytes", "stored_bytes", size),
    ("GC lag", "gc_lag_newest_ms", span),
)  # fmt: skip
_CELLS: _Figures = (
    ("records", "records_in", _count), ("duplicate", "duplicate", _count),
    ("late", "late", _count), ("GC lag", "gc_lag_newest_ms", span),
)  # fmt: skip
_SEQUENCE_CURVES: _Figures = (
    *_CURVES[:2], ("missing", "missing", _count), ("producers", "producers", _count),
    ("bytes", "stored_bytes", size),
)  # fmt: skip
_SEQUENCE_CELLS: _Figures = (
    *_CELLS[:2], ("missing", "missing", _count), ("producers", "producers", _count),
)  # fmt: skip
#: Widths of the first columns and of the figures.
_WIDTHS = (*(wide for _, wide in _COLUMNS), 10, 10, 8, 11)
_WIDTH = sum(_WIDTHS) + len(_WIDTHS) - 1
_STAGE_WIDTH = 9
#: Longer times are shown in seconds alone.
_EXACT_MS = 100_000


def took(duration_ms: float | None) -> str:
    """Return a short time as ``0.81 s``, and from 100 s on as ``00:02:03``."""
    if duration_ms is None:
        return "-"
    if duration_ms >= _EXACT_MS:
        return span(round(duration_ms))
    seconds = duration_ms / 1000
    return f"{seconds:.2f} s" if seconds < 9.995 else f"{seconds:.1f} s"


def history(one: Watched, width: int, room: int) -> list[Text]:
    """Return curves of the known micro-batches and a table of the last ones, newest first.

    They fill `width` columns and at most `room` lines. More than 80 columns show stages too.
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
    recent = steps[-max(1, width - _LABEL - _ENDS) :]
    yield _curve("duration", [step.took_ms for step in recent], took)
    for label, field, written in _SEQUENCE_CURVES if _of_sequences(recent) else _CURVES:
        yield _curve(label, [getattr(step.batch, field) for step in recent], written)


def _curve(label: str, values: Sequence[int | None], written: Callable[[int | None], str]) -> Text:
    known = [value for value in values if value is not None]
    least, most = min(known, default=None), max(known, default=None)
    marks = "".join(
        " " if value is None else _LEVELS[min(7, max(0, value) * 8 // (most or 1))]
        for value in values
    )
    low, high = written(least), written(most)
    line = Text(f"{label:<{_LABEL}}")
    line.append(marks, style="cyan")
    return line.append(f"  {low}" if low == high else f"  {low} to {high}")


def _table(steps: Sequence[PacedBatch], width: int, rows: int) -> Iterator[Text]:
    recent = steps[: -rows - 1 : -1]
    known: Sequence[str] = SEQUENCE_STAGES if _of_sequences(recent) else STAGES
    figures = _SEQUENCE_CELLS if _of_sequences(recent) else _CELLS
    room = (width - _WIDTH) // (_STAGE_WIDTH + 1)
    total = {stage: sum(s.batch.stage_us.get(stage, 0) for s in recent) for stage in known}
    longest = sorted(known, key=lambda stage: -total[stage])[:room]
    stages = [stage for stage in known if stage in longest]
    names = (*(name for name, _ in _COLUMNS), *(name for name, _, _ in figures))
    head = [f"{name:>{wide}}" for name, wide in zip(names, _WIDTHS, strict=True)]
    head += [f"{stage + ' ms':>{_STAGE_WIDTH}}" for stage in stages]
    yield Text(" ".join(head), style="dim")
    for step in recent:
        batch = step.batch
        cells = (
            str(batch.batch_id), (iso(step.at_ms) or "-")[11:19], took(step.took_ms),
            took(step.every_ms), *(written(getattr(batch, field)) for _, field, written in figures),
        )  # fmt: skip
        line = [f"{cell:>{wide}}" for cell, wide in zip(cells, _WIDTHS, strict=True)]
        line += [f"{batch.stage_us.get(s, 0) / 1000:>{_STAGE_WIDTH},.0f}" for s in stages]
        yield Text(" ".join(line))


def _of_sequences(steps: Sequence[PacedBatch]) -> bool:
    return isinstance(steps[-1].batch, SequenceMetrics)
