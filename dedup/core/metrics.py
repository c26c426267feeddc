"""Metrics of a micro-batch of `dedup_by_id`: `BatchMetrics`, and the names of all metrics."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import MISSING, asdict, dataclass, fields
from functools import cache
from types import UnionType
from typing import Annotated, Any, Self, TypeAlias, get_args, get_origin, get_type_hints

from dedup.core.arrival import Verdict
from dedup.core.forecast import BANDS
from dedup.core.policy import Guarantee
from dedup.errors import StateError

#: Names of the verdicts. Every record gets one.
VERDICTS = tuple(verdict.name.lower() for verdict in Verdict)
#: Stages of the group function, which judges the records of a shard. The metrics give the time of
#: each stage, summed over shards.
GROUP_STAGES = ("read", "hash", "tail", "probe", "lookup", "judge", "upkeep", "write")
#: Stages of the micro-batch. The time of the first stage, pack, is summed over map tasks.
STAGES = ("pack", *GROUP_STAGES)

# A field's type states how `dedup.spark.observations` aggregates the field over shards.
#: Number of records or distinct IDs with one outcome. Summed, and 0 in a micro-batch without input.
RecordCount: TypeAlias = Annotated[int, "records"]
#: Amount of work done in the micro-batch. Summed, and 0 in a micro-batch without input.
Count: TypeAlias = Annotated[int, "count"]
#: Amount that exists at the end of the micro-batch. Summed, and unknown if no shard ran.
Level: TypeAlias = Annotated[int, "level"]
#: Number of which the metrics show the maximum over shards.
Greatest: TypeAlias = Annotated[int, "greatest"]
#: Time of which the metrics show the latest over shards, or None before the first.
Latest: TypeAlias = Annotated[int | None, "latest"]
#: Value of an option, the same in every shard.
Setting: TypeAlias = Annotated[int, "setting"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Metrics:
    """Metrics that can be written as JSON."""

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    def _repr_html_(self) -> str:
        """Return a table of all fields, for a notebook."""
        # Import late: executors need no HTML.
        from dedup.values.html import fields_for_notebook

        return fields_for_notebook(self.to_json())

    @classmethod
    def from_json(cls, value: object) -> Self:
        """Return the metrics from the value that `to_json` of any release returned.

        Raises ValueError if ``value`` is not an object, a field is missing, or a type is wrong.
        """
        return cls(**fields_of(cls, value))


@dataclass(frozen=True, slots=True, kw_only=True)
class OperatorMetrics(Metrics):
    """Metrics of one micro-batch that both operators have."""

    query_id: str
    run_id: str
    query_name: str | None
    batch_id: int
    batch_ms: int
    shards: int
    records_in: RecordCount
    emitted: RecordCount
    future: RecordCount
    null_timestamp: RecordCount
    heartbeats: RecordCount = 0
    bytes_in: int = 0
    state_bytes: Level
    now_ms: Latest
    newest_ms: Latest
    low_watermark_ms: Latest
    begins: bool
    epochs_apart: int
    shard_count: Greatest = 0
    shards_without_kernel: Count = 0
    shards_without_files: Count = 0
    stage_us: dict[str, int]

    @property
    def row_bytes(self) -> float:
        """Mean size of a row in Arrow's form, or 0 without rows."""
        return self.bytes_in / max(1, self.records_in + self.heartbeats)

    def fallbacks(self) -> Iterator[str]:
        """Yield what the executors lack, so that the operator works in a slower way."""
        if count := self.shards_without_kernel:
            yield (
                f"numpy judged {count} of {self.shards} shards, because executors lack the C kernel"
            )
        if count := self.shards_without_files:
            yield (
                f"the rows of {count} of {self.shards} shards went through Spark, because the "
                "Python processes of a task have different disks, or a task was tried again"
            )

    def check_together(self) -> None:
        """Raise StateError if a shard was missing in this micro-batch, or its state was older.

        Every shard takes part in every micro-batch, so all states have the same age. If they do
        not, somebody restored one of Spark's state files, or replaced it by another partition's
        file. The files do not name their partition, so an earlier check cannot find the mistake.
        A shard is missing if the sink did not read its rows, which only Spark 3.5 and 4.0 commit.
        """
        if self.shards < self.shard_count:
            raise StateError(
                f"Only {self.shards} of {self.shard_count} shards took part in micro-batch "
                f"{self.batch_id}, because a function for foreachBatch read only a part of its "
                "rows (limit, take, first or isEmpty, for example). Spark committed the "
                "micro-batch, lost the other rows, and cannot run the next one. Let the function "
                "read all rows first (rows.persist() and rows.count()), and go back one "
                "micro-batch.",
                remedy="damaged-state",
            )
        if self.epochs_apart:
            raise StateError(
                f"In micro-batch {self.batch_id} the state of one shard was {self.epochs_apart} "
                "micro-batches older than the others. Spark's state files in the checkpoint are "
                "not those that it wrote last, so the shard has forgotten IDs, and duplicates of "
                "them may have passed. Restore the state, and undo that micro-batch.",
                remedy="damaged-state",
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchMetrics(OperatorMetrics):
    """Metrics of one micro-batch of `dedup_by_id`, summed over shards.

    ``records_in == unique + duplicate + late + null_id + untimed + conflict`` holds in every
    micro-batch. The filters were asked about
    ``filter_negative + filter_true_positive + filter_false_positive + filter_unconfirmed`` distinct
    IDs. Bytes and IDs are counted at the end of the micro-batch. Timestamps are milliseconds since
    1970, or None before the first timestamp.

    Parameters
    ----------
    untimed
        Records that have an ID and no timestamp, if the options drop or emit them.
    null_timestamp
        All records without a timestamp, whatever their verdict. If the timestamp is part of the ID,
        records without an ID are not counted.
    returned_from_idle
        Late records of source partitions that were idle or unknown. The query forgets an idle
        partition once the GC watermark has passed the partition's clock.
    heartbeats
        Rows that only advanced a clock, by the option `heartbeat`. They are not in `records_in`.
    bytes_in
        Bytes of all rows in Arrow's form, as the operator received them. Repeated attempts of a
        task count again.
    unchecked
        Records judged without a lookup under ``guarantee="at-least-once"``. They also count as
        ``unique`` or ``late``.
    filter_sidecar
        IDs in `filter_negative` about which a filter outside Spark state was asked. Filters in
        Spark state alone answered for the others.
    filter_unconfirmed
        IDs that counted as seen because a filter answered "maybe", without a look into the catalog,
        under ``guarantee="at-most-once"``. `expected_lost` estimates how many of these IDs were
        new.
    conflict
        Duplicates whose payload differs from the emitted record's payload, under ``check_payload``.
    payload_unknown
        Records counted in ``duplicate`` whose payload could not be compared, under
        ``check_payload``.
    stage_us
        Microseconds by stage of the group function, summed over shards. The stage ``pack`` is
        summed over map tasks, and repeated attempts of a task count again.
    branches
        Other runs that continued from a state of this query's history because a copied or older
        checkpoint was started on the same catalog. Nothing is deleted until
        ``dedup catalog vacuum`` learns which checkpoint is in use.
    gc_shard
        The shard with the lowest GC watermark.
    gc_source
        The source partition that holds back the watermark of that shard.
    slowest_sources
        At most ten source partitions with the lowest clocks, as name, time in milliseconds, and
        whether the partition is idle. Idle partitions, which hold no watermark back, come last.
    fullest_shard, fullest_shard_ids
        The shard with the most live IDs, and their number.
    expiring
        IDs and bytes at the catalog root that expire while the GC watermark advances by the first,
        second, ... eighth of the horizon. The last entry also counts everything that expires later.
    begins
        Whether this is the first micro-batch of the checkpoint.
    epochs_apart
        Number of micro-batches by which the oldest shard state was behind the newest shard state at
        the start of this micro-batch. Above 0, somebody replaced one of Spark's state files by an
        older file, and the shard with the oldest state has lost IDs.
    shards, shard_count
        Shards that took part in the micro-batch, and all shards (0 in the logs of release 0.1.0).
    shards_without_kernel, shards_without_files
        Shards that numpy judged, because the executor lacks the C kernel, and shards whose rows
        went through Spark on a cluster, because an earlier attempt of a task on that executor did
        not find them in a file. Both ways are slower.
    horizon_ms, lateness_ms, bucket_ms, state_budget_bytes, max_filter_state_bytes, target_fpr
        Options in force. The budget is for one shard.
    max_live_ids, horizon_cut_ms, ids_forgotten_early
        The option in force, or 0; by how much the horizon was shorter in this micro-batch because
        of it, in the shard with the shortest; and IDs that this micro-batch forgot early.
    other_queries
        Number of other queries with the same ID columns at the catalog root. Counted only in the
        first micro-batch of a new checkpoint, and otherwise 0.
    """

    unique: RecordCount
    duplicate: RecordCount
    late: RecordCount
    null_id: RecordCount
    untimed: RecordCount = 0
    returned_from_idle: RecordCount
    filter_negative: RecordCount
    filter_true_positive: RecordCount
    filter_false_positive: RecordCount
    live_ids: Level
    tail_ids: Level
    buckets: Greatest
    segments: Level
    filter_state_bytes: Level
    sidecar_bytes: Level
    segment_bytes: Level
    segments_written: Count
    ids_written: Count
    segments_merged: Count
    segments_expired: Count
    segments_deleted: Count
    segments_pending: Level
    segments_lost: Level
    views_built: Count
    bytes_fetched: Count
    bytes_written: Count
    filters_rebuilt: Count
    catalog_reads: Count
    orphan_files: Level
    orphans_deleted: Count
    foreign_files: Level
    branches: Greatest
    late_watermark_ms: Latest
    gc_watermark_ms: int | None
    gc_shard: int | None
    gc_source: str | None
    slowest_sources: tuple[tuple[str, int, bool], ...]
    fullest_shard: int
    fullest_shard_ids: int
    expiring: tuple[tuple[int, int], ...]
    horizon_ms: Setting
    lateness_ms: Setting
    bucket_ms: Setting
    state_budget_bytes: Setting
    target_fpr: float
    other_queries: Count = 0
    unchecked: RecordCount = 0
    conflict: RecordCount = 0
    payload_unknown: RecordCount = 0
    filter_unconfirmed: RecordCount = 0
    expected_lost_millionths: RecordCount = 0
    filter_sidecar: RecordCount = 0
    max_filter_state_bytes: Setting = 0
    max_live_ids: Setting = 0
    horizon_cut_ms: Greatest = 0
    ids_forgotten_early: Count = 0

    @property
    def gc_lag_newest_ms(self) -> int | None:
        """Milliseconds by which the GC watermark is behind the newest timestamp."""
        return difference_ms(self.newest_ms, self.gc_watermark_ms)

    @property
    def gc_lag_now_ms(self) -> int | None:
        """Milliseconds by which the GC watermark is behind the micro-batch's time."""
        return difference_ms(self.now_ms, self.gc_watermark_ms)

    @property
    def remembered_ms(self) -> int:
        """Usual distance of the GC watermark behind the low watermark, in milliseconds."""
        return self.horizon_ms + self.lateness_ms

    @property
    def horizon_kept_ms(self) -> int:
        """Milliseconds within which no duplicate passed in this micro-batch, in any shard."""
        return self.horizon_ms - self.horizon_cut_ms

    @property
    def stored_bytes(self) -> int:
        """Bytes of state rows, segments and sidecars together."""
        return self.state_bytes + self.segment_bytes + self.sidecar_bytes

    @property
    def filter_fpr(self) -> float | None:
        """The observed false-positive rate of the filters in this micro-batch: `filter_fpr`."""
        return filter_fpr([self])

    @property
    def guarantee(self) -> Guarantee | None:
        """The guarantee in force, or None if the counts of this micro-batch do not show it."""
        if self.unchecked:
            return "at-least-once"
        if self.filter_unconfirmed:
            return "at-most-once"
        # Duplicates prove nothing: the tail finds them under at-most-once as well.
        confirmed = self.filter_true_positive or self.filter_false_positive
        return "exactly-once" if confirmed else None

    @property
    def expected_lost(self) -> float:
        """Estimated number of new IDs that were dropped because a filter reported them as seen."""
        return self.expected_lost_millionths / 1e6

    @classmethod
    def from_json(cls, value: object) -> Self:
        read = fields_of(cls, value)
        if len(read["expiring"]) != BANDS:
            raise ValueError(f"expiring has {len(read['expiring'])} entries, not {BANDS}")
        for name in ("slowest_sources", "expiring"):
            read[name] = tuple(tuple(entry) for entry in read[name])
        return cls(**read)


def filter_fpr(batches: Iterable[BatchMetrics]) -> float | None:
    """Return the observed false-positive rate of the filters in some micro-batches.

    The rate is None if no new ID was looked up in a filter. It is also None under
    ``guarantee="at-most-once"``, because the catalog then does not confirm filter hits.
    """
    wrong = new = 0
    for batch in batches:
        if batch.filter_unconfirmed:
            return None
        wrong += batch.filter_false_positive
        new += batch.filter_negative + batch.filter_false_positive
    return wrong / new if new else None


def of_kind(metrics: type, kind: str) -> tuple[str, ...]:
    """Return the fields of a class of metrics that are annotated with a kind, e.g. ``"count"``."""
    hints = get_type_hints(metrics, include_extras=True)
    return tuple(name for name in hints if kind in getattr(hints[name], "__metadata__", ()))


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricNames:
    """Names of the metrics that the group function returns for its shard.

    The fields group the names by how Spark aggregates the metrics over shards.
    """

    stages: tuple[str, ...]
    counted: tuple[str, ...]
    held: tuple[str, ...]
    greatest: tuple[str, ...]
    settings: tuple[str, ...]
    times: tuple[str, ...]
    others: tuple[str, ...]

    @staticmethod
    def of(metrics: type, stages: tuple[str, ...], *others: str) -> MetricNames:
        return MetricNames(
            stages=stages,
            counted=(*of_kind(metrics, "records"), *of_kind(metrics, "count")),
            held=of_kind(metrics, "level"),
            greatest=of_kind(metrics, "greatest"),
            settings=of_kind(metrics, "setting"),
            times=of_kind(metrics, "latest"),
            others=others,
        )

    @property
    def stage_columns(self) -> tuple[str, ...]:
        return tuple(f"{stage}_us" for stage in self.stages)

    @property
    def known(self) -> tuple[str, ...]:
        """Names of the metrics that have a value if any shard ran."""
        return (*self.counted, *self.held, *self.greatest, *self.settings)

    @property
    def columns(self) -> tuple[str, ...]:
        return (*self.known, *self.times, *self.stage_columns, *self.others, "base_epoch")


RECORDS = of_kind(BatchMetrics, "records")
NAMES = MetricNames.of(BatchMetrics, GROUP_STAGES, "gc_watermark_ms", "fpr_ppb")
#: Text columns that the group function returns.
TEXTS = ("gc_source", "slowest_sources")


def fields_of(metrics: type, value: object) -> dict[str, Any]:
    """Return the fields of a class of metrics from JSON, and ignore fields that the class lacks.

    Raises ValueError if ``value`` is not an object, a field without a default is missing, or a
    field has the wrong type.
    """
    if not isinstance(value, Mapping):
        raise ValueError(f"{value!r:.80} is not a micro-batch")
    types = _types(metrics)
    needed = {field.name for field in fields(metrics) if field.default is MISSING}
    if missing := needed - value.keys():
        raise ValueError(f"it lacks {', '.join(sorted(missing))}")
    read = {name: value[name] for name in types.keys() & value.keys()}
    for name, entry in read.items():
        if not _is(entry, types[name]):
            raise ValueError(f"{name} cannot be {entry!r:.80}")
    if read.get("shards", 1) < 1:
        raise ValueError(f"shards cannot be {read['shards']}")
    return read


@cache
def _types(metrics: type) -> dict[str, Any]:
    return get_type_hints(metrics)


def _is(value: Any, kind: Any) -> bool:
    if kind is int or kind is float:
        # Excludes booleans, infinity, and integers of thousands of digits.
        return type(value) in {int, kind} and abs(value) < 2**63
    if type(kind) is type:
        return type(value) is kind
    origin, of = get_origin(kind), get_args(kind)
    if origin is UnionType:
        return any(_is(value, one) for one in of)
    if origin is tuple:
        if not isinstance(value, (list, tuple)):
            return False
        kinds = of[:1] * len(value) if of[-1] is Ellipsis else of
        return len(value) == len(kinds) and all(map(_is, value, kinds))
    return isinstance(value, dict) and all(
        _is(name, of[0]) and _is(entry, of[1]) for name, entry in value.items()
    )


def difference_ms(later: int | None, earlier: int | None) -> int | None:
    """Return the time between two moments, or None if either is unknown."""
    return None if later is None or earlier is None else later - earlier
