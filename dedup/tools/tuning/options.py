"""The options of `tune`, and the load that they describe.

A sample, a metrics log or a catalog supplies what the options do not say.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from dedup.catalog.certificate import certificate_of
from dedup.core.clocks import NEVER_MS, Clocks
from dedup.core.metrics import BatchMetrics
from dedup.core.policy import BUCKETS, FILTER_STATE_BYTES, default_lateness_ms
from dedup.core.state import ShardState
from dedup.errors import ConfigError
from dedup.spark.machine import machine_cores
from dedup.spark.options import BY_ID
from dedup.tools.repair.opening import Checkpoint, Where, open_root, read_checkpoint
from dedup.tools.tuning.demand import DAY_MS, Demand, Sizing
from dedup.tools.tuning.load import SST_BYTES_BESIDE_KEY, UUID_BYTES
from dedup.tools.tuning.sample import Sample, of_sample
from dedup.tools.watch.query_log import read_logs
from dedup.values.duration import format_ms
from dedup.values.option import Kind, Option, by_name, duration, whole

_COUNT = re.compile(r"(\d+(?:\.\d+)?(?:e\d+)?)\s*([kmbt]?)", re.IGNORECASE)
_TIMES = {"": 1.0, "k": 1e3, "m": 1e6, "b": 1e9, "t": 1e12}


def count(text: str, option: str) -> float:
    """Return a number such as ``20M``, ``1.5b`` or ``2000000``, or raise ConfigError."""
    match = _COUNT.fullmatch(text.strip().replace(",", "").replace("_", ""))
    if match is None:
        raise ConfigError(f"{option} {text} is not a number such as 20M, 1.5B or 300000.")
    return float(match[1]) * _TIMES[match[2].lower()]


#: Options of `tune` whose values are checked, by name.
OPTIONS = by_name(
    Option("ids_per_day", Kind(count)),
    Option("batch", duration(1)),
    *(
        BY_ID[name]
        for name in (
            "horizon", "lateness", "late", "shards", "bucket_length", "state_budget_bytes",
            "filter_state_bytes", "fpr",
        )
    ),
    Option("id_bytes", whole()),
    Option("cores", whole()),
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class TuneOptions:
    """The options of `tune`: where the load comes from, and which options the query has now.

    Values that are given here override what a sample, a log or a catalog shows.

    Attributes
    ----------
    ids_per_day : str or None
        New IDs per day, such as ``20M``.
    sample : callable or None
        Function that returns the result of `read_sample`. `tune` calls it when it needs the sample.
    log, catalog
        Folder of metrics logs, and catalog of a query. Give at most one of sample, log and catalog.
    checkpoint
        Checkpoint of the query of `catalog`, or the result of `read_checkpoint`.
    query : str or None
        Name or ID of the query in the log.
    horizon, lateness, batch : str or None
        Durations. `batch` is the time between micro-batches.
    duplicate_share : float or None
        Share of records that repeat an ID.
    id_bytes, shards, cores : int or None
        Length of an ID in bytes, number of shards, and cores of all executors.
    bucket_length, fpr, state_budget_bytes, filter_state_bytes
        Options of the query, or None for the operator's defaults.
    stable_timestamps : bool
        The query's option.
    late : str or None
        ``"emit"`` or ``"drop"``. Default: the value of the query of `catalog`, else ``"emit"``.

    Raises
    ------
    ConfigError
        If options contradict each other, or one is invalid.
    """

    ids_per_day: str | None = None
    sample: Callable[[], Sample] | None = None
    log: str | None = None
    catalog: Where | None = None
    checkpoint: Checkpoint | None = None
    query: str | None = None
    horizon: str | None = None
    lateness: str | None = None
    batch: str | None = None
    duplicate_share: float | None = None
    id_bytes: int | None = None
    shards: int | None = None
    cores: int | None = None
    bucket_length: str | None = None
    fpr: float | None = None
    state_budget_bytes: int | str | None = None
    filter_state_bytes: int | str | None = None
    stable_timestamps: bool = False
    late: str | None = None

    def __post_init__(self) -> None:
        sources = [n for n in ("sample", "log", "catalog") if getattr(self, n) is not None]
        if len(sources) > 1:
            raise ConfigError(f"--{sources[0]} and --{sources[1]} exclude each other. Give one.")
        if not sources and self.ids_per_day is None:
            raise ConfigError(
                "The load is missing. Give --ids-per-day 20M, or --sample FILES --id COL, or "
                "--log DIR, or --catalog ROOT --checkpoint DIR."
            )
        if self.catalog is not None and self.checkpoint is None:
            raise ConfigError("--catalog needs --checkpoint, which has the query's state.")
        if self.horizon is None and self.log is None and self.catalog is None:
            raise ConfigError("--horizon is missing: how long an ID is remembered, '7 days'.")
        if self.shards is not None and sources in (["log"], ["catalog"]):
            raise ConfigError(
                f"--shards and --{sources[0]} exclude each other: the {sources[0]} shows the "
                "shards, which are fixed from the query's first start."
            )
        for name in OPTIONS:
            self.value(name)

    def value(self, name: str) -> Any:
        """Return an option's value, or None if it is not set. Durations are in milliseconds."""
        return OPTIONS[name].check_flag(getattr(self, name))

    def sizing(self) -> dict[str, Any]:
        """Return the options of `Sizing` that are set."""
        sizing = {name: self.value(name) for name in asdict(Sizing())}
        sizing["bucket_length"] = self.bucket_length
        return {name: value for name, value in sizing.items() if value is not None}


def demand_of(options: TuneOptions) -> Demand:
    """Return the load that the options describe. Options override what their source shows."""
    ids_per_day, horizon_ms = options.value("ids_per_day"), options.value("horizon")
    lateness_ms, batch_ms = options.value("lateness"), options.value("batch")
    usual_ms = default_lateness_ms(horizon_ms or 1, stable_timestamps=options.stable_timestamps)
    base = Demand(
        origin="as given",
        ids_per_day=ids_per_day or 0.0,
        horizon_ms=horizon_ms or 1,
        lateness_ms=usual_ms if lateness_ms is None else lateness_ms,
        shards=options.shards or options.cores or machine_cores(),
        cores=options.cores or machine_cores(),
        cores_given=options.cores is not None,
        key_bytes=options.id_bytes or UUID_BYTES,
        stable_timestamps=options.stable_timestamps,
        today=Sizing(**options.sizing()),
    )
    demand = _observed(base, options)
    if horizon_ms or lateness_ms is not None or ids_per_day:
        # The trial's load differs from the query's, so their figures cannot be compared.
        demand = replace(demand, seen_live=None, seen_segments=None)
    overrides: dict[str, Any] = {
        "horizon_ms": horizon_ms,
        "lateness_ms": lateness_ms,
        "batch_ms": batch_ms,
        "batch_known": True if batch_ms else None,
        "duplicates": options.duplicate_share,
        "key_bytes": options.id_bytes,
        "late": options.late,
        "ids_per_day": ids_per_day or None,
        "today": replace(demand.today, **options.sizing()),
    }
    return replace(demand, **{name: v for name, v in overrides.items() if v is not None})


def _observed(base: Demand, options: TuneOptions) -> Demand:
    if options.sample is not None:
        return of_sample(base, options.sample(), base.ids_per_day or None)
    if options.log is not None:
        logs = read_logs(options.log)
        chosen = [log for log in logs if options.query in (None, log.query_id, log.name)]
        if len(chosen) != 1:
            names = ", ".join(sorted(log.name or log.query_id for log in logs)) or "no query"
            which = (
                f"and not {options.query}"
                if options.query and not chosen
                else "choose with --query"
            )
            raise ConfigError(f"--log {options.log} has logs of {names}; {which}.")
        log, name = chosen[0], chosen[0].name or chosen[0].query_id
        if log.batches and not log.of_ids:
            raise ConfigError(
                f"Query {name} is one of dedup_by_sequence, which has no filters to size."
            )
        return of_batches(base, name, log.of_ids)
    if options.catalog is not None and options.checkpoint is not None:
        root = open_root(options.catalog)
        snapshot = read_checkpoint(root, options.checkpoint)
        certificate = certificate_of(root, snapshot.query_id)
        base = replace(
            base,
            event_time=certificate.timestamp_source != "processing time",
            stable_timestamps=certificate.stable_timestamps,
        )
        return of_states(base, snapshot.query_id, snapshot.states)
    return base


def of_batches(base: Demand, query: str, batches: Sequence[tuple[int, BatchMetrics]]) -> Demand:
    """Return `base` with the rates of a metrics log, and the options of its last micro-batch.

    `batches` holds micro-batches with the times of their reports, oldest first. Raises ConfigError
    if the micro-batches show no rate.
    """
    # Micro-batches of at-least-once do not distinguish new IDs from copies.
    unchecked = [n for n, (_, batch) in enumerate(batches, 1) if batch.unchecked]
    if unchecked and unchecked[-1] > len(batches) - 2:
        raise ConfigError(
            f'Query {query} ran with guarantee="at-least-once", so its metrics log does not show '
            "which IDs were new. Give --ids-per-day."
        )
    batches = batches[unchecked[-1] :] if unchecked else batches
    # The measured time starts at the end of the first micro-batch.
    later = [batch for _, batch in batches[1:]]
    new = sum(batch.unique + batch.late for batch in later)
    records = new + sum(batch.duplicate + batch.conflict for batch in later)
    times_ms = [batch.newest_ms for _, batch in batches if batch.newest_ms is not None]
    passed_ms = times_ms[-1] - times_ms[0] if times_ms else 0
    if passed_ms <= 0 or not records:
        raise ConfigError(
            f"The metrics log of query {query} shows no rate: it needs two micro-batches, and in "
            "the later one records and newer timestamps. Let the query run on, or give "
            "--ids-per-day."
        )
    last = later[-1]
    # A log does not tell the default from the same number given.
    filter_bytes = last.max_filter_state_bytes
    return replace(
        base,
        origin=f"the metrics log of query {query}, {len(batches)} micro-batches",
        ids_per_day=new / passed_ms * DAY_MS,
        duplicates=1 - new / records,
        horizon_ms=last.horizon_ms,
        lateness_ms=last.lateness_ms,
        # Use event time, like the rate, because a query that catches up is faster than the clock.
        batch_ms=max(1, round(passed_ms / len(later))),
        batch_known=True,
        shards=last.shards,
        key_bytes=_key_bytes(base, last.segment_bytes, last.live_ids - last.tail_ids),
        today=Sizing(
            bucket_length=_length(last.bucket_ms, last.horizon_ms),
            fpr=last.target_fpr,
            state_budget_bytes=last.state_budget_bytes,
            filter_state_bytes=None if filter_bytes == FILTER_STATE_BYTES else filter_bytes,
        ),
        fullest=last.fullest_shard_ids * last.shards / last.live_ids if last.live_ids else None,
        running=True,
        seen_fpr=_filter_errors(batches),
        seen_live=None if _is_young(batches) or last.horizon_cut_ms else last.live_ids,
    )


def _filter_errors(batches: Sequence[tuple[int, BatchMetrics]]) -> tuple[int, int] | None:
    """Return the number of false positives, and of lookups of new IDs, or None without lookups.

    Micro-batches under the guarantee at-most-once do not count.
    """
    confirmed = [batch for _, batch in batches if not batch.filter_unconfirmed]
    wrong = sum(batch.filter_false_positive for batch in confirmed)
    new = wrong + sum(batch.filter_negative for batch in confirmed)
    return (wrong, new) if new else None


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
    """Return `base` with the figures that the states of all shards show."""
    live = {shard: state.manifest.ids + len(state.tail) for shard, state in states.items()}
    live_ids = sum(live.values())
    # All shards have the same clocks, except for a shard that lacks the last micro-batch.
    clocks = max((s.clocks for s in states.values()), key=lambda c: c.newest_ms, default=Clocks())
    late_ms, gc_ms = clocks.late_watermark_ms, clocks.gc_watermark_ms
    if not live_ids or gc_ms == NEVER_MS:
        raise ConfigError(
            f"The checkpoint of query {query} holds no IDs yet. Give --ids-per-day and --horizon."
        )
    bucket_ms = max(state.bucket_ms for state in states.values())
    segments = [s for state in states.values() for s in state.manifest.segments()]
    # Only a query that drops late records expires IDs at the late watermark.
    drops = base.stable_timestamps and late_ms <= max(
        state.forgotten_before_ms for state in states.values()
    )
    horizon_ms = max(1, late_ms - gc_ms)
    return replace(
        base,
        origin=f"the catalog of query {query}, {live_ids:,} live IDs",
        ids_per_day=_ids_per_day(states, clocks, live_ids),
        horizon_ms=horizon_ms,
        lateness_ms=max(0, clocks.low_watermark_ms - late_ms),
        late="drop" if drops else base.late,
        shards=len(states),
        key_bytes=_key_bytes(
            base, sum(s.sst_bytes for s in segments), sum(s.count for s in segments)
        ),
        today=replace(base.today, bucket_length=_length(min(bucket_ms, horizon_ms), horizon_ms)),
        shard_ids=tuple(count for _, count in sorted(live.items())),
        running=True,
        seen_segments=len(segments),
    )


def _length(bucket_ms: int, horizon_ms: int) -> str | None:
    """Return the option `bucket_length` that makes buckets of a length."""
    return None if bucket_ms in (0, -(-horizon_ms // BUCKETS)) else format_ms(bucket_ms)


def _ids_per_day(states: Mapping[int, ShardState], clocks: Clocks, live_ids: int) -> float:
    """Return the number of new IDs per day in buckets that neither grow nor have expired partly."""
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
