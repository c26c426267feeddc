"""The known facts of a query: options, Spark settings, sources, figures."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Literal

from dedup.core.duration import duration_ms
from dedup.core.policy import Guarantee
from dedup.spark.machine import shuffle_partitions
from dedup.spark.stream_source import Source

#: `max_shard_batch_bytes` where nobody gave it.
SHARE_BYTES = 1 << 30
#: Kafka's -1: nothing is ever deleted.
FOREVER_MS = 1 << 62

#: How to give settings and options, for findings that lack them.
HOW_SETTINGS = "Give --properties spark-defaults.conf, or --conf KEY=VALUE."
HOW_OPTIONS = "Give --log, the folder of DedupListener(log=...), or --horizon."
HOW_CORES = (
    "Give --conf spark.master=local[N], or --conf spark.executor.instances=N and "
    "--conf spark.executor.cores=N."
)

_MASTER = re.compile(r"local(?:\[(\d+|\*)(?:,\s*\d+)?\])?")


@dataclass(frozen=True, slots=True, kw_only=True)
class ProducerFacts:
    """What is known of the producers of a query of `dedup_by_sequence`; None: not known.

    Parameters
    ----------
    expire_after_ms, max_producers : int
        Options.
    fullest : int or None
        Producers in the shard that has the most.
    runs, batches : int or None
        Recent micro-batches, and how many runs did them.
    """

    expire_after_ms: int
    max_producers: int
    fullest: int | None = None
    runs: int | None = None
    batches: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """What is known of a query; None where it is not known.

    Parameters
    ----------
    settings : mapping of str to str
        Spark settings of the next start.
    complete : bool
        Whether these are all, so that any other one has Spark's default.
    pinned : mapping of str to str, or None
        Settings that the checkpoint keeps for ever; None before the first start.
    state_partitions : int or None
        Partitions of the state, as the checkpoint has them.
    checkpoint_format : int or None
        Version of the checkpoint's commit log: 1, or 2 where state files have unique names.
    spark_version : str or None
        Such as ``"4.1.0"``.
    cores : int or None
        Tasks that run at a time, on all machines.
    machine_bytes : int or None
        Memory of the machine, where a local master runs all of Spark on it.
    shards : int or None
        Of the certificate, else as the option asks for.
    max_shard_batch_bytes : int or None
        The option.
    sources : tuple of Source, or None
    kafka_retention_ms : int or None
        How long Kafka keeps records, `FOREVER_MS` where it never deletes.
    horizon_ms, lateness_ms : int or None
        Options, resolved.
    late : {"emit", "drop"} or None
    guarantee : {"exactly-once", "at-most-once", "at-least-once"} or None
    event_time : bool or None
        False: processing time.
    by_source : bool or None
        Whether `source_partition` gives every partition a clock of its own.
    shared_local : bool or None
        The option.
    catalog_local : str or None
        The catalog's path where it is a local one.
    does_not_last : str or None
        Why the expression of an option gives another value at a replay.
    concerns : tuple of (str, str), or None
        What is wrong by the log's last micro-batches: ``LATE`` and the like, and why.
    batch_records_max : int or None
        Records of the largest recent micro-batch.
    batch_took_max_ms : int or None
        How long the longest recent micro-batch took.
    kafka_sinks : tuple of str
        Names of the query's sinks that publish in transactions of Kafka, as far as is known.
    sink_options : mapping of str to str
        What is known of the options of these sinks, names in lower case.
    producers : ProducerFacts or None
        Of a query of `dedup_by_sequence`; None: it is one of `dedup_by_id`.
    """

    settings: Mapping[str, str] = field(default_factory=dict)
    complete: bool = False
    pinned: Mapping[str, str] | None = None
    state_partitions: int | None = None
    checkpoint_format: int | None = None
    spark_version: str | None = None
    cores: int | None = None
    machine_bytes: int | None = None
    shards: int | None = None
    max_shard_batch_bytes: int | None = None
    sources: tuple[Source, ...] | None = None
    kafka_retention_ms: int | None = None
    horizon_ms: int | None = None
    lateness_ms: int | None = None
    late: Literal["emit", "drop"] | None = None
    guarantee: Guarantee | None = None
    event_time: bool | None = None
    by_source: bool | None = None
    shared_local: bool | None = None
    catalog_local: str | None = None
    does_not_last: str | None = None
    concerns: tuple[tuple[str, str], ...] | None = None
    batch_records_max: int | None = None
    batch_took_max_ms: int | None = None
    kafka_sinks: tuple[str, ...] = ()
    sink_options: Mapping[str, str] = field(default_factory=dict)
    producers: ProducerFacts | None = None

    def setting(self, name: str, default: str) -> str | None:
        """Return a setting as the next start will have it: the checkpoint's where it keeps one."""
        if self.pinned is not None and name in self.pinned:
            return self.pinned[name]
        return self.settings.get(name, default if self.complete else None)

    def sink_option(self, name: str) -> str | None:
        """Return the text of a sink's option, None where it is not known to be given."""
        return self.sink_options.get(name.lower())

    def enabled(self, name: str, default: str = "true") -> bool | None:
        """Return whether a setting will be true at the next start, None where that is not known."""
        value = self.setting(name, default)
        return None if value is None else value.strip().lower() == "true"

    @property
    def share_bytes(self) -> int:
        """The largest share of a micro-batch that a shard takes."""
        return self.max_shard_batch_bytes or SHARE_BYTES

    @property
    def partitions(self) -> int | None:
        """Partitions of the state: the checkpoint's, else as many as the first start will make."""
        if self.state_partitions is not None:
            return self.state_partitions
        return shuffle_partitions(self.setting("spark.sql.shuffle.partitions", "200"))

    @property
    def started(self) -> bool:
        """Whether there is a checkpoint."""
        return self.pinned is not None

    @property
    def local(self) -> bool | None:
        """Whether Spark runs on one machine, as one process."""
        master = self.settings.get("spark.master")
        return None if master is None else _MASTER.fullmatch(master) is not None

    def of_kind(self, kind: str) -> tuple[Source, ...]:
        """Return the sources of one kind that are known."""
        return tuple(source for source in self.sources or () if source.kind == kind)


def retention(value: str | timedelta, *, option: str) -> int:
    """Return the milliseconds of a Kafka retention; ``-1`` and ``forever`` are `FOREVER_MS`."""
    if isinstance(value, str) and value.strip() in ("-1", "forever"):
        return FOREVER_MS
    return duration_ms(value, option=option)


def whole_number(text: str | None) -> int | None:
    """Return a setting's text as a whole number, or None if it is none."""
    return int(text) if text is not None and re.fullmatch(r"\s*\d{1,18}\s*", text) else None


def cores_of(settings: Mapping[str, str], machine_cores: int | None) -> int | None:
    """Return how many tasks run at a time under these settings, or None if it is not known.

    Parameters
    ----------
    settings : mapping of str to str
    machine_cores : int or None
        Cores of the machine, for ``local[*]``.
    """
    found = _MASTER.fullmatch(settings.get("spark.master", ""))
    if found is not None:
        return machine_cores if found[1] == "*" else int(found[1] or 1)
    per_task = whole_number(settings.get("spark.task.cpus")) or 1
    total = whole_number(settings.get("spark.cores.max"))
    if total is None:
        dynamic = settings.get("spark.dynamicAllocation.enabled", "").lower() == "true"
        name = "dynamicAllocation.maxExecutors" if dynamic else "executor.instances"
        executors = whole_number(settings.get(f"spark.{name}"))
        each = whole_number(settings.get("spark.executor.cores"))
        total = None if executors is None or each is None else executors * each
    return None if total is None else max(1, total // per_task)
