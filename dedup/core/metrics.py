"""What a micro-batch did, as numbers: their names, and `BatchMetrics`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import MISSING, asdict, dataclass, fields
from types import UnionType
from typing import Any, get_args, get_origin, get_type_hints

from dedup.core.arrival import Verdict
from dedup.core.forecast import BANDS
from dedup.errors import StateError

#: Every record gets one of them.
VERDICTS = tuple(verdict.name.lower() for verdict in Verdict)
#: What became of the records, and of their distinct IDs.
RECORDS = (
    "records_in",
    *VERDICTS,
    "emitted",
    "future",
    "null_timestamp",
    "returned_from_idle",
    "filter_negative",
    "filter_true_positive",
    "filter_false_positive",
)
#: What was done in the micro-batch, summed over shards: 0 in one without input.
COUNTED = (
    *RECORDS,
    "segments_written",
    "ids_written",
    "segments_merged",
    "segments_expired",
    "segments_deleted",
    "views_built",
    "bytes_fetched",
    "bytes_written",
    "filters_rebuilt",
    "catalog_reads",
    "orphans_deleted",
    "other_queries",
)
#: What there was after it, summed over shards: unknown where no shard was asked.
HELD = (
    "live_ids",
    "tail_ids",
    "segments",
    "state_bytes",
    "filter_state_bytes",
    "sidecar_bytes",
    "segment_bytes",
    "segments_pending",
    "segments_lost",
    "orphan_files",
    "foreign_files",
)
SUMS = (*COUNTED, *HELD)
#: Stages of the group function, in microseconds, summed over shards.
GROUP_STAGES = ("read", "hash", "tail", "probe", "lookup", "judge", "upkeep", "write")
#: Of the micro-batch: pack, summed over map tasks, before them.
STAGES = ("pack", *GROUP_STAGES)
STAGE_COLUMNS = tuple(f"{stage}_us" for stage in GROUP_STAGES)
#: The greatest over shards.
MAXIMA = ("buckets", "branches", "newest_ms", "now_ms", "low_watermark_ms", "late_watermark_ms")
#: What leaves while the GC watermark advances by each eighth of the horizon, summed over shards.
EXPIRING = tuple(f"expiring_{what}_{band}" for what in ("ids", "bytes") for band in range(BANDS))
#: Options, the same in every shard.
SETTINGS = ("horizon_ms", "lateness_ms", "bucket_ms", "state_budget_bytes", "fpr_ppb")
COLUMNS = (
    *SUMS, *STAGE_COLUMNS, *MAXIMA, "gc_watermark_ms", *EXPIRING, *SETTINGS, "base_epoch",
)  # fmt: skip
#: Of each shard, as text.
TEXTS = ("gc_source", "slowest_sources")


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchMetrics:
    """One micro-batch, summed over shards.

    ``records_in == unique + duplicate + late + null_id + untimed`` holds in every micro-batch, and
    ``filter_negative + filter_true_positive + filter_false_positive`` is the number of distinct
    IDs that the exact tail did not settle. Bytes and IDs are after the micro-batch. Timestamps
    are milliseconds since the epoch, None before the first.

    ``untimed`` counts records that have an ID and no timestamp, under ``null_timestamps="drop"`` or
    ``"emit"``. ``null_timestamp`` counts all records without a timestamp, whatever became of them:
    those, records that have neither ID nor timestamp (their verdict is ``null_id``), and under
    ``"now"`` those that took the micro-batch's time and were judged like any other. Where the time
    comes from the ID, a record without an ID has no time to miss, and is not among them.

    ``returned_from_idle`` counts late records of source partitions that were idle, or that the
    query does not know (idle ones are forgotten once the GC watermark has passed them).

    Parameters
    ----------
    stage_us : dict of stage name to microseconds
        Time in the group function, summed over shards; ``pack`` is that of the first pass,
        summed over map tasks (attempts that were repeated count again).
    branches
        Other runs that went on from a state of this query's history: a copied or older checkpoint
        was started on the same catalog. Nothing is deleted until ``dedup catalog vacuum`` is told
        which checkpoint is in use.
    gc_shard, gc_source
        The shard with the lowest GC watermark, and the source partition that holds it there.
    slowest_sources : tuple of (str, int, bool)
        At most ten source partitions with the lowest clocks: name, time in milliseconds, and
        whether it is idle, so that nobody waits for it; those come last.
    fullest_shard, fullest_shard_ids
        The shard with the most live IDs, and how many these are.
    expiring : tuple of (int, int)
        IDs and bytes at the catalog root that leave while the GC watermark advances by the first,
        second, ... eighth of the horizon; the last entry takes what is further ahead.
    begins
        Whether this is the first micro-batch of the checkpoint.
    epochs_apart
        How many micro-batches the oldest of the shards' states, as this micro-batch found them, is
        behind the newest. Above 0 state files of Spark are not those that it wrote: IDs of that
        shard are forgotten.
    horizon_ms, lateness_ms, bucket_ms, state_budget_bytes, target_fpr
        Options in force; the budget is that of one shard.
    other_queries
        In the first micro-batch of a new checkpoint: how many other queries with the same ID
        columns have their IDs at the catalog root. Afterwards, and in an adopted one, 0.
    """

    query_id: str
    run_id: str
    query_name: str | None
    batch_id: int
    batch_ms: int
    shards: int
    records_in: int
    unique: int
    duplicate: int
    late: int
    null_id: int
    emitted: int
    future: int
    null_timestamp: int
    returned_from_idle: int
    filter_negative: int
    filter_true_positive: int
    filter_false_positive: int
    live_ids: int
    tail_ids: int
    buckets: int
    segments: int
    state_bytes: int
    filter_state_bytes: int
    sidecar_bytes: int
    segment_bytes: int
    segments_written: int
    ids_written: int
    segments_merged: int
    segments_expired: int
    segments_deleted: int
    segments_pending: int
    segments_lost: int
    views_built: int
    bytes_fetched: int
    bytes_written: int
    filters_rebuilt: int
    catalog_reads: int
    orphan_files: int
    orphans_deleted: int
    foreign_files: int
    branches: int
    now_ms: int | None
    newest_ms: int | None
    low_watermark_ms: int | None
    late_watermark_ms: int | None
    gc_watermark_ms: int | None
    gc_shard: int | None
    gc_source: str | None
    slowest_sources: tuple[tuple[str, int, bool], ...]
    fullest_shard: int
    fullest_shard_ids: int
    expiring: tuple[tuple[int, int], ...]
    begins: bool
    epochs_apart: int
    horizon_ms: int
    lateness_ms: int
    bucket_ms: int
    state_budget_bytes: int
    target_fpr: float
    stage_us: dict[str, int]
    untimed: int = 0
    other_queries: int = 0

    @property
    def gc_lag_newest_ms(self) -> int | None:
        """How far the GC watermark is behind the newest timestamp."""
        return difference_ms(self.newest_ms, self.gc_watermark_ms)

    @property
    def gc_lag_now_ms(self) -> int | None:
        """How far the GC watermark is behind the micro-batch's time."""
        return difference_ms(self.now_ms, self.gc_watermark_ms)

    @property
    def filter_fpr(self) -> float | None:
        """The false-positive rate that the filters really had, None if none was asked."""
        unknown = self.filter_negative + self.filter_false_positive
        return self.filter_false_positive / unknown if unknown else None

    def to_json(self) -> dict[str, Any]:
        """All fields as JSON can hold them; `from_json` reads it back."""
        return asdict(self)

    @staticmethod
    def from_json(value: object) -> BatchMetrics:
        """The metrics that `to_json` gave, also that of an older or a later release.

        Raises
        ------
        ValueError
            When it is no object, a field is missing, or holds what it cannot.
        """
        if not isinstance(value, Mapping):
            raise ValueError(f"{value!r:.80} is no micro-batch")
        missing = _NEEDED - value.keys()
        if missing:
            raise ValueError(f"it lacks {', '.join(sorted(missing))}")
        known: dict[str, Any] = {name: value[name] for name in _FIELDS & value.keys()}
        for name in known:
            if not _is(known[name], _TYPES[name]):
                raise ValueError(f"{name} cannot be {known[name]!r:.80}")
        if known["shards"] < 1:
            raise ValueError(f"shards cannot be {known['shards']}")
        if len(known["expiring"]) != BANDS:
            raise ValueError(f"expiring has {len(known['expiring'])} entries, not {BANDS}")
        for name in ("slowest_sources", "expiring"):
            known[name] = tuple(tuple(entry) for entry in known[name])
        return BatchMetrics(**known)


def check_together(batch: BatchMetrics) -> None:
    """Refuse to go on behind a micro-batch in which a shard's state was older than that of others.

    Every shard takes part in every micro-batch, so Spark's own files tell of different ones: one
    was put back, or another partition's is in its place. They do not say whose they are, so this
    shows when it has happened.

    Raises
    ------
    StateError
        Naming the micro-batch.
    """
    if batch.epochs_apart:
        raise StateError(
            f"In micro-batch {batch.batch_id} the state of a shard was {batch.epochs_apart} "
            "micro-batches older than that of others: Spark's state files in the checkpoint are "
            "not those that it wrote last. IDs of that shard are forgotten, and duplicates of them "
            "may have passed. Restore the state, and take back that micro-batch.",
            remedy="damaged-state",
        )


_FIELDS = frozenset(field.name for field in fields(BatchMetrics))
#: Without those that an earlier release did not write.
_NEEDED = frozenset(field.name for field in fields(BatchMetrics) if field.default is MISSING)
_TYPES = get_type_hints(BatchMetrics)


def _is(value: Any, kind: Any) -> bool:
    """Whether a value, read from JSON, is of a field's type."""
    if kind is int or kind is float:
        # Neither true nor infinite, and no number of thousands of digits.
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
    """The time between two moments, None where one of them is unknown."""
    return None if later is None or earlier is None else later - earlier
