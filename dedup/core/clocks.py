"""Source-partition clocks and the two watermarks (invariants 9 to 11).

Two formulas, both monotone, computed at the end of a micro-batch and in force for the next::

    late_watermark = min(low_watermark, now) - lateness
    gc_watermark   = late_watermark - horizon

``low_watermark`` is the minimum, over active source partitions, of the highest timestamp observed
from each. Query time (the sum of the times between the micro-batches of one run) measures
silence, so downtime of the query makes nobody idle.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any

from dedup.core.policy import Policy
from dedup.errors import ClockError, ConfigError

#: No timestamp yet; earlier than every real one, with room to subtract durations.
NEVER_MS = -(1 << 62)
#: A source partition is idle only after others sent records in this many micro-batches.
IDLE_BATCHES = 3
#: Processing time may be this far off before it counts as a jump.
MAX_CLOCK_SKEW_MS = 60_000
#: Clocks that a shard keeps at most: each of them is in every shard's state row.
MAX_SOURCES = 20_000


def known_ms(time_ms: int) -> int | None:
    """Return the time; None where there was none yet, be it with durations taken off."""
    return None if time_ms <= NEVER_MS // 2 else time_ms


@dataclass(frozen=True, slots=True)
class Observed:
    """What one micro-batch observed of one source partition.

    Parameters
    ----------
    newest_ms : int
        Highest timestamp that was the record's own, or NEVER_MS if every one was substituted.
    records : int
        Records observed, substituted ones included.
    """

    newest_ms: int
    records: int

    def merge(self, other: Observed) -> Observed:
        """Return what was observed in both."""
        return Observed(max(self.newest_ms, other.newest_ms), self.records + other.records)


@dataclass(frozen=True, slots=True)
class SourceClock:
    """One source partition's clock.

    Parameters
    ----------
    time_ms : int
        Highest trusted timestamp, NEVER_MS before the first.
    last_seen_ms, trusted_at_ms : int
        Query time at which it last sent anything / a trusted timestamp.
    silent_batches : int
        Micro-batches since then in which only others sent records.
    """

    time_ms: int
    last_seen_ms: int
    trusted_at_ms: int
    silent_batches: int = 0

    def idle(self, query_time_ms: int, idle_timeout_ms: int | None) -> bool:
        """Return whether nobody waits for it: it was silent for long, and others were not."""
        return (
            idle_timeout_ms is not None
            and self.silent_batches >= IDLE_BATCHES
            and query_time_ms - self.last_seen_ms >= idle_timeout_ms
        )


@dataclass(frozen=True, slots=True)
class Clocks:
    """All clocks of a shard, identical in every shard of a query."""

    run_id: str = ""
    now_ms: int = NEVER_MS
    query_time_ms: int = 0
    low_watermark_ms: int = NEVER_MS
    late_watermark_ms: int = NEVER_MS
    gc_watermark_ms: int = NEVER_MS
    newest_ms: int = NEVER_MS
    named_by: tuple[str, ...] = ()
    sources: Mapping[str, SourceClock] = field(default_factory=dict)

    def idle_sources(self, policy: Policy) -> frozenset[str]:
        """Return the source partitions that do not hold the low watermark back now."""
        return frozenset(
            name
            for name, clock in self.sources.items()
            if clock.idle(self.query_time_ms, policy.idle_timeout_ms)
        )

    def holder(self, policy: Policy) -> str | None:
        """Return the active source partition with the lowest clock, which holds the watermarks."""
        idle = self.idle_sources(policy)
        active = [(c.time_ms, name) for name, c in self.sources.items() if name not in idle]
        return min(active)[1] if active else None

    def advance(
        self, observed: Mapping[str, Observed], *, now_ms: int, run_id: str, policy: Policy
    ) -> Clocks:
        """Return the clocks at the end of a micro-batch.

        Parameters
        ----------
        observed : mapping of source partition to Observed
            From all of the micro-batch's input, not only this shard's records.
        now_ms : int
            Time of the micro-batch, the same after a replay.
        run_id : str
            The query's run; time between two runs is downtime and does not count.
        policy : Policy

        Raises
        ------
        ConfigError
            If there are more than `MAX_SOURCES` source partitions.
        """
        if not policy.event_time:
            return self._advance_processing_time(now_ms, run_id, policy)
        if self.named_by != policy.source_columns:
            # Nobody would observe clocks of other columns again: they would hold the watermarks.
            anew = replace(self, named_by=policy.source_columns, sources={})
            return anew.advance(observed, now_ms=now_ms, run_id=run_id, policy=policy)
        query_time_ms = self.query_time_ms + self.elapsed_ms(now_ms, run_id)
        newest_ms = max([self.newest_ms, *(h.newest_ms for h in observed.values())])
        sources = self._observe(observed, query_time_ms, now_ms, newest_ms, policy)
        check_sources(len(sources))
        clocks = replace(
            self,
            run_id=run_id,
            now_ms=now_ms,
            query_time_ms=query_time_ms,
            newest_ms=newest_ms,
            sources=sources,
        )
        idle = clocks.idle_sources(policy)
        active = [clock.time_ms for name, clock in sources.items() if name not in idle]
        low_ms = max(self.low_watermark_ms, min(active, default=NEVER_MS))
        return clocks._with_watermarks(low_ms, min(low_ms, now_ms), policy)

    def _observe(
        self,
        observed: Mapping[str, Observed],
        query_time_ms: int,
        now_ms: int,
        newest_ms: int,
        policy: Policy,
    ) -> dict[str, SourceClock]:
        sources: dict[str, SourceClock] = {}
        for name, clock in self.sources.items():
            if name in observed or not observed:
                sources[name] = clock
                continue
            silent = replace(clock, silent_batches=clock.silent_batches + 1)
            # An idle partition wholly behind the GC watermark holds nothing and is forgotten.
            if silent.time_ms > self.gc_watermark_ms or not silent.idle(
                query_time_ms, policy.idle_timeout_ms
            ):
                sources[name] = silent
        for name, h in observed.items():
            old = sources.get(name) or SourceClock(NEVER_MS, query_time_ms, query_time_ms)
            if h.newest_ms != NEVER_MS and h.newest_ms >= self.late_watermark_ms:
                trusted_at_ms, time_ms = query_time_ms, max(old.time_ms, h.newest_ms)
            else:
                # Only clamped or substituted times: they do not advance the clock, unless the
                # partition has sent nothing else for so long that it would hold back for ever:
                # then it goes with the fastest clock, or with now where it has no times at all.
                trusted_at_ms, time_ms = old.trusted_at_ms, old.time_ms
                patience_ms = policy.idle_timeout_ms
                if patience_ms is not None and query_time_ms - trusted_at_ms >= patience_ms:
                    stand_in_ms = now_ms if h.newest_ms == NEVER_MS else newest_ms
                    time_ms = max(time_ms, stand_in_ms)
            sources[name] = SourceClock(time_ms, query_time_ms, trusted_at_ms)
        return sources

    def _advance_processing_time(self, now_ms: int, run_id: str, policy: Policy) -> Clocks:
        time_ms = self.effective_now(now_ms)
        # Within a run the highest is kept, so that a fall is seen that comes in small steps.
        now_ms = max(now_ms, self.now_ms) if run_id == self.run_id else now_ms
        clocks = replace(self, run_id=run_id, now_ms=now_ms, newest_ms=time_ms)
        return clocks._with_watermarks(time_ms, time_ms, policy)

    def _with_watermarks(self, low_ms: int, bound_ms: int, policy: Policy) -> Clocks:
        late_ms, gc_ms = self.late_watermark_ms, self.gc_watermark_ms
        if bound_ms != NEVER_MS:
            late_ms = max(late_ms, bound_ms - policy.lateness_ms)
            gc_ms = max(gc_ms, late_ms - policy.horizon_ms)
        return replace(
            self, low_watermark_ms=low_ms, late_watermark_ms=late_ms, gc_watermark_ms=gc_ms
        )

    def elapsed_ms(self, now_ms: int, run_id: str) -> int:
        """Return the query time since the last micro-batch: none where a run begins."""
        same_run = run_id == self.run_id and self.now_ms != NEVER_MS
        return max(0, now_ms - self.now_ms) if same_run else 0

    def effective_now(self, now_ms: int) -> int:
        """Return the processing time of a micro-batch: not behind the last one's, of any run."""
        return max(now_ms, self.newest_ms)

    def check_jump(self, *, now_ms: int, worker_now_ms: int, run_id: str, policy: Policy) -> None:
        """Refuse a processing time that cannot be right.

        Raises
        ------
        ClockError
            If ``now_ms`` is more than a minute ahead of the worker's own clock, or fell by more
            than a minute within one run, and ``accept_clock_jump`` is off. Gaps without
            micro-batches and the first micro-batch of a run are no jumps.
        """
        if policy.event_time or policy.accept_clock_jump:
            return
        if now_ms - worker_now_ms > MAX_CLOCK_SKEW_MS:
            raise ClockError.ahead(now_ms, worker_now_ms)
        if run_id == self.run_id and self.now_ms - now_ms > MAX_CLOCK_SKEW_MS:
            raise ClockError.fell(now_ms, self.now_ms)

    def to_json(self) -> dict[str, Any]:
        """Return the clocks as JSON can hold them; `from_json` reads it back."""
        return {
            **{field.name: getattr(self, field.name) for field in fields(self)},
            "named_by": list(self.named_by),
            "sources": {
                name: [c.time_ms, c.last_seen_ms, c.trusted_at_ms, c.silent_batches]
                for name, c in self.sources.items()
            },
        }

    @staticmethod
    def from_json(value: dict[str, Any]) -> Clocks:
        """Return the clocks that `to_json` wrote."""
        sources = {name: SourceClock(*numbers) for name, numbers in value["sources"].items()}
        named_by = tuple(value["named_by"])
        return Clocks(**{**value, "sources": sources, "named_by": named_by})


def check_sources(count: int) -> None:
    """Refuse more clocks than a state row has room for; ConfigError says what to name instead."""
    if count > MAX_SOURCES:
        raise ConfigError(
            f"source_partition tells more than {MAX_SOURCES:,} source partitions apart, and every "
            "shard keeps a clock for each. Name what tells producers or partitions apart (Kafka: "
            "topic, partition), not records, users or sessions; or set a shorter idle_timeout, "
            "after which a silent one is forgotten.",
            remedy="many-sources",
        )
