"""Measure one shard under a synthetic load, for longer than a horizon.

The engine (`dedup.core`) runs unchanged over a catalog in memory. A large shard is scaled down: the
numbers of IDs, the state budget and the segment size shrink by the same factor. So the trial has as
many segments as the real shard, and as many filter bits per ID.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace

import numpy as np

from dedup import kernel
from dedup.core.keys import Keys
from dedup.core.lookup import DistinctIds, Matches, lookup
from dedup.core.policy import Policy
from dedup.core.segment import SegmentRef
from dedup.core.sizing import predicted_fpr, predicted_spread, union_fpr
from dedup.core.state import ShardState
from dedup.core.upkeep import SEGMENT_BYTES
from dedup.kernel.arrays import I64
from dedup.tools.tuning.load import (
    HASH_KEY,
    SST_BYTES_BESIDE_KEY,
    UNKNOWN,
    CountingStore,
    KeysOf,
    Load,
    Step,
    drive,
)

#: Largest number of live IDs in a trial, and the smaller limit if very many records are repeats.
TRIAL_IDS, _FEWEST_IDS = 150_000, 25_000
#: Largest share of repeats in a trial. Above it, counts per record hardly change, but the number
#: of records grows without limit.
MOST_DUPLICATES = 0.99
#: Smallest number of IDs in a full segment of a trial. Smaller filters do not resemble large ones,
#: because filters consist of whole blocks, and very many small segments take hours.
LEAST_SEGMENT_IDS = 1024
#: Largest number of micro-batches per horizon. More micro-batches would not change the figures.
MAX_BATCHES = 512
#: Number of times that a trial probes the filters, and number of IDs that it probes each time.
_MOMENTS, _PROBED = 16, 24_000
#: Fields of `Trial` that are means over these times.
_MEANS = (
    "predicted_fpr", "spread", "live_ids", "tail_ids", "segments", "sst_bytes", "filter_bytes",
    "tail_bytes", "head_bytes", "filters_asked",
)  # fmt: skip


@dataclass(slots=True, kw_only=True)
class Trial:
    """Measurements of one shard in the steady state, when as many IDs expire as are added."""

    #: Number of IDs in the real shard for every ID in the trial.
    scale: float
    #: Number of new IDs that were looked up, and of new IDs that at least one filter contained.
    asked: int = 0
    false_positives: int = 0
    #: False-positive rate predicted from the filters, and its standard deviation, which matters
    #: because the trial's filters are few and small.
    predicted_fpr: float = 0.0
    spread: float = 0.0
    #: Number of known IDs that were looked up, and of known IDs that were not found. The latter
    #: must be 0.
    known: int = 0
    forgotten: int = 0
    #: Number of repeats that passed, and of new IDs that did not pass. Both must be 0.
    passed_again: int = 0
    wrongly_dropped: int = 0
    #: Mean figures, scaled up to the real shard.
    live_ids: float = 0.0
    tail_ids: float = 0.0
    segments: float = 0.0
    sst_bytes: float = 0.0
    filter_bytes: float = 0.0
    tail_bytes: float = 0.0
    head_bytes: float = 0.0
    #: Numbers of filters probed, blocks read, and IDs written to segments, per record.
    filters_asked: float = 0.0
    blocks_read: float = 0.0
    ids_written: float = 0.0
    #: Points in time, in units of the horizon, with the real shard's IDs by number of the bucket.
    fill: list[tuple[float, dict[int, int]]] = field(default_factory=list)

    @property
    def false_negatives(self) -> int:
        """Number of known IDs that were not recognised, plus new IDs that were taken for known."""
        return self.forgotten + self.passed_again + self.wrongly_dropped


def scaled(
    policy: Policy, *, new_per_ms: float, rows: float, duplicates: float, key_bytes: int
) -> tuple[Load, float]:
    """Return a load for a trial, and the number of real IDs for every ID of the trial.

    The arguments describe the real shard. `new_per_ms` is the number of its new IDs per
    millisecond. `rows` is the number of its records per micro-batch.
    """
    live = new_per_ms * (policy.horizon_ms + policy.lateness_ms)
    new_share = 1 - min(duplicates, MOST_DUPLICATES)
    scale = max(1.0, live / max(min(TRIAL_IDS, _FEWEST_IDS), TRIAL_IDS * min(1.0, 2 * new_share)))
    full = min(policy.segment_ids, SEGMENT_BYTES / (key_bytes + SST_BYTES_BESIDE_KEY)) / scale
    shrunk = replace(
        policy,
        state_budget_bytes=max(1, round(policy.state_budget_bytes / scale)),
        segment_ids=max(LEAST_SEGMENT_IDS, round(full)),
        keep_expired_ms=0,
        retain_epochs=2,
    )
    # If a micro-batch is far smaller than the tail, its size hardly matters. So a trial, to be
    # short, has micro-batches of at least an eighth of the tail.
    tail_ids = policy.state_budget_bytes / 2 / (key_bytes + 13)
    new = max(rows * (1 - duplicates), tail_ids / 8, live / MAX_BATCHES, scale)
    batch_ms = max(1, min(round(new / new_per_ms), policy.bucket_ms))
    trial_rows = max(2, round(new_per_ms * batch_ms / scale / new_share))
    load = Load(
        rows=trial_rows, batch_ms=batch_ms, policy=shrunk, duplicates=1 - new_share,
        parts=max(1.0, LEAST_SEGMENT_IDS / full),
    )  # fmt: skip
    # The second value is roughly `scale`, or much smaller if a bucket gets hardly any IDs.
    return load, new_per_ms * batch_ms / load.new


def run(load: Load, scale: float, keys: KeysOf, progress: Callable[[float], None]) -> Trial:
    """Apply a load to a shard until buckets expire, then measure the shard for a bucket or more.

    `load` and `scale` come from `scaled`. Calls `progress` with the finished share.
    """
    policy, trial, store = load.policy, Trial(scale=scale), CountingStore()
    steady = -(-(policy.horizon_ms + policy.lateness_ms + policy.bucket_ms) // load.batch_ms)
    batches = steady + max(4, -(-max(policy.bucket_ms, policy.horizon_ms // 4) // load.batch_ms))
    moments = np.unique(np.linspace(steady, batches - 1, _MOMENTS, dtype=int)).tolist()
    rows = 0
    for step in drive(load, batches, keys, store):
        trial.passed_again += step.passed_again
        trial.wrongly_dropped += step.wrongly_dropped
        if step.number % max(1, batches // 120) == 0:
            trial.fill.append(_fill(step, load, scale))
            progress(step.number / batches)
        if step.number >= steady:
            rows += step.counts["rows"]
            trial.blocks_read += store.counts["blocks_read"]
            trial.ids_written += store.counts["ids_written"]
        if step.number in moments:
            _add_filters(trial, step, store, load)
            _add_lookups(trial, step, store, load, keys)
            _add_sizes(trial, step.state, store, load)
        store.counts.clear()
    for name in _MEANS:
        setattr(trial, name, getattr(trial, name) / len(moments))
    trial.blocks_read /= rows
    trial.ids_written /= rows
    return trial


def _add_filters(trial: Trial, step: Step, store: CountingStore, load: Load) -> None:
    filters = [
        (share, segment.count, store.filters[segment.name].blocks)
        for share, segment in filters_of(step.state, load, step.now_ms)
    ]
    trial.filters_asked += sum(share for share, _, _ in filters)
    trial.predicted_fpr += union_fpr(share * predicted_fpr(n, z) for share, n, z in filters)
    trial.spread += math.hypot(*(share * predicted_spread(n, z) for share, n, z in filters))


def _add_lookups(trial: Trial, step: Step, store: CountingStore, load: Load, keys: KeysOf) -> None:
    unknown = UNKNOWN + step.number * _PROBED + np.arange(_PROBED, dtype=np.int64)
    matches = _look_up(step, store, load, keys(unknown), np.full(_PROBED, step.now_ms, np.int64))
    wrong = matches.counts["filter_false_positive"]
    trial.asked += matches.counts["filter_negative"] + wrong
    trial.false_positives += wrong
    count = load.new * (step.number + 1)
    oldest = max(0, count - load.new * load.batches_per_horizon)
    if load.policy.forgets_at_late:
        late_ms = step.state.clocks.late_watermark_ms
        oldest = max(oldest, min(count - 1, -(-late_ms * load.new // load.batch_ms)))
    known = np.unique(np.linspace(oldest, count - 1, _PROBED // 8, dtype=np.int64))
    matches = _look_up(step, store, load, keys(known), known * load.batch_ms // load.new)
    trial.known += len(known)
    trial.forgotten += len(known) - len(np.unique(matches.index))


def _add_sizes(trial: Trial, state: ShardState, store: CountingStore, load: Load) -> None:
    scale, segments = trial.scale, list(state.manifest.segments())
    real_count = sum(load.parts if segment.hash_ranges > 1 else 1.0 for segment in segments)
    trial.live_ids += scale * (state.manifest.ids + len(state.tail))
    trial.tail_ids += scale * len(state.tail)
    trial.tail_bytes += scale * state.tail.nbytes
    trial.segments += real_count
    trial.head_bytes += state.head_bytes_without_filters() * real_count / max(1, len(segments))
    trial.sst_bytes += scale * sum(s.sst_bytes for s in segments)
    trial.filter_bytes += scale * sum(store.filters[s.name].bits.nbytes for s in segments)


def _look_up(step: Step, store: CountingStore, load: Load, keys: Keys, own_ms: I64) -> Matches:
    """Look up IDs as if they arrived now with the timestamps ``own_ms``."""
    now_ms = np.full(len(keys), step.now_ms, np.int64)
    hashes = kernel.hash64(keys.data, keys.offsets, HASH_KEY)
    distinct = DistinctIds(keys, hashes, now_ms, now_ms, own_ms, own_ms)
    return lookup(
        step.state, distinct, load.policy, store, hash_key=HASH_KEY, on_stage_end=lambda stage: None
    )


def _fill(step: Step, load: Load, scale: float) -> tuple[float, dict[int, int]]:
    bucket_ms = load.policy.bucket_ms
    ids = {b.start_ms // bucket_ms: b.ids for b in step.state.manifest.buckets}
    starts, counts = np.unique(step.state.tail.bucket_starts(bucket_ms), return_counts=True)
    for start_ms, count in zip(starts.tolist(), counts.tolist(), strict=True):
        ids[start_ms // bucket_ms] = ids.get(start_ms // bucket_ms, 0) + count
    at = (step.number + 1) / load.batches_per_horizon
    return at, {number: round(scale * count) for number, count in ids.items()}


def filters_of(state: ShardState, load: Load, now_ms: int) -> Iterator[tuple[float, SegmentRef]]:
    """Yield the segments whose filters are probed at ``now_ms``.

    Every segment comes with the share of IDs that probe its filter, which covers a range of hashes.
    """
    for bucket in state.manifest.buckets:
        # Skip a bucket beyond the horizon, which is kept only for late records.
        if bucket.end_ms - 1 + load.policy.horizon_ms < now_ms:
            continue
        # Copies of an ID have the same timestamp, so only the bucket of now can hold a copy.
        stable = load.policy.stable_timestamps and not bucket.clamped
        if stable and not bucket.start_ms <= now_ms < bucket.end_ms:
            continue
        for coverage in bucket.coverages():
            segment = coverage.segment
            start = segment.range_index / segment.hash_ranges
            end = (segment.range_index + 1) / segment.hash_ranges
            yield end - max(start, min(end, coverage.ranges_done / coverage.hash_ranges)), segment
