"""Clocks of source partitions, and the two watermarks (invariants 9 to 11).

Both watermarks only rise. They are computed at the end of a micro-batch and apply to the next::

    late_watermark = min(low_watermark, now) - lateness
    gc_watermark   = late_watermark - horizon

The clock of a source partition is the highest timestamp observed from that partition.
``low_watermark`` is the lowest clock of an active source partition. A partition becomes idle if it
is silent for long in *query time*, which does not include the time between two runs of the query.
So no partition becomes idle while the query is stopped.

A window after the operator has Spark's watermark, which does not follow these clocks. It is the
highest timestamp that the window has seen, minus a delay. `Clocks.window_watermark_ms` returns it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any

from dedup.core.policy import CLOCK_JUMP, Policy
from dedup.errors import ClockError, ConfigError
from dedup.values import parse
from dedup.values.duration import iso
from dedup.values.parse import integer, record, row, text, tuple_of

#: Stands for "no timestamp yet". It is earlier than every real timestamp, and durations can be
#: subtracted from it without overflow.
NEVER_MS = -(1 << 62)
#: A silent source partition becomes idle only after other partitions have sent records in this many
#: micro-batches.
IDLE_BATCHES = 3
#: Largest difference between processing times that does not count as a jump of the clock.
MAX_CLOCK_SKEW_MS = 60_000
#: Largest number of clocks. The state row of every shard holds all clocks.
MAX_SOURCES = 20_000
#: Spark's watermark in the first two micro-batches of a checkpoint.
FIRST_WINDOW_WATERMARKS_MS = (0, 0)


def known_ms(time_ms: int) -> int | None:
    """Return the time, or None if it is NEVER_MS or NEVER_MS minus a duration."""
    return None if time_ms <= NEVER_MS // 2 else time_ms


@dataclass(frozen=True, slots=True)
class Observed:
    """What one micro-batch observed of one source partition."""

    #: Highest timestamp that a record carried, or NEVER_MS if all timestamps were replaced.
    newest_ms: int
    #: Number of records and heartbeats, including those whose timestamps were replaced.
    records: int
    #: Highest timestamp that a heartbeat carried, or NEVER_MS. The operator emits no heartbeat, so
    #: a window after it does not see this time.
    heartbeat_ms: int = NEVER_MS

    @property
    def clock_ms(self) -> int:
        """Highest timestamp that may advance the clock, or NEVER_MS."""
        return max(self.newest_ms, self.heartbeat_ms)

    def merge(self, other: Observed) -> Observed:
        return Observed(
            max(self.newest_ms, other.newest_ms),
            self.records + other.records,
            max(self.heartbeat_ms, other.heartbeat_ms),
        )


@dataclass(frozen=True, slots=True)
class SourceClock:
    """The clock of one source partition.

    A timestamp is trusted if a record carried it and if it is not behind the late watermark.
    """

    #: Highest trusted timestamp, or NEVER_MS before the first one.
    time_ms: int
    #: Query time at which the partition last sent a record.
    last_seen_ms: int
    #: Query time at which the partition last sent a trusted timestamp.
    trusted_at_ms: int
    #: Number of micro-batches since the partition's last record in which other partitions sent
    #: records.
    silent_batches: int = 0

    def idle(self, query_time_ms: int, idle_timeout_ms: int | None) -> bool:
        """Return whether the partition has long been silent while other partitions sent records.

        The low watermark does not wait for an idle partition.
        """
        return (
            idle_timeout_ms is not None
            and self.silent_batches >= IDLE_BATCHES
            and query_time_ms - self.last_seen_ms >= idle_timeout_ms
        )


@dataclass(frozen=True, slots=True)
class Clocks:
    """The clocks of all source partitions, and the watermarks. All shards of a query agree."""

    run_id: str = ""
    now_ms: int = NEVER_MS
    query_time_ms: int = 0
    low_watermark_ms: int = NEVER_MS
    late_watermark_ms: int = NEVER_MS
    gc_watermark_ms: int = NEVER_MS
    newest_ms: int = NEVER_MS
    named_by: tuple[str, ...] = ()
    sources: Mapping[str, SourceClock] = field(default_factory=dict)
    #: Upper bounds of Spark's watermark after the operator, at the start and at the end of the last
    #: micro-batch. None if the option `window_delay` was not set in that micro-batch.
    window_watermarks_ms: tuple[int, int] | None = None
    #: The last of these bounds, if the option was set before. Spark's watermark never falls.
    window_floor_ms: int | None = None

    def idle_sources(self, policy: Policy) -> frozenset[str]:
        """Return the idle source partitions, which do not hold the low watermark back."""
        return frozenset(
            name
            for name, clock in self.sources.items()
            if clock.idle(self.query_time_ms, policy.idle_timeout_ms)
        )

    def holder(self, policy: Policy) -> str | None:
        """Return the active partition that holds the watermarks back, or None if all are idle."""
        return min(self._active(policy), default=(0, None))[1]

    def _active(self, policy: Policy) -> list[tuple[int, str]]:
        idle = self.idle_sources(policy)
        return [(c.time_ms, name) for name, c in self.sources.items() if name not in idle]

    def advance(
        self, observed: Mapping[str, Observed], *, now_ms: int, run_id: str, policy: Policy
    ) -> Clocks:
        """Return the clocks at the end of a micro-batch.

        ``observed`` covers the whole input of the micro-batch, not only the records of this shard.
        Query time does not advance between two runs.
        """
        if not policy.event_time:
            return self._advance_processing_time(now_ms, run_id, policy)
        if self.named_by != policy.source_columns:
            # The source columns have changed. The old clocks would never advance again, and would
            # hold the watermarks back.
            renamed = replace(self, named_by=policy.source_columns, sources={})
            return renamed.advance(observed, now_ms=now_ms, run_id=run_id, policy=policy)
        query_time_ms = self.query_time_ms + self.elapsed_ms(now_ms, run_id)
        newest_ms = max([self.newest_ms, *(h.clock_ms for h in observed.values())])
        sources = self._observe(observed, query_time_ms, now_ms, newest_ms, policy)
        check_sources(len(sources))
        clocks = replace(
            self,
            run_id=run_id,
            now_ms=now_ms,
            query_time_ms=query_time_ms,
            newest_ms=newest_ms,
            sources=sources,
            window_watermarks_ms=self._advance_window(observed, policy),
            window_floor_ms=None if policy.window_delay_ms is not None else self._window_floor_ms,
        )
        slowest_ms = min(clocks._active(policy), default=(NEVER_MS, ""))[0]
        low_ms = max(self.low_watermark_ms, slowest_ms)
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
            # Forget an idle partition behind the GC watermark: no watermark waits for its clock.
            if silent.time_ms > self.gc_watermark_ms or not silent.idle(
                query_time_ms, policy.idle_timeout_ms
            ):
                sources[name] = silent
        for name, h in observed.items():
            old = sources.get(name) or SourceClock(NEVER_MS, query_time_ms, query_time_ms)
            if h.clock_ms != NEVER_MS and h.clock_ms >= self.late_watermark_ms:
                trusted_at_ms, time_ms = query_time_ms, max(old.time_ms, h.clock_ms)
            else:
                # Times that are late or replaced do not advance the clock. A partition that sends
                # only these would hold the watermarks back forever. After the idle timeout its
                # clock follows the fastest clock, or now if none of its records carries a time.
                trusted_at_ms, time_ms = old.trusted_at_ms, old.time_ms
                patience_ms = policy.idle_timeout_ms
                if patience_ms is not None and query_time_ms - trusted_at_ms >= patience_ms:
                    stand_in_ms = now_ms if h.clock_ms == NEVER_MS else newest_ms
                    time_ms = max(time_ms, stand_in_ms)
            sources[name] = SourceClock(time_ms, query_time_ms, trusted_at_ms)
        return sources

    def window_watermark_ms(self, policy: Policy, *, follows: bool) -> int:
        """Return the watermark by which a window after the operator drops late records.

        Spark computes a watermark at the end of each micro-batch, and drops the late records of a
        micro-batch by the watermark from the end of the last but one. ``follows``: whether the next
        micro-batch has the next number. If it has not, Spark ran a micro-batch without input in
        between, and uses the newer watermark.
        """
        before_ms, after_ms = self._window_watermarks(policy)
        return before_ms if follows else after_ms

    def _window_watermarks(self, policy: Policy) -> tuple[int, int]:
        if self.window_watermarks_ms is not None:
            return self.window_watermarks_ms
        # The option is new. The window may have been there before, with the same delay.
        assert policy.window_delay_ms is not None
        floor_ms = (
            FIRST_WINDOW_WATERMARKS_MS[0] if self.window_floor_ms is None else self.window_floor_ms
        )
        since_ms = max(floor_ms, self.newest_ms - policy.window_delay_ms)
        return since_ms, since_ms

    @property
    def _window_floor_ms(self) -> int | None:
        watermarks_ms = self.window_watermarks_ms
        return self.window_floor_ms if watermarks_ms is None else watermarks_ms[1]

    def _advance_window(
        self, observed: Mapping[str, Observed], policy: Policy
    ) -> tuple[int, int] | None:
        """Return the window's watermarks at the start and at the end of a micro-batch.

        The end counts all records, because no shard knows which records the others emit.
        """
        if policy.window_delay_ms is None:
            return None
        _, before_ms = self._window_watermarks(policy)
        newest_ms = max((h.newest_ms for h in observed.values()), default=NEVER_MS)
        return before_ms, max(before_ms, newest_ms - policy.window_delay_ms)

    def _advance_processing_time(self, now_ms: int, run_id: str, policy: Policy) -> Clocks:
        time_ms = self.effective_now(now_ms)
        # Keep the highest time of a run, so that many small backward steps count as a jump too.
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
        """Return the query time since the last micro-batch, or 0 in a run's first micro-batch."""
        same_run = run_id == self.run_id and self.now_ms != NEVER_MS
        return max(0, now_ms - self.now_ms) if same_run else 0

    def effective_now(self, now_ms: int) -> int:
        """Return the processing time of a micro-batch, which never falls."""
        return max(now_ms, self.newest_ms)

    def check_jump(self, *, now_ms: int, worker_now_ms: int, run_id: str, policy: Policy) -> None:
        """Raise ClockError if the processing time cannot be right.

        The processing time ``now_ms`` cannot be right if it is more than a minute ahead of the
        worker's clock, or fell by more than a minute within one run. The policy's
        ``accept_clock_jump`` turns this check off. A pause between micro-batches is not a jump.
        """
        if policy.event_time or policy.accept_clock_jump:
            return
        if now_ms - worker_now_ms > MAX_CLOCK_SKEW_MS:
            raise ClockError(
                f"The micro-batch's time {iso(now_ms)} is more than a minute ahead of this "
                f"worker's clock {iso(worker_now_ms)}. One of the two machines' clocks is wrong, "
                "and IDs would expire too early. Set the clocks, or accept it with "
                f"accept='{CLOCK_JUMP}'.",
                remedy="clock",
            )
        if run_id == self.run_id and self.now_ms - now_ms > MAX_CLOCK_SKEW_MS:
            raise ClockError(
                f"The micro-batch's time fell from {iso(self.now_ms)} to {iso(now_ms)} within one "
                "run. The driver's clock was set back. Restart the query, or accept it with "
                f"accept='{CLOCK_JUMP}'. Time then stands still until the clock has caught up.",
                remedy="clock",
            )

    def to_json(self) -> dict[str, Any]:
        window, floor_ms = self.window_watermarks_ms, self.window_floor_ms
        return {
            **{name: getattr(self, name) for name in _PARSERS if name not in _OPTIONAL},
            **({} if window is None else {"window_watermarks_ms": list(window)}),
            **({} if floor_ms is None else {"window_floor_ms": floor_ms}),
            "named_by": list(self.named_by),
            "sources": {
                name: [c.time_ms, c.last_seen_ms, c.trusted_at_ms, c.silent_batches]
                for name, c in self.sources.items()
            },
        }

    @staticmethod
    def from_json(value: object) -> Clocks:
        """Return the clocks, or raise ValueError if `to_json` cannot have returned the value."""
        return Clocks(**record(value, _PARSERS, _OPTIONAL))


def _sources(value: object) -> dict[str, SourceClock]:
    if not isinstance(value, dict):
        raise ValueError("the clocks of its sources are not an object")
    numbers = row(integer, integer, integer, integer)
    return {source: SourceClock(*numbers(clock)) for source, clock in value.items()}


_PARSERS = {
    **{field.name: integer for field in fields(Clocks)},
    "run_id": lambda value: value if value == "" else parse.name(value),
    "named_by": tuple_of(text),
    "sources": _sources,
    "window_watermarks_ms": row(integer, integer),
}
#: Fields that are missing if their options were not set.
_OPTIONAL = ("window_watermarks_ms", "window_floor_ms")


def check_sources(count: int) -> None:
    if count > MAX_SOURCES:
        raise ConfigError(
            f"source_partition names more than {MAX_SOURCES:,} source partitions, and every "
            "shard keeps a clock for each. Choose columns that name a producer or a partition "
            "(Kafka: topic, partition), not a record, user or session. Or set a shorter "
            "idle_timeout, after which dedup forgets silent partitions.",
            remedy="many-sources",
        )
