"""The known facts of a query: options, Spark settings, sources and metrics."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Literal

from dedup.core.policy import Guarantee
from dedup.spark.driver.checkpoint_log import Source
from dedup.spark.machine import local_cores, shuffle_partitions
from dedup.values.duration import duration_ms

#: Default of `max_shard_batch_bytes`.
SHARE_BYTES = 1 << 30
#: Value for Kafka's retention of -1, with which Kafka never deletes.
FOREVER_MS = 1 << 62

#: Texts that name the flags for missing facts.
HOW_SETTINGS = "Give --properties spark-defaults.conf, or --conf KEY=VALUE."
HOW_OPTIONS = "Give --log, the folder of DedupListener(log=...), or --horizon."
HOW_LOG = "Give --log, the folder of DedupListener(log=...)."
HOW_CORES = (
    "Give --conf spark.master=local[N], or --conf spark.executor.instances=N and "
    "--conf spark.executor.cores=N."
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """Facts about a query. A fact is None if it is unknown. Options have their resolved values."""

    #: Spark settings of the next start.
    settings: Mapping[str, str] = field(default_factory=dict)
    #: Whether every setting that is not in `settings` has Spark's default.
    complete: bool = False
    #: Settings that the checkpoint keeps permanently, or None before the first start.
    pinned: Mapping[str, str] | None = None
    #: Number of partitions of the state in the checkpoint.
    state_partitions: int | None = None
    spark_version: str | None = None
    #: Number of tasks that run at a time, on all machines.
    cores: int | None = None
    #: Memory of the machine, if the master is local.
    machine_bytes: int | None = None
    #: Number of shards, from the certificate, the file of ``dedup run``, the log or the option.
    shards: int | None = None
    max_shard_batch_bytes: int | None = None
    sources: tuple[Source, ...] | None = None
    #: Time that Kafka keeps records, or `FOREVER_MS`.
    kafka_retention_ms: int | None = None
    horizon_ms: int | None = None
    lateness_ms: int | None = None
    late: Literal["emit", "drop"] | None = None
    guarantee: Guarantee | None = None
    #: Whether the query uses event time, not processing time.
    event_time: bool | None = None
    #: Whether `source_partition` gives every partition its own clock.
    by_source: bool | None = None
    #: The option, or None if it is unknown or not set.
    window_delay_ms: int | None = None
    shared_local: bool | None = None
    #: The catalog's path if the catalog is local.
    catalog_local: str | None = None
    #: Why an option's expression would give another value in a replay, or None if it would not.
    unstable_id: str | None = None
    #: Problems in the last micro-batches of the log: a status such as ``LATE``, and the reason.
    concerns: tuple[tuple[str, str], ...] | None = None
    #: What the executors lacked in the log's last micro-batch.
    fallbacks: tuple[str, ...] | None = None
    #: Number of records of the largest recent micro-batch.
    batch_records_max: int | None = None
    #: Largest mean size of a row in a recent micro-batch, in Arrow's form. Unknown if it is 0.
    row_bytes: float = 0
    #: Names of the query's sinks, as far as known, that publish in Kafka transactions.
    kafka_sinks: tuple[str, ...] = ()
    #: Options of these sinks, as far as known. Names are in lower case.
    sink_options: Mapping[str, str] = field(default_factory=dict)
    #: What a crash of the sink's server can take of commits, and what to change.
    crash_risk: tuple[str, str] | None = None
    #: The option of `dedup_by_sequence`, or None for a query of `dedup_by_id`.
    expire_after_ms: int | None = None
    #: Number of the query's recent micro-batches, and number of runs with these micro-batches.
    batches: int | None = None
    runs: int | None = None

    def setting(self, name: str, default: str) -> str | None:
        """Return a setting of the next start. A value that the checkpoint keeps wins."""
        if self.pinned is not None and name in self.pinned:
            return self.pinned[name]
        return self.settings.get(name, default if self.complete else None)

    def enabled(self, name: str) -> bool | None:
        """Return whether a setting, by default true, is true at the next start, or None."""
        value = self.setting(name, "true")
        return None if value is None else value.strip().lower() == "true"

    @property
    def share_bytes(self) -> int:
        return self.max_shard_batch_bytes or SHARE_BYTES

    @property
    def partitions(self) -> int | None:
        """Number of partitions of the state. Before the first start, a setting decides it."""
        if self.state_partitions is not None:
            return self.state_partitions
        return shuffle_partitions(self.setting("spark.sql.shuffle.partitions", "200"))

    @property
    def started(self) -> bool:
        return self.pinned is not None

    @property
    def local(self) -> bool | None:
        """Whether Spark runs as one process."""
        master = self.settings.get("spark.master")
        return None if master is None else local_cores(master) is not None

    @property
    def kafka_sources(self) -> tuple[Source, ...]:
        return tuple(source for source in self.sources or () if source.kind == "kafka")


def retention(value: str | timedelta, *, option: str) -> int:
    """Return a Kafka retention in milliseconds, or `FOREVER_MS` for ``-1`` and ``forever``."""
    if isinstance(value, str) and value.strip() in ("-1", "forever"):
        return FOREVER_MS
    return duration_ms(value, option=option)


def whole_number(text: str | None) -> int | None:
    return int(text) if text is not None and re.fullmatch(r"\s*\d{1,18}\s*", text) else None


def cores_of(settings: Mapping[str, str]) -> int | None:
    local = local_cores(settings.get("spark.master", ""))
    if local is not None:
        return local
    per_task = whole_number(settings.get("spark.task.cpus")) or 1
    total = whole_number(settings.get("spark.cores.max"))
    if total is None:
        dynamic = settings.get("spark.dynamicAllocation.enabled", "").lower() == "true"
        name = "dynamicAllocation.maxExecutors" if dynamic else "executor.instances"
        executors = whole_number(settings.get(f"spark.{name}"))
        each = whole_number(settings.get("spark.executor.cores"))
        total = None if executors is None or each is None else executors * each
    return None if total is None else max(1, total // per_task)
