"""The demand that a running query shows, by its metrics log or by the states in its checkpoint."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace

from dedup.core.clocks import NEVER_MS, Clocks
from dedup.core.metrics import BatchMetrics
from dedup.core.state import ShardState
from dedup.errors import ConfigError
from dedup.tools.tuning.counting import SST_BYTES_BESIDE_KEY
from dedup.tools.tuning.demand import DAY_MS, Demand, Sizing


def of_batches(base: Demand, query: str, batches: Sequence[tuple[int, BatchMetrics]]) -> Demand:
    """Return the demand that a metrics log shows, options of the last micro-batch included.

    Parameters
    ----------
    base : Demand
        What the log does not tell.
    query : str
        Name or ID, for people.
    batches : sequence of (int, BatchMetrics)
        When each was heard of, and what it did; the oldest first.

    Raises
    ------
    ConfigError
        If there are fewer than two of them, or time stands still between them.
    """
    # At least once nobody tells new IDs from copies.
    told = [n for n, (_, batch) in enumerate(batches, 1) if batch.unchecked]
    if told and told[-1] > len(batches) - 2:
        raise ConfigError(
            f'Query {query} ran with guarantee="at-least-once", so that its metrics log does not '
            "tell which IDs were new; give --ids-per-day."
        )
    batches = batches[told[-1] :] if told else batches
    if len(batches) < 2:
        raise ConfigError(
            f"The metrics log of query {query} holds fewer than two micro-batches; a rate needs "
            "two. Let the query go on, or give --ids-per-day."
        )
    last = batches[-1][1]
    # The first one only begins the time.
    later = [batch for _, batch in batches[1:]]
    new = sum(batch.unique + batch.late for batch in later)
    records = new + sum(batch.duplicate + batch.conflict for batch in later)
    times_ms = [batch.newest_ms for _, batch in batches if batch.newest_ms is not None]
    passed_ms = times_ms[-1] - times_ms[0] if times_ms else 0
    if passed_ms <= 0 or not records:
        raise ConfigError(
            f"In the metrics log of query {query} no data came, or its time stood still; give "
            "--ids-per-day."
        )
    return replace(
        base,
        origin=f"the metrics log of query {query}, {len(batches)} micro-batches",
        ids_per_day=new / passed_ms * DAY_MS,
        duplicates=1 - new / records,
        horizon_ms=last.horizon_ms,
        lateness_ms=last.lateness_ms,
        # Of the data's time, as the rate is: a query that catches up goes through more of it.
        batch_ms=max(1, round(passed_ms / len(later))),
        batch_known=True,
        shards=last.shards,
        key_bytes=_key_bytes(base, last.segment_bytes, last.live_ids - last.tail_ids),
        today=Sizing(
            buckets=-(-last.horizon_ms // last.bucket_ms),
            fpr=last.target_fpr,
            state_budget_bytes=last.state_budget_bytes,
        ),
        fullest=last.fullest_shard_ids * last.shards / last.live_ids if last.live_ids else None,
        running=True,
        seen_fpr=_filter_errors(batches),
        seen_live=None if _is_young(batches) else last.live_ids,
    )


def _filter_errors(batches: Sequence[tuple[int, BatchMetrics]]) -> tuple[int, int] | None:
    """Return false positives, and the unknown IDs that filters were asked for, if any.

    Without micro-batches in which nobody looked up what the filters hit, at most once.
    """
    looked_up = [batch for _, batch in batches if not batch.filter_unconfirmed]
    wrong = sum(batch.filter_false_positive for batch in looked_up)
    asked = wrong + sum(batch.filter_negative for batch in looked_up)
    return (wrong, asked) if asked else None


def _is_young(batches: Sequence[tuple[int, BatchMetrics]]) -> bool:
    last = batches[-1][1]
    begins_ms = next((batch.newest_ms for _, batch in batches if batch.begins), None)
    newest_ms = next(b.newest_ms for _, b in reversed(batches) if b.newest_ms is not None)
    return begins_ms is not None and newest_ms - begins_ms < last.horizon_ms + last.lateness_ms


def _key_bytes(base: Demand, segment_bytes: int, ids: int) -> int:
    if ids <= 0 or not segment_bytes:
        return base.key_bytes
    return max(1, round(segment_bytes / ids - SST_BYTES_BESIDE_KEY))


def of_states(base: Demand, query: str, states: Mapping[int, ShardState]) -> Demand:
    """Return the demand that a query's states in its checkpoint show.

    Parameters
    ----------
    base : Demand
        What they do not tell.
    query : str
        Its ID, for people.
    states : mapping of shard to ShardState

    Raises
    ------
    ConfigError
        If they hold no IDs, or have not seen time pass.
    """
    live = {shard: state.manifest.ids + len(state.tail) for shard, state in states.items()}
    live_ids = sum(live.values())
    # Shards hear the same clocks; one that missed the last micro-batch is behind.
    clocks = max((s.clocks for s in states.values()), key=lambda c: c.newest_ms, default=Clocks())
    late_ms, gc_ms = clocks.late_watermark_ms, clocks.gc_watermark_ms
    if not live_ids or gc_ms == NEVER_MS:
        raise ConfigError(
            f"The checkpoint of query {query} holds no IDs yet; give --ids-per-day and --horizon."
        )
    bucket_ms = max(state.bucket_ms for state in states.values())
    segments = [s for state in states.values() for s in state.manifest.segments()]
    # Only a query that drops what is late forgets at the late watermark.
    drops = base.stable_timestamps and late_ms <= max(
        state.forgotten_before_ms for state in states.values()
    )
    buckets = max(1, round((late_ms - gc_ms) / max(1, bucket_ms)))
    return replace(
        base,
        origin=f"the catalog of query {query}, {live_ids:,} live IDs",
        ids_per_day=_ids_per_day(states, clocks, live_ids),
        horizon_ms=max(1, late_ms - gc_ms),
        lateness_ms=max(0, clocks.low_watermark_ms - late_ms),
        late="drop" if drops else base.late,
        shards=len(states),
        key_bytes=_key_bytes(
            base, sum(s.sst_bytes for s in segments), sum(s.count for s in segments)
        ),
        today=replace(base.today or Sizing(), buckets=buckets),
        shard_ids=tuple(count for _, count in sorted(live.items())),
        running=True,
        seen_segments=len(segments),
    )


def _ids_per_day(states: Mapping[int, ShardState], clocks: Clocks, live_ids: int) -> float:
    """Return the rate of complete buckets: the oldest and the growing ones are cut off by time."""
    late_ms, gc_ms = clocks.late_watermark_ms, clocks.gc_watermark_ms
    buckets = [bucket for state in states.values() for bucket in state.manifest.buckets]
    complete: Counter[tuple[int, int]] = Counter()
    for bucket in buckets:
        if gc_ms <= bucket.start_ms and bucket.end_ms <= late_ms:
            complete[bucket.range] += bucket.ids
    ids, span_ms = sum(complete.values()), sum(end - start for start, end in complete)
    if not ids:
        first_ms = min([late_ms, *(bucket.start_ms for bucket in buckets)])
        ids, span_ms = live_ids, clocks.newest_ms - first_ms
    return ids / max(1, span_ms) * DAY_MS
