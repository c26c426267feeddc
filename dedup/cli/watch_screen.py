"""The screen of `dedup watch`, for terminals of 80x24 characters or more.

The screen shows one query in full, and every other query in a line. A large screen also shows the
*past*, which is a table and curves of the last micro-batches.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from rich.console import Console
from rich.text import Text

from dedup.core.metrics import STAGES, BatchMetrics, filter_fpr
from dedup.core.sequence_metrics import SEQUENCE_STAGES, AnyMetrics, SequenceMetrics
from dedup.tools.watch.health import WINDOW, Status, share_of
from dedup.tools.watch.watched import Figures, PacedBatch, Watched
from dedup.values.duration import cell, iso, size, span, took

WIDTH, HEIGHT = 80, 24
_LABEL, _VALUE = 17, 21
_BAR = 20
#: Exit code and colour of each status, from the least to the most urgent.
STATUSES = {
    Status.OK: (0, "green"),
    Status.SHORTENED: (16, "yellow"),
    Status.LATE: (14, "yellow"),
    Status.FUTURE: (15, "yellow"),
    Status.LAGGING: (10, "yellow"),
    Status.STALLED: (11, "magenta"),
    Status.STOPPED: (12, "red"),
    Status.REWOUND: (13, "red"),
}
#: If producers exceed this share of `max_producers`, their number is highlighted.
_NEARLY_FULL = 0.8
#: Rare verdicts of `dedup_by_sequence`. A verdict gets a line only if it occurs.
_RARE = {
    "fenced": "a newer epoch of their producer was seen",
    "unknown": "cannot tell whether they are new",
    "unnumbered": "no producer, epoch or sequence",
    "untimed": "no timestamp",
}
#: Largest number of rows in the table. With fewer rows than the second number the table is omitted.
_ROWS, _LEAST_ROWS = 30, 3
_LEVELS = "▁▂▃▄▅▆▇█"
_ENDS = 30
#: Titles of the table's first columns, widths of these columns, and width of all other columns.
_COLUMNS = ("number", "done (UTC)", "took", "every")
_WIDTHS = (8, 10, 8, 8, 10, 10, 8, 11)
_TABLE_WIDTH = sum(_WIDTHS) + len(_WIDTHS) - 1
_CELLS: Figures = (
    ("records", "records_in", cell), ("duplicate", "duplicate", cell),
    ("late", "late", cell), ("GC lag", "gc_lag_newest_ms", span),
)  # fmt: skip
_SEQUENCE_CELLS: Figures = (
    *_CELLS[:2], ("missing", "missing", cell), ("producers", "producers", cell),
)  # fmt: skip
_STAGE_WIDTH = 9


def worst(watched: Sequence[Watched]) -> Watched:
    return max(watched, key=_urgency)


def _urgency(one: Watched) -> int:
    return list(STATUSES).index(one.health.status)


def waiting(why: str, *, width: int = WIDTH) -> list[Text]:
    return _wrapped(Text.assemble((" WAITING ", "reverse bold yellow"), f" {why}"), width)


def fit(lines: list[Text], width: int, height: int) -> list[Text]:
    """Return as many lines as a terminal can show. The last line counts the hidden lines."""
    if len(lines) <= height:
        return lines
    hidden = len(lines) - height + 1
    last = Text(
        f"{hidden} more lines: make the terminal larger ({WIDTH}x{HEIGHT} shows all of one query)",
        style="reverse",
    )
    last.truncate(width, overflow="ellipsis")
    return [*lines[: height - 1], last]


def screen(
    watched: Sequence[Watched],
    *,
    width: int = WIDTH,
    height: int = HEIGHT,
    note: str | None = None,
    past: bool = True,
) -> list[Text]:
    """Return the lines of the screen.

    The screen begins with `note`, then the worst query in full, then a line for every other query.
    With `past`, curves and a table of micro-batches fill the rest. Only these are wider than 80
    columns. If the lines exceed `height`, the last line counts the hidden lines.
    """
    first, *others = sorted(watched, key=_urgency, reverse=True)
    unreadable = sum(one.unreadable for one in watched)
    count = f"lines of the metrics log that cannot be read: {unreadable:,}" if unreadable else None
    lines = [line for text in (note, count) if text for line in _wrapped(Text(text), width)]
    lines += _query(first, width)
    room = max(1, height - len(lines))
    badges = [_badge(one) for one in others[:room]]
    if len(others) > room:
        hidden = others[room - 1 :]
        unwell = sum(one.health.status is not Status.OK for one in hidden)
        badges[-1] = Text(f"... and {len(hidden)} more, {unwell} of them not OK")
    lines += _sources(first, room - len(badges)) + badges
    for line in lines:
        line.truncate(min(width, WIDTH), overflow="ellipsis")
    if past:
        lines += history(first, width, height - len(lines))
    return lines


def _figure(label: str, value: str | None, more: str, style: str = "") -> Text:
    shown = (f"{value or '-':<{_VALUE}}", "bold")
    return Text.assemble(f"{label:<{_LABEL}}", shown, more, style=style)


def _rate(per_second: float | None) -> str:
    if per_second is None:
        return "-"
    return f"{per_second:,.0f}" if per_second >= 10 or per_second == 0 else f"{per_second:.1f}"


def _query(one: Watched, width: int) -> Iterator[Text]:
    # Do not shorten the reason, because it ends with what to do.
    yield from _wrapped(_badge(one), width)
    last = one.last
    if last is None:
        return
    if any(batch.other_queries for batch in one.of_ids):
        text = (
            "Its checkpoint is new, and other queries with the same ID columns use its catalog. If "
            "the checkpoint replaces a lost one: dedup remedies lost-checkpoint"
        )
        yield from _wrapped(Text(text, style="yellow"), width)
    yield Text()
    yield from _times(one, last)
    yield Text()
    yield _pace(one, last)
    yield _stages(one)
    yield from _sinks(one)
    if isinstance(last, SequenceMetrics):
        yield from _producers(one, last)
        return
    yield from _amounts(one, last)
    yield Text()
    yield from _expiry(one)


def _times(one: Watched, last: AnyMetrics) -> Iterator[Text]:
    gaps = one.gaps()
    clock = f"{span(gaps['source'])} behind the clock"
    if isinstance(last, SequenceMetrics) and last.by_query_time:
        yield _figure("last micro-batch", iso(last.now_ms), clock)
        yield _figure("expire_after", span(last.remembered_ms), "of query time, without downtime")
        return
    yield _figure("newest timestamp", iso(last.newest_ms), clock)
    behind = f"{span(gaps['watermark'])} behind"
    yield _figure("low watermark", iso(last.low_watermark_ms), behind + _holder(last, len(behind)))
    excess_ms = gaps["excess"] or 0
    options = "expire_after" if one.of_sequences else "horizon and lateness"
    expected = f"{span(last.remembered_ms)} behind by {options}"
    more = f"{span(excess_ms)} more than {options}"
    yield _figure("GC watermark", iso(last.gc_watermark_ms), more if excess_ms > 0 else expected)


def _holder(last: AnyMetrics, taken: int) -> str:
    """Return the source partition and shard that hold the GC watermark back.

    `taken` columns of the line are used already.
    """
    if isinstance(last, SequenceMetrics):  # metrics of sequences name no source partition
        return ""
    shard = "" if last.gc_shard is None else f" in shard {last.gc_shard}"
    if not last.gc_source:
        return f",{shard}" if shard else ""
    # Shorten a long name. The list of source partitions below shows more of it.
    name = Text(last.gc_source)
    name.truncate(WIDTH - _LABEL - _VALUE - taken - len(": " + shard), overflow="ellipsis")
    return f": {name.plain}{shard}"


def _pace(one: Watched, last: AnyMetrics) -> Text:
    took_ms, usual_ms, every_ms = one.pace().values()
    often = "" if every_ms is None else f", started every {took(every_ms)}"
    if usual_ms and every_ms and every_ms < 1.1 * usual_ms:
        often = ", one after another"
    return _figure(
        "micro-batch", f"{last.batch_id} in {took(took_ms)}", f"usually {took(usual_ms)}{often}"
    )


def _stages(one: Watched) -> Text:
    stages = one.stage_ms()
    slowest = ""
    for stage in sorted(stages, key=lambda stage: -stages[stage]):
        more = f"{', ' if slowest else ''}{stage} {took(stages[stage])}"
        if _LABEL + _VALUE + len(slowest + more) > WIDTH:
            break
        slowest += more
    return _figure("time of tasks", f"{took(sum(stages.values()))} in all", slowest)


def _sinks(one: Watched) -> Iterator[Text]:
    for name, sums in one.sinks().items():
        of = sums["batches"] or 1
        mean = {each: None if count is None else count / of for each, count in sums.items()}
        tasks, driver = (us and us / 1000 for us in (mean["task_us"], mean["driver_us"]))
        more = ("" if tasks is None else f"tasks {took(tasks)}, ") + f"driver {took(driver)}"
        rare = ("retries", "fenced", "undelivered")
        more += "".join(f", {sums[each]:,} {each}" for each in rare if sums[each])
        label = f"sink {name}"[: _LABEL - 1]
        style = "yellow" if sums["undelivered"] else ""
        rows = "" if mean["rows"] is None else f"{mean['rows']:,.0f} rows, "
        nbytes = mean["bytes"]
        yield _figure(label, f"{rows}{size(None if nbytes is None else int(nbytes))} ", more, style)


def _amounts(one: Watched, last: BatchMetrics) -> Iterator[Text]:
    rates = one.rates()
    verdicts = "  ".join(f"{name} {_rate(rates[name])}" for name in ("unique", "duplicate", "late"))
    yield _figure("records/s", _rate(rates["records_in"]), verdicts)
    yield from _shares(one)
    if rates["conflict"]:
        yield _figure("conflicts/s", _rate(rates["conflict"]), "copies whose payload differs")
    if any(batch.unchecked for batch in one.of_ids):
        yield _figure("not looked up", f"{last.unchecked:,}", "in the last one, at least once")
    lost = one.expected_lost()
    if lost is not None:
        yield _figure("expected lost", f"{lost:,.1f}", "new IDs dropped by false positives")
    fpr = filter_fpr(one.of_ids)
    target = f"target {last.target_fpr:.2%}; {_rate(rates['catalog_reads'])} catalog reads/s"
    yield _figure("false positives", "-" if fpr is None else f"{fpr:.2%}", target)
    mean = last.live_ids / last.shards
    fullest = f"{last.fullest_shard_ids / mean if mean else 1:.2f}x the mean"
    buckets = f"{last.buckets} buckets; shard {last.fullest_shard} has {fullest}"
    if 0 < last.max_live_ids < last.live_ids:
        buckets = f"more than max_live_ids, {last.max_live_ids:,}"
    yield _figure("live IDs", f"{last.live_ids:,}", buckets)
    parts = f"state {size(last.state_bytes)}, filters {size(last.sidecar_bytes)}"
    yield _figure("bytes", size(last.stored_bytes), parts)
    if last.sidecar_bytes:
        share = one.answered_by_state()
        alone = "" if share is None else f"; alone they clear {share:.0%} of new IDs"
        yield _figure("filters in state", size(last.filter_state_bytes), f"of all{alone}")


def _shares(one: Watched) -> Iterator[Text]:
    meanings = {"future": "have a future timestamp: count as now", "late": "came too late"}
    for count, meaning in meanings.items():
        if share := share_of(count, (batch for _, batch in one.batches)):
            rate = _rate(one.rates()[count])
            yield _figure(f"{count}/s", rate, f"{share:.0%} {meaning}", "yellow")


def _producers(one: Watched, last: SequenceMetrics) -> Iterator[Text]:
    rates, totals, window = one.rates(), one.totals(), len(one.batches)
    names = ("accept", "duplicate", "gap")
    verdicts = "  ".join(f"{name} {_rate(rates[name])}" for name in names)
    yield _figure("records/s", _rate(rates["records_in"]), verdicts)
    for verdict, meaning in _RARE.items():
        if totals[verdict]:
            yield _figure(f"{verdict}/s", _rate(rates[verdict]), meaning)
    yield from _shares(one)
    recovered = f"in the last {window if window > 1 else 'one'}; {totals['recovered']:,} came later"
    yield _figure("missing", f"{totals['missing']:,}", recovered)
    changes = f"{totals['producers_new']:,} new, {totals['producers_expired']:,} expired since"
    yield _figure("producers", f"{last.producers:,}", changes)
    fill = f"{last.fill:.1%} of max_producers, {last.max_producers:,}"
    style = "yellow" if last.fill >= _NEARLY_FULL else ""
    yield _figure("fullest shard", f"{last.fullest_shard_producers:,}", fill, style)
    each = f", {size(last.state_bytes // last.producers)} a producer" if last.producers else ""
    yield _figure("bytes", size(last.stored_bytes), f"all in Spark state{each}")


def _expiry(one: Watched) -> Iterator[Text]:
    bands = one.expiry()
    most = max((ids for _, ids, _ in bands), default=0) or 1
    yield Text("expires when the GC watermark advances by", style="bold")
    # A line of the screen covers two eighths of the horizon.
    for (_, ids, size_bytes), (within_ms, more_ids, more_bytes) in zip(
        bands[::2], bands[1::2], strict=True
    ):
        ids, size_bytes = ids + more_ids, size_bytes + more_bytes
        bar = "#" * min(_BAR, round(_BAR * ids / (2 * most)))
        amount = f"{bar:<{_BAR}} {ids:>14,} IDs {size(size_bytes):>10}"
        yield Text(f"{span(within_ms):>{_LABEL - 1}} {amount}")


def _sources(one: Watched, room: int) -> list[Text]:
    last = one.of_ids[-1] if one.of_ids else None
    named = [] if last is None else [s for s in last.slowest_sources if s[0]]
    if last is None or not named or room < 2:
        return []
    lines = [Text("slowest source partitions", style="bold")]
    for name, time_ms, idle in named[: room - 1]:
        # A partition may be ahead of the newest timestamp by less than a second.
        behind_ms = None if last.newest_ms is None else max(0, last.newest_ms - time_ms)
        why = "  idle, holds nothing back" if idle else ""
        lines.append(Text(f"{span(behind_ms):>{_LABEL - 1}} {name}{why}"))
    return lines


def _badge(one: Watched) -> Text:
    health = one.health
    _, colour = STATUSES[health.status]
    evidence = f" ({health.evidence} of {WINDOW} micro-batches)"
    return Text.assemble(
        (f" {health.status} ", f"reverse bold {colour}"),
        (" " + " ".join((one.name or one.query_id).split()), "bold"),
        f": {health.reason}{evidence if health.evidence < WINDOW else ''}",
    )


def _wrapped(text: Text, width: int) -> list[Text]:
    width = min(width, WIDTH)
    return list(text.wrap(Console(width=width), width))


def history(one: Watched, width: int, room: int) -> list[Text]:
    """Return curves of all known micro-batches, and a table of the newest micro-batches.

    Curves and table use `width` columns and at most `room` lines. If `width` exceeds 80, the table
    also shows stages.
    """
    steps = one.steps()
    if len(steps) < 2:
        return []
    recent = steps[-max(1, width - _LABEL - _ENDS) :]
    curves = [_curve("duration", [step.took_ms for step in recent], took)]
    for label, field, written in one.figures:
        curves.append(_curve(label, [getattr(step.batch, field) for step in recent], written))
    if room < len(curves) + 2:
        return []
    lines = [Text(), Text(f"the last {len(steps)} micro-batches", style="bold"), *curves]
    rows = min(room - len(lines) - 2, _ROWS)
    if rows >= _LEAST_ROWS and width >= _TABLE_WIDTH:
        lines += [Text(), *_table(one, steps[: -rows - 1 : -1], width)]
    for line in lines:
        line.truncate(width, overflow="ellipsis")
    return lines


def _curve(label: str, values: Sequence[int | None], written: Callable[[int | None], str]) -> Text:
    known = [value for value in values if value is not None]
    least, most = min(known, default=None), max(known, default=None)
    marks = "".join(
        " " if value is None else _LEVELS[min(7, max(0, value) * 8 // (most or 1))]
        for value in values
    )
    low, high = written(least), written(most)
    ends = low if low == high else f"{low} to {high}"
    return Text.assemble(f"{label:<{_LABEL}}", (marks, "cyan"), f"  {ends}")


def _table(one: Watched, steps: Sequence[PacedBatch], width: int) -> Iterator[Text]:
    known: Sequence[str] = SEQUENCE_STAGES if one.of_sequences else STAGES
    figures = _SEQUENCE_CELLS if one.of_sequences else _CELLS
    room = (width - _TABLE_WIDTH) // (_STAGE_WIDTH + 1)
    total = {stage: sum(step.batch.stage_us.get(stage, 0) for step in steps) for stage in known}
    longest = sorted(known, key=lambda stage: -total[stage])[:room]
    stages = [stage for stage in known if stage in longest]
    rows = [(*_COLUMNS, *(name for name, _, _ in figures), *(f"{stage} ms" for stage in stages))]
    for step in steps:
        batch = step.batch
        rows.append((
            str(batch.batch_id), (iso(step.at_ms) or "-")[11:19], took(step.took_ms),
            took(step.every_ms), *(written(getattr(batch, field)) for _, field, written in figures),
            *(f"{batch.stage_us.get(stage, 0) / 1000:,.0f}" for stage in stages),
        ))  # fmt: skip
    widths = (*_WIDTHS, *(_STAGE_WIDTH for _ in stages))
    for number, row in enumerate(rows):
        line = " ".join(f"{cell:>{wide}}" for cell, wide in zip(row, widths, strict=True))
        yield Text(line, style="" if number else "dim")
