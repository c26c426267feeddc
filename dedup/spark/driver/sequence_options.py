"""The arguments of `dedup_by_sequence`, checked against each other before they meet a DataFrame."""

from __future__ import annotations

from collections.abc import Mapping, Set
from dataclasses import dataclass
from datetime import timedelta
from typing import Literal

from dedup.core.duration import duration_ms
from dedup.core.option_rules import check_least, choice, positive_ms, refused
from dedup.core.policy import NULL_TIMESTAMPS, Policy
from dedup.core.sequence import HANDLINGS, MOST_RANGES, Handling, SequenceRule
from dedup.errors import ConfigError
from dedup.spark.driver.options import ColumnOrName, ColumnsOption, check_texts, several
from dedup.spark.idtime import IdTime

_BY_VERDICT = ("gaps", "unknown", "fenced", "unnumbered")


@dataclass(frozen=True, slots=True, kw_only=True)
class SequenceOptions:
    """The arguments of `dedup_by_sequence`.

    Raises
    ------
    ConfigError
        If a value cannot work whatever it is applied to.
    """

    producer: ColumnsOption
    sequence: ColumnOrName
    expire_after: str | timedelta
    epoch: ColumnOrName | None
    partition: ColumnsOption
    timestamp: ColumnOrName | IdTime | None
    source_partition: ColumnsOption
    gaps: Handling
    unknown: Handling
    fenced: Handling
    unnumbered: Handling
    null_timestamps: Literal["error", "now", "emit", "drop"]
    verdict: str | None
    idle_timeout: str | timedelta | None
    max_future: str | timedelta
    ranges: int
    max_producers: int
    accept_clock_jump: bool
    max_shard_batch_bytes: int
    metrics: str

    def __post_init__(self) -> None:
        for option in _BY_VERDICT:
            choice(option, getattr(self, option), HANDLINGS)
        choice("null_timestamps", self.null_timestamps, NULL_TIMESTAMPS)
        for option in ("ranges", "max_producers", "max_shard_batch_bytes"):
            value = getattr(self, option)
            if isinstance(value, bool) or not isinstance(value, int):
                raise ConfigError(f"{option}={value!r} must be a whole number.")
            check_least(option, value)
        if self.ranges > MOST_RANGES:
            raise refused("ranges", self.ranges, f"be 1 to {MOST_RANGES}.")
        if self.max_producers >= 1 << 63:  # the figures hold it in 64 bits
            raise refused("max_producers", self.max_producers, "be below 2^63.")
        if not isinstance(self.accept_clock_jump, bool):
            raise refused("accept_clock_jump", self.accept_clock_jump, "be True or False.")
        for option in ("producer", "partition", "source_partition"):
            given = getattr(self, option)
            if isinstance(given, (Set, Mapping)):
                raise ConfigError(
                    f"{option}={given!r} has no order that lasts; give the columns as a list."
                )
            object.__setattr__(self, option, tuple(several(given)))
        if not self.producer:
            raise ConfigError("producer=[] names no column.")
        check_texts({"verdict": self.verdict}, self.metrics)
        if isinstance(self.timestamp, IdTime):
            raise ConfigError(
                "timestamp=time_from_id(...) reads the ID of dedup_by_id, and records of "
                "dedup_by_sequence have none; give a timestamp column, or none."
            )
        if self.timestamp is None and self.source_partition:
            raise ConfigError(
                f"source_partition={list(several(self.source_partition))!r} needs a timestamp "
                "column; without `timestamp` producers expire by the time of the micro-batches."
            )
        duration_ms(self.max_future, option="max_future")
        self.policy()

    def policy(self) -> Policy:
        """Return the rules of the clocks for the core."""
        expire_ms = positive_ms("expire_after", self.expire_after)
        idle_ms = None
        if self.idle_timeout is not None:
            idle_ms = duration_ms(self.idle_timeout, option="idle_timeout")
        return Policy(
            horizon_ms=expire_ms,
            bucket_ms=expire_ms,
            event_time=self.timestamp is not None,
            idle_timeout_ms=idle_ms,
            accept_clock_jump=self.accept_clock_jump,
        )

    def rule(self) -> SequenceRule:
        """Return the rules of the verdicts for the core."""
        return SequenceRule(
            gaps=self.gaps,
            unknown=self.unknown,
            fenced=self.fenced,
            unnumbered=self.unnumbered,
            ranges=self.ranges,
            max_producers=self.max_producers,
        )
