"""Metrics of a micro-batch of numbered records: `SequenceMetrics`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from dedup.core.metrics import (
    BatchMetrics,
    Count,
    Greatest,
    Latest,
    Level,
    MetricNames,
    OperatorMetrics,
    RecordCount,
    Setting,
    difference_ms,
)

#: Stages of the group function, as in `dedup.core.metrics`.
SEQUENCE_GROUP_STAGES = ("read", "judge", "write")
#: Stages of the micro-batch. The time of the first stage, pack, is summed over map tasks.
SEQUENCE_STAGES = ("pack", *SEQUENCE_GROUP_STAGES)


@dataclass(frozen=True, slots=True, kw_only=True)
class SequenceMetrics(OperatorMetrics):
    """Metrics of one micro-batch of `dedup_by_sequence`, summed over shards.

    ``records_in == accept + duplicate + gap + fenced + unknown + unnumbered + untimed`` holds in
    every micro-batch. Producers and bytes are counted at the end of the micro-batch. Timestamps are
    milliseconds since 1970, or None before the first timestamp.

    Parameters
    ----------
    missing
        Sequences that emitted records skipped. Their records are lost or late.
    recovered
        Skipped sequences whose records came after all. They also count as `gap`.
    producers
        Remembered producers. A producer counts once per partition.
    producers_new
        Producers that are new in this micro-batch.
    producers_expired
        Producers that the micro-batch forgot because they were silent.
    fullest_shard_producers
        Number of producers in the fullest shard, at most ``max_producers``.
    expired_before_ms
        Producers silent since before this time are forgotten. None if records carry no timestamps,
        because then silence is measured in query time, the time that a query spends running.
    begins, epochs_apart, heartbeats, bytes_in
        As in `BatchMetrics`.
    stage_us
        As in `BatchMetrics`, with other stages.
    """

    accept: RecordCount
    duplicate: RecordCount
    gap: RecordCount
    fenced: RecordCount
    unknown: RecordCount
    unnumbered: RecordCount
    untimed: RecordCount
    missing: RecordCount
    recovered: RecordCount
    producers: Level
    producers_new: Count
    producers_expired: Count
    fullest_shard_producers: Greatest
    expired_before_ms: Latest
    expire_after_ms: Setting
    max_producers: Setting

    @property
    def gc_watermark_ms(self) -> int | None:
        """The same time as `expired_before_ms`, under the name that `BatchMetrics` uses."""
        return self.expired_before_ms

    @property
    def gc_source(self) -> None:
        """Always None, because the metrics do not observe which partition holds watermarks back."""
        return None

    @property
    def gc_lag_newest_ms(self) -> int | None:
        """Milliseconds by which the GC watermark is behind the newest timestamp."""
        return difference_ms(self.newest_ms, self.gc_watermark_ms)

    @property
    def remembered_ms(self) -> int:
        """Usual distance of the GC watermark behind the low watermark, in milliseconds."""
        return self.expire_after_ms

    @property
    def stored_bytes(self) -> int:
        """Number of bytes of all state rows, which alone remember producers."""
        return self.state_bytes

    @property
    def by_query_time(self) -> bool:
        """Whether query time measures silence, because records carry no timestamps."""
        return self.expired_before_ms is None and self.newest_ms is not None

    @property
    def fill(self) -> float:
        """Share of `max_producers` that the fullest shard uses. The query stops above 1."""
        return self.fullest_shard_producers / max(1, self.max_producers)


#: Metrics of a micro-batch of either operator. A query has one operator.
AnyMetrics: TypeAlias = BatchMetrics | SequenceMetrics

SEQUENCE_NAMES = MetricNames.of(SequenceMetrics, SEQUENCE_GROUP_STAGES)
