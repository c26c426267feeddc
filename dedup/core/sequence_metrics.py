"""What a micro-batch of numbered records did, as numbers: `SequenceMetrics`."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, TypeAlias

from dedup.core.metrics import (
    BatchMetrics,
    Count,
    Greatest,
    Latest,
    Level,
    RecordCount,
    Setting,
    difference_ms,
    fields_of,
    of_kind,
)

#: Stages of the group function, in microseconds, summed over shards.
SEQUENCE_GROUP_STAGES = ("read", "judge", "write")
#: Of the micro-batch: pack, summed over map tasks, before them.
SEQUENCE_STAGES = ("pack", *SEQUENCE_GROUP_STAGES)


@dataclass(frozen=True, slots=True, kw_only=True)
class SequenceMetrics:
    """One micro-batch of `dedup_by_sequence`, summed over shards.

    ``records_in == accept + duplicate + gap + fenced + unknown + unnumbered + untimed`` holds in
    every micro-batch. Producers and bytes are after it. Timestamps are milliseconds since 1970,
    None before the first.

    Parameters
    ----------
    missing
        Sequences that were left out ahead of records which went on: lost, or late.
    recovered
        Of those of this and earlier micro-batches, the ones that came after all; they are among
        `gap`.
    producers, producers_new, producers_expired
        Producers (of a partition each) that are remembered, that were not before this micro-batch,
        and that were forgotten for their silence.
    fullest_shard_producers
        Of the shard with the most; ``max_producers`` bounds it.
    expired_before_ms
        Who was last heard of before that is forgotten; None by processing time, as query time (what
        a query spends running) then measures silence.
    begins, epochs_apart
        As in `BatchMetrics`.
    stage_us : dict of stage name to microseconds
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
        """What is behind it is forgotten: `expired_before_ms`, by the name of `BatchMetrics`."""
        return self.expired_before_ms

    @property
    def gc_source(self) -> None:
        """Which source partition holds the watermarks is not observed."""
        return None

    @property
    def gc_lag_newest_ms(self) -> int | None:
        """How far the GC watermark is behind the newest timestamp."""
        return difference_ms(self.newest_ms, self.gc_watermark_ms)

    @property
    def remembered_ms(self) -> int:
        """How far the GC watermark is behind the low watermark, where it keeps up."""
        return self.expire_after_ms

    @property
    def stored_bytes(self) -> int:
        """All bytes that remember producers: those of the state."""
        return self.state_bytes

    @property
    def by_query_time(self) -> bool:
        """Whether silence is measured in query time: there is no `timestamp`."""
        return self.expired_before_ms is None and self.newest_ms is not None

    @property
    def fill(self) -> float:
        """The share of `max_producers` that the fullest shard has; at 1 the query stops."""
        return self.fullest_shard_producers / max(1, self.max_producers)

    def to_json(self) -> dict[str, Any]:
        """Return all fields as JSON can hold them; `from_json` reads it back."""
        return asdict(self)

    @staticmethod
    def from_json(value: object) -> SequenceMetrics:
        """Return the metrics that `to_json` gave, also in an older or a later release.

        Raises
        ------
        ValueError
            When it is no object, a field is missing, or holds what it cannot.
        """
        return SequenceMetrics(**fields_of(SequenceMetrics, value))


#: A micro-batch of either operator; a query has one of them.
AnyMetrics: TypeAlias = BatchMetrics | SequenceMetrics

SEQUENCE_COUNTED = (*of_kind(SequenceMetrics, "records"), *of_kind(SequenceMetrics, "count"))
SEQUENCE_HELD = of_kind(SequenceMetrics, "level")
SEQUENCE_TIMES = of_kind(SequenceMetrics, "latest")
SEQUENCE_MAXIMA = (
    *of_kind(SequenceMetrics, "greatest"), *SEQUENCE_TIMES, *of_kind(SequenceMetrics, "setting"),
)  # fmt: skip
SEQUENCE_WHOLE_NUMBERS = tuple(
    name
    for name in (*SEQUENCE_COUNTED, *SEQUENCE_HELD, *SEQUENCE_MAXIMA)
    if name not in SEQUENCE_TIMES
)
#: Whole numbers that the group function returns for its shard.
SEQUENCE_COLUMNS = (
    *SEQUENCE_COUNTED, *SEQUENCE_HELD, *SEQUENCE_MAXIMA,
    *(f"{stage}_us" for stage in SEQUENCE_GROUP_STAGES), "base_epoch",
)  # fmt: skip
