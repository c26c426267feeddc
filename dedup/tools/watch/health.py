"""Verdicts on a query by its last micro-batches.

Users set no thresholds. The verdict depends on how a lag develops over a *window*, which is the
last ten micro-batches, or more if these span less than a minute. Burrow evaluates consumer lag in
the same way (linkedin/Burrow, wiki "Consumer Lag Evaluation Rules").
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import partial
from itertools import pairwise
from typing import NamedTuple

from dedup.core.metrics import BatchMetrics, difference_ms
from dedup.core.sequence_metrics import AnyMetrics
from dedup.values.duration import span

#: Smallest number of micro-batches in the window, and smallest time that the window covers.
WINDOW, WINDOW_MS = 10, 60_000
#: Number of micro-batches that callers of `judge` keep.
HISTORY = 100
#: Smallest number of micro-batches from which a lag is judged, and from which its growth is judged.
#: With fewer micro-batches a lag seems to grow by chance too often.
LEAST_EVIDENCE, LEAST_GROWTH = 5, 9
#: Smallest growth of a lag that counts, as a share of the passed time. Slower growth does no harm.
LEAST_SLOPE = 0.05
#: A count of late or future records is reported if it exceeds this share of all records, and this
#: number. `dedup run` uses the same values.
NOTABLE_SHARE, LEAST_RECORDS = 0.01, 5
#: A query without an event for less than this time is not stopped, because one micro-batch may
#: take long.
LEAST_SILENCE_MS = 600_000
#: The same limit as long as the time between micro-batches is not known yet.
UNKNOWN_SILENCE_MS = 3_600_000
#: A remark reports a longer unusual silence, because the driver may be dead. An idle query sends
#: events more often.
REPORTED_SILENCE_MS = 180_000
#: Two clocks that differ by less than this count as equal.
CLOCK_SKEW_MS = 60_000

#: The reason for the end of a run that did not fail.
ENDED = "the run has ended"


class Status(StrEnum):
    """The verdict on a query."""

    OK = "OK"
    #: The query had more IDs than `max_live_ids`, and has forgotten the oldest early.
    SHORTENED = "SHORTENED"
    #: Many records are late.
    LATE = "LATE"
    #: Many records have timestamps in the future.
    FUTURE = "FUTURE"
    #: The lag of the GC watermark or of the newest timestamp grows.
    LAGGING = "LAGGING"
    #: New records arrive, but the GC watermark does not advance.
    STALLED = "STALLED"
    #: The query failed, is unusually silent, or does not run although a run is due.
    STOPPED = "STOPPED"
    #: The query or a shard went back: somebody restored a checkpoint or state, or runs a copy.
    REWOUND = "REWOUND"


class TimedBatch(NamedTuple):
    """A micro-batch, and the listener's clock when it was reported, in milliseconds."""

    at_ms: int
    batch: AnyMetrics


class Concern(NamedTuple):
    """A problem of a running query. Its status is a topic of REMEDIES.md."""

    status: Status
    reason: str

    def __str__(self) -> str:
        return f"{self.reason}: dedup remedies {self.status.lower()}"


@dataclass(frozen=True, slots=True)
class Health:
    """A verdict, its reason, and the number of micro-batches that it is based on."""

    status: Status
    reason: str
    evidence: int


def judge(
    samples: Sequence[TimedBatch],
    *,
    now_ms: int,
    heard_ms: int | None = None,
    ended: str | None = None,
    alive: bool = False,
) -> Health:
    """Return the verdict on a query by its last `HISTORY` micro-batches or more.

    `now_ms` is the listener's clock. `heard_ms` is the time of the query's last event, with or
    without a micro-batch. `ended` says why the last run ended. It is `ENDED` if the run did not
    fail. If `alive` is true, the caller knows that the query runs now, so silence means no stop.
    """
    last = _window(samples)
    verdict = partial(Health, evidence=min(len(last), WINDOW))
    back = _forgot(samples) or _went_back(last)
    if back is not None:
        return verdict(Status.REWOUND, back)
    # A scheduled job ends every run, so a query whose run has ended is not always stopped.
    pause_ms = _pause_ms(samples) if ended == ENDED else None
    if ended is not None and pause_ms is None:
        return verdict(Status.STOPPED, ended)
    if not last and heard_ms is None:
        return verdict(Status.STOPPED, "no micro-batch was reported")
    silent_ms = now_ms - max(heard_ms or last[-1].at_ms, last[-1].at_ms if last else 0)
    if not alive and silent_ms > (_patience_ms(last) if pause_ms is None else 2 * pause_ms):
        return verdict(Status.STOPPED, f"silent for {span(silent_ms)}")
    active = concerns(samples)
    status = active[0].status if active else Status.OK
    reason = "; ".join(map(str, active)) or _well(last, _of_checkpoint(samples)[-HISTORY:])
    if pause_ms is not None:
        return verdict(status, f"between two runs; {reason}")
    return verdict(status, reason + _quiet(last, now_ms, silent_ms))


def _window(samples: Sequence[TimedBatch]) -> tuple[TimedBatch, ...]:
    first = len(samples)
    while first and not (
        len(samples) - first >= WINDOW and samples[-1].at_ms - samples[first].at_ms >= WINDOW_MS
    ):
        first -= 1
        if samples[first].batch.begins:
            break
    return tuple(samples[first:])


def _quiet(last: tuple[TimedBatch, ...], now_ms: int, silent_ms: int) -> str:
    """Return a remark if the query is unusually silent or its clock is ahead, else ""."""
    unusual_ms = max(2 * _longest_pause_ms(last), REPORTED_SILENCE_MS)
    if silent_ms > unusual_ms:
        return f"; no sign of life for {span(silent_ms)}"
    if silent_ms < -CLOCK_SKEW_MS:
        return f"; its clock is {span(-silent_ms)} ahead of this one"
    if last and now_ms - last[-1].at_ms > unusual_ms:
        return f"; no micro-batch for {span(now_ms - last[-1].at_ms)}"
    return ""


def _pause_ms(samples: Sequence[TimedBatch]) -> int | None:
    pauses = (
        after.at_ms - before.at_ms
        for before, after in pairwise(samples)
        if before.batch.run_id != after.batch.run_id
    )
    return max(pauses, default=None)


def concerns(samples: Sequence[TimedBatch]) -> list[Concern]:
    """Return the problems in a query's last micro-batches, the worst first."""
    last = _window(samples)
    lost = _forgot(samples)
    lag = _lag(last, _of_checkpoint(samples)[-HISTORY:]) if _shows_lag(last) else None
    active = [] if lost is None else [Concern(Status.REWOUND, lost)]
    active += [] if lag is None else [lag]
    newest = last[-1].batch if last else None
    if isinstance(newest, BatchMetrics) and newest.horizon_cut_ms:
        kept = f"{span(newest.horizon_kept_ms)} instead of {span(newest.horizon_ms)}"
        why = f"the horizon is {kept}, because there were more IDs than max_live_ids"
        active.append(Concern(Status.SHORTENED, why))
    for status, why in (
        (Status.FUTURE, "have a timestamp in the future, and count as now"),
        (Status.LATE, "are late"),
    ):
        if share := share_of(status.lower(), _for_shares(samples, len(last))):
            active.append(Concern(status, f"{share:.0%} of the records {why}"))
    return active


def _for_shares(samples: Sequence[TimedBatch], window: int) -> list[AnyMetrics]:
    """Return the window's micro-batches, and earlier ones until there are enough records."""
    batches: list[AnyMetrics] = []
    records = 0
    for _, batch in reversed(_of_checkpoint(samples)[-HISTORY:]):
        records += batch.records_in
        # Stop, because a large old micro-batch would outweigh all newer micro-batches.
        if len(batches) >= window and records > LEAST_RECORDS / NOTABLE_SHARE:
            break
        batches.append(batch)
    return batches


def _shows_lag(last: tuple[TimedBatch, ...]) -> bool:
    spans_ms = last[-1].at_ms - last[0].at_ms if last else 0
    return len(last) >= LEAST_EVIDENCE and (spans_ms >= WINDOW_MS or len(last) >= HISTORY)


def share_of(count: str, batches: Iterable[AnyMetrics]) -> float:
    """Return the share of the records that the field ``count`` counts, or 0 if it is too small."""
    judged = list(batches)
    counted = sum(getattr(batch, count, 0) for batch in judged)
    records = sum(batch.records_in for batch in judged)
    notable = counted >= LEAST_RECORDS and counted > NOTABLE_SHARE * records
    return counted / records if notable else 0.0


def _patience_ms(last: tuple[TimedBatch, ...]) -> int:
    if len(last) < 2:
        return UNKNOWN_SILENCE_MS
    window_ms = last[-1].at_ms - last[0].at_ms
    return max(window_ms, 2 * _longest_pause_ms(last), LEAST_SILENCE_MS)


def _longest_pause_ms(last: tuple[TimedBatch, ...]) -> int:
    return max((after.at_ms - before.at_ms for before, after in pairwise(last)), default=0)


def _forgot(samples: Sequence[TimedBatch]) -> str | None:
    of_checkpoint = _of_checkpoint(samples)
    for number, (_, batch) in enumerate(of_checkpoint):
        if batch.epochs_apart:
            return (
                f"in micro-batch {batch.batch_id} the state of a shard was older than the other "
                "states: dedup remedies damaged-state"
            )
        if batch.shards < batch.shard_count and all(
            after.batch.batch_id > batch.batch_id for after in of_checkpoint[number + 1 :]
        ):
            return (
                f"only a part of micro-batch {batch.batch_id} was read, and the rest is lost: "
                "dedup remedies damaged-state"
            )
    return None


def _went_back(last: tuple[TimedBatch, ...]) -> str | None:
    for (_, before), (_, after) in pairwise(last):
        if after.batch_id <= before.batch_id:
            return f"micro-batch {after.batch_id} came after micro-batch {before.batch_id}"
        old_ms, new_ms = before.gc_watermark_ms, after.gc_watermark_ms
        if old_ms is not None and new_ms is not None and new_ms < old_ms:
            return f"the GC watermark went back in micro-batch {after.batch_id}"
    return None


def _of_checkpoint(samples: Sequence[TimedBatch]) -> Sequence[TimedBatch]:
    begun = max((n for n, sample in enumerate(samples) if sample.batch.begins), default=0)
    return samples[begun:]


def _lag(last: tuple[TimedBatch, ...], samples: Sequence[TimedBatch]) -> Concern | None:
    first, newest = last[0].batch, last[-1].batch
    if not _advances(last):
        return None
    held = f", held by source partition {newest.gc_source}" if newest.gc_source else ""
    if first.low_watermark_ms == newest.low_watermark_ms and _stands_unusually(samples):
        ahead_ms = (newest.newest_ms or 0) - (first.newest_ms or newest.newest_ms or 0)
        reason = f"the GC watermark stood while timestamps advanced by {span(ahead_ms)}{held}"
        return Concern(Status.STALLED, reason)
    more = _growth(samples, len(last), [batch.gc_lag_newest_ms for _, batch in samples])
    if more is not None and first.gc_watermark_ms != newest.gc_watermark_ms:
        reason = f"it falls behind the newest timestamp, by {more}{held}"
        return Concern(Status.LAGGING, reason)
    behind_ms = [difference_ms(at_ms, batch.newest_ms) for at_ms, batch in samples]
    if (more := _growth(samples, len(last), behind_ms)) is not None:
        reason = (
            f"the newest timestamp falls behind the clock, by {more}: "
            "records arrive faster than the query judges them, or the source is slow"
        )
        return Concern(Status.LAGGING, reason)
    return None


def _advances(last: tuple[TimedBatch, ...]) -> bool:
    newest_ms = last[-1].batch.newest_ms
    return newest_ms is not None and (last[0].batch.newest_ms or 0) < newest_ms


def _well(last: tuple[TimedBatch, ...], samples: Sequence[TimedBatch]) -> str:
    if not _shows_lag(last):
        return "no fault so far; its lag is judged after five micro-batches and a minute"
    newest = last[-1].batch
    if not _advances(last):
        stands = last[0].batch.low_watermark_ms == newest.low_watermark_ms
        came = stands and any(batch.records_in for _, batch in last[1:])
        return "no newer timestamps" + (" in its records: its watermarks stand" if came else "")
    before = last[-LEAST_EVIDENCE].batch
    moved_ms = (_moves_ms(samples) or [samples[0].at_ms])[-1]
    stood = f"the GC watermark has not moved for {span(last[-1].at_ms - moved_ms)}"
    if before.low_watermark_ms == newest.low_watermark_ms:
        held = f", held by source partition {newest.gc_source}" if newest.gc_source else ""
        usual = "" if _stands_unusually(samples) else ": not unusual for this query"
        return f"{stood}{held}{usual}"
    if newest.gc_watermark_ms is None:
        return "it keeps up; producers expire by query time"
    if before.gc_watermark_ms == newest.gc_watermark_ms:
        return "the low watermark advances; the GC watermark stands until a longer horizon is full"
    return "the GC watermark keeps up"


def _moves_ms(samples: Sequence[TimedBatch]) -> list[int]:
    return [
        after.at_ms
        for before, after in pairwise(samples)
        if before.batch.low_watermark_ms != after.batch.low_watermark_ms
    ]


def _stands_unusually(samples: Sequence[TimedBatch]) -> bool:
    """Return whether the low watermark has not moved for twice the usual time.

    A source partition with one record every five minutes stops the watermark for five minutes
    each time. The usual time is the second longest pause, because the longest may be an incident.
    """
    moves_ms = _moves_ms(samples)
    pauses_ms = sorted(after - before for before, after in pairwise(moves_ms))
    usual_ms = pauses_ms[-2:][0] if pauses_ms else 0
    return samples[-1].at_ms - (moves_ms or [samples[0].at_ms])[-1] > 2 * usual_ms


def _growth(
    samples: Sequence[TimedBatch], newest: int, lags_ms: Sequence[int | None]
) -> str | None:
    known_ms = [lag_ms for lag_ms in lags_ms if lag_ms is not None]
    if len(known_ms) < len(samples):
        return None
    grown = growth([one.at_ms for one in samples], known_ms, newest)
    return None if grown is None else f"{span(grown[0])} in {span(grown[1])}"


def growth(times_ms: Sequence[int], lags_ms: Sequence[int], newest: int) -> tuple[int, int] | None:
    """Return by how much a lag grew and in what time, in milliseconds, or None if it did not grow.

    The micro-batches are divided into thirds. A lag grows if its minimum and its maximum both rise
    from every third to the next, by more than `LEAST_SLOPE` of the time. Both must also rise from
    the first to the last third of the `newest` micro-batches. So neither a lag that comes and goes
    nor a single jump counts as growth.
    """
    if len(times_ms) < LEAST_GROWTH:
        return None
    (first, second, last), (before, _, now) = (
        _thirds(times_ms[start:], lags_ms[start:]) for start in (0, -newest)
    )
    if not all(_rises(*pair) for pair in ((first, second), (second, last), (before, now))):
        return None
    return last[1] - first[1], last[0] - first[0]


def _thirds(times_ms: Sequence[int], lags_ms: Sequence[int]) -> list[tuple[int, int, int]]:
    """Return the start time, the minimum and the maximum of each third of the micro-batches."""
    third = len(times_ms) // 3
    parts = (slice(0, third), slice(third, 2 * third), slice(2 * third, None))
    return [(times_ms[p][0], min(lags_ms[p]), max(lags_ms[p])) for p in parts]


def _rises(one: tuple[int, int, int], other: tuple[int, int, int]) -> bool:
    time_ms, minimum_ms, maximum_ms = (b - a for a, b in zip(one, other, strict=True))
    return min(minimum_ms, maximum_ms) > LEAST_SLOPE * time_ms
