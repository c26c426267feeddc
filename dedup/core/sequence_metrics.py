"""Metrics of a micro-batch of numbered records: `SequenceMetrics`."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, TypeAlias

from dedup.core.metrics import (
    BatchMetrics,
    Count,
    Greatest,
    Latest,
    Level,
    MetricNames,
    RecordCount,
    Setting,
    difference_ms,
    fields_of,
)

#: Stages of the group function, in microseconds, summed over shards.
SEQUENCE_GROUP_STAGES = ("read", "judge", "write")
#: Stages of the micro-batch. The first, pack, is summed over map tasks.
SEQUENCE_STAGES = ("pack", *SEQUENCE_GROUP_STAGES)


@dataclass(frozen=True, slots=True, kw_only=True)
class SequenceMetrics:
    """One micro-batch of `dedup_by_sequence`, summed over shards.

    ``records_in == accept + duplicate + gap + fenced + unknown + unnumbered + untimed`` holds in
    every micro-batch. Producers and bytes are as of its end. Timestamps are milliseconds since
    1970, None before the first.

    Parameters
    ----------
    missing
        Sequences that were skipped ahead of emitted records: lost, or late.
    recovered
        Sequences skipped in this or an earlier micro-batch that came after all; also counted in
        `gap`.
    producers, producers_new, producers_expired
        Producers (per partition) that are remembered, that are new in this micro-batch, and that
        were forgotten because they were silent.
    fullest_shard_producers
        Number of producers in the fullest shard, at most ``max_producers``.
    expired_before_ms
        Producers silent since before this time are forgotten. None by processing time, where query
        time (the time that a query spends running) measures silence.
    begins, epochs_apart
        As in `BatchMetrics`.
    stage_us
        As in `BatchMetrics`, with other stages.
    """

    query_id: str
    run_id: str
    query_name: str | None
    batch_id: int
    batch_ms: int
    shards: int
    records_in: RecordCount
    accept: RecordCount
    duplicate: RecordCount
    gap: RecordCount
    fenced: RecordCount
    unknown: RecordCount
    unnumbered: RecordCount
    untimed: RecordCount
    emitted: RecordCount
    missing: RecordCount
    recovered: RecordCount
    future: RecordCount
    null_timestamp: RecordCount
    producers: Level
    producers_new: Count
    producers_expired: Count
    fullest_shard_producers: Greatest
    state_bytes: Level
    now_ms: Latest
    newest_ms: Latest
    low_watermark_ms: Latest
    expired_before_ms: Latest
    expire_after_ms: Setting
    max_producers: Setting
    begins: bool
    epochs_apart: int
    stage_us: dict[str, int]

    @property
    def gc_watermark_ms(self) -> int | None:
        """`expired_before_ms` under its name in `BatchMetrics`."""
        return self.expired_before_ms

    @property
    def gc_source(self) -> None:
        """None: which source partition holds the watermarks back is not observed."""
        return None

    @property
    def gc_lag_newest_ms(self) -> int | None:
        """How far the GC watermark is behind the newest timestamp."""
        return difference_ms(self.newest_ms, self.gc_watermark_ms)

    @property
    def remembered_ms(self) -> int:
        """How far the GC watermark is behind the low watermark if it keeps up."""
        return self.expire_after_ms

    @property
    def stored_bytes(self) -> int:
        """All bytes that remember producers: the state rows."""
        return self.state_bytes

    @property
    def by_query_time(self) -> bool:
        """Whether query time measures silence, because there is no `timestamp`."""
        return self.expired_before_ms is None and self.newest_ms is not None

    @property
    def fill(self) -> float:
        """Share of `max_producers` used in the fullest shard. Above 1 the query stops."""
        return self.fullest_shard_producers / max(1, self.max_producers)

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @staticmethod
    def from_json(value: object) -> SequenceMetrics:
        return SequenceMetrics(**fields_of(SequenceMetrics, value))


#: Metrics of a micro-batch of either operator. A query has one operator.
AnyMetrics: TypeAlias = BatchMetrics | SequenceMetrics

SEQUENCE_NAMES = MetricNames.of(SequenceMetrics, SEQUENCE_GROUP_STAGES)
