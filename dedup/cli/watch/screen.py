"""The screen of `dedup watch`: one query whole, the others a line each, in 80 x 24 or more."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich.console import Console
from rich.text import Text

from dedup.cli.watch.figure_line import HEIGHT, LABEL, VALUE, WIDTH, figure, rate, share_lines
from dedup.cli.watch.history import history, took
from dedup.cli.watch.producer_lines import producer_lines
from dedup.core.duration import iso, size, span
from dedup.core.metrics import BatchMetrics
from dedup.core.sequence_metrics import AnyMetrics, SequenceMetrics
from dedup.tools.watch.health import Status
from dedup.tools.watch.watched import Watched

#: From the least to the most that someone has to look at it, with exit code and colour.
STATUSES = {
    Status.OK: (0, "green"),
    Status.LATE: (14, "yellow"),
    Status.FUTURE: (15, "yellow"),
    Status.LAGGING: (10, "yellow"),
    Status.STALLED: (11, "magenta"),
    Status.STOPPED: (12, "red"),
    Status.REWOUND: (13, "red"),
}
#: Of a terminal that is smaller nothing is shown.
LEAST_WIDTH, LEAST_HEIGHT = 40, 10
_BAR = 20


def worst(watched: Sequence[Watched]) -> Watched:
    """The query that needs someone most."""
    return max(watched, key=_urgency)


def _urgency(one: Watched) -> int:
    return list(STATUSES).index(one.health.status)


def waiting(why: str, *, width: int = WIDTH) -> list[Text]:
    """Lines that say what is waited for."""
    return _wrapped(Text.assemble((" WAITING ", "reverse bold yellow"), f" {why}"), width)


def is_large_enough(width: int, height: int) -> bool:
    """Whether anything of a query can be shown."""
    return width >= LEAST_WIDTH and height >= LEAST_HEIGHT


def fit(lines: list[Text], width: int, height: int) -> list[Text]:
    """As many of the lines as a terminal has, and how many it has not."""
    if not is_large_enough(width, height):
        needs = f"dedup watch needs {LEAST_WIDTH}x{LEAST_HEIGHT} at least, {WIDTH}x{HEIGHT} to show"
        return [Text(f"the terminal is {width}x{height}; {needs} all")]
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
    """Lines of the screen: the worst query whole, the others, and the past where there is room.

    None is longer than 80, but for those of the past.

    Parameters
    ----------
    watched : sequence of Watched
        At least one.
    width : int
        Columns that there are; longer lines end in an ellipsis.
    height : int
        Lines that there are. One query may take more, which `fit` tells.
    note : str, optional
        What else there is to say.
    past : bool
        Whether to fill what is left with the micro-batches before.
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


def _query(one: Watched, width: int) -> Iterator[Text]:
    # What to do stands at the end of the reason.
    yield from _wrapped(_badge(one), width)
    last = one.last
    if last is None:
        return
    if any(batch.other_queries for batch in one.of_ids):
        text = (
            "Its checkpoint is new, and other queries with the same ID columns use its catalog. If "
            "the checkpoint stands in for a lost one: dedup remedies lost-checkpoint"
        )
        yield from _wrapped(Text(text, style="yellow"), width)
    yield Text()
    yield from _times(one, last)
    yield Text()
    yield _pace(one, last)
    yield _stages(one)
    if isinstance(last, SequenceMetrics):
        yield from producer_lines(one, last)
        return
    yield from _amounts(one, last)
    yield Text()
    yield from _expiry(one)


def _times(one: Watched, last: AnyMetrics) -> Iterator[Text]:
    gaps = one.gaps()
    clock = f"{span(gaps['source'])} behind the clock"
    if isinstance(last, SequenceMetrics) and last.by_query_time:
        yield figure("last micro-batch", iso(last.now_ms), clock)
        yield figure("expire_after", span(last.remembered_ms), "of query time, downtime left out")
        return
    yield figure("newest timestamp", iso(last.newest_ms), clock)
    behind = f"{span(gaps['watermark'])} behind"
    yield figure("low watermark", iso(last.low_watermark_ms), behind + _holder(last, len(behind)))
    excess_ms = gaps["excess"] or 0
    options = "expire_after" if one.of_sequences else "horizon and lateness"
    asked = f"{span(last.remembered_ms)} behind by {options}"
    more = f"{span(excess_ms)} more than {options}"
    yield figure("GC watermark", iso(last.gc_watermark_ms), more if excess_ms > 0 else asked)


def _amounts(one: Watched, last: BatchMetrics) -> Iterator[Text]:
    rates = one.rates()
    yield figure(
        "records/s",
        rate(rates["records_in"]),
        f"unique {rate(rates['unique'])}  duplicate {rate(rates['duplicate'])}  "
        f"late {rate(rates['late'])}",
    )
    yield from share_lines(one)
    if rates["conflict"]:
        yield figure("conflicts/s", rate(rates["conflict"]), "copies whose payload differs")
    if any(batch.unchecked for batch in one.of_ids):
        yield figure("not looked up", f"{last.unchecked:,}", "in the last one, at least once")
    lost = one.expected_lost()
    if lost is not None:
        yield figure("expected lost", f"{lost:,.1f}", "new IDs that filters took for seen")
    fpr = one.filter_fpr()
    yield figure(
        "false positives",
        "-" if fpr is None else f"{fpr:.2%}",
        f"target {last.target_fpr:.2%}; {rate(rates['catalog_reads'])} catalog reads/s",
    )
    mean = last.live_ids / last.shards
    yield figure(
        "live IDs",
        f"{last.live_ids:,}",
        f"{last.buckets} buckets; shard {last.fullest_shard} has "
        f"{last.fullest_shard_ids / mean if mean else 1:.2f}x the mean",
    )
    yield figure(
        "bytes",
        size(last.stored_bytes),
        f"state {size(last.state_bytes)}, filters {size(last.sidecar_bytes)}",
    )


def _pace(one: Watched, last: AnyMetrics) -> Text:
    pace = one.pace()
    often = "" if pace.every_ms is None else f", started every {took(pace.every_ms)}"
    if pace.back_to_back:
        often = ", one after another"
    took_it = f"{last.batch_id} in {took(pace.took_ms)}"
    return figure("micro-batch", took_it, f"usually {took(pace.usual_ms)}{often}")


def _stages(one: Watched) -> Text:
    stages = one.stage_ms()
    slowest = ""
    for stage in sorted(stages, key=lambda stage: -stages[stage]):
        more = f"{', ' if slowest else ''}{stage} {took(stages[stage])}"
        if LABEL + VALUE + len(slowest + more) > WIDTH:
            break
        slowest += more
    return figure("time of tasks", f"{took(sum(stages.values()))} in all", slowest)


def _holder(last: AnyMetrics, taken: int) -> str:
    if isinstance(last, SequenceMetrics):  # nobody tells of it
        return ""
    shard = "" if last.gc_shard is None else f" in shard {last.gc_shard}"
    if not last.gc_source:
        return f",{shard}" if shard else ""
    # The list below has more of a long name.
    name = Text(last.gc_source)
    name.truncate(WIDTH - LABEL - VALUE - taken - len(": " + shard), overflow="ellipsis")
    return f": {name.plain}{shard}"


def _expiry(one: Watched) -> Iterator[Text]:
    bands = one.expiry()
    most = max((ids for _, ids, _ in bands), default=0) or 1
    yield Text("expires when the GC watermark advances by", style="bold")
    # Two eighths of the horizon a line.
    for (_, ids, size_bytes), (within_ms, more_ids, more_bytes) in zip(
        bands[::2], bands[1::2], strict=True
    ):
        ids, size_bytes = ids + more_ids, size_bytes + more_bytes
        bar = "#" * min(_BAR, round(_BAR * ids / (2 * most)))
        what = f"{span(within_ms):>{LABEL - 1}} {bar:<{_BAR}} {ids:>14,} IDs {size(size_bytes):>10}"
        yield Text(what)


def _sources(one: Watched, room: int) -> list[Text]:
    last = one.of_ids[-1] if one.of_ids else None
    named = [] if last is None else [s for s in last.slowest_sources if s[0]]
    if last is None or not named or room < 2:
        return []
    lines = [Text("slowest source partitions", style="bold")]
    for name, time_ms, idle in named[: room - 1]:
        # A partition may be ahead by less than a second.
        behind_ms = None if last.newest_ms is None else max(0, last.newest_ms - time_ms)
        why = "  idle, nobody waits" if idle else ""
        lines.append(Text(f"{span(behind_ms):>{LABEL - 1}} {name}{why}"))
    return lines


def _badge(one: Watched) -> Text:
    health = one.health
    _, colour = STATUSES[health.status]
    line = Text()
    line.append(f" {health.status} ", style=f"reverse bold {colour}")
    line.append(" " + " ".join((one.name or one.query_id).split()), style="bold")
    evidence = f" ({health.evidence} of {health.window} micro-batches)"
    line.append(f": {health.reason}{evidence if health.evidence < health.window else ''}")
    return line


def _wrapped(text: Text, width: int) -> list[Text]:
    width = min(width, WIDTH)
    return list(text.wrap(Console(width=width), width))
