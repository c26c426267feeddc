"""`dedup_by_id` and `dedup_by_sequence`: the operators as users see them."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Literal

from dedup.catalog.location import FileSystemFactory
from dedup.core.admission import Conflicts
from dedup.core.policy import Guarantee
from dedup.core.sequence import RANGES, SequenceHandling
from dedup.spark.driver.build import Operator
from dedup.spark.driver.columns import ColumnOrName, ColumnsOption, DerivedId
from dedup.spark.idtime import IdTime
from dedup.spark.options import Duration, Options, SequenceOptions


def dedup_by_id(
    id: ColumnOrName | DerivedId | Sequence[ColumnOrName | DerivedId],  # noqa: A002
    *,
    horizon: Duration,
    catalog: str | os.PathLike[str] | FileSystemFactory | None = None,
    timestamp: ColumnOrName | IdTime | None = None,
    source_partition: ColumnOrName | Sequence[ColumnOrName] = (),
    lateness: Duration | None = None,
    late: Literal["emit", "drop"] = "emit",
    stable_timestamps: bool = False,
    max_future: Duration = "10 minutes",
    null_ids: Literal["emit", "drop", "error"] = "emit",
    null_timestamps: Literal["error", "now", "emit", "drop"] = "error",
    verdict: str | None = None,
    idle_timeout: Duration | None = "10 minutes",
    order_by: ColumnOrName | Sequence[ColumnOrName] = (),
    guarantee: Guarantee = "exactly-once",
    check_payload: bool | ColumnOrName | Sequence[ColumnOrName] = False,
    conflicts: Conflicts = "drop",
    shards: int | None = None,
    buckets: int = 8,
    bucket_length: Duration | None = None,
    fpr: float = 0.01,
    state_budget_bytes: int = 1 << 20,
    keep_expired: Duration = "24 hours",
    accept_clock_jump: bool = False,
    shared_local: bool = False,
    cache_dir: str | None = None,
    cache_bytes: int | None = None,
    max_shard_batch_bytes: int = 1 << 30,
    metrics: str = "dedup",
    accept_changed_id: str | None = None,
    accept_changed_timestamp: str | None = None,
) -> Operator[Options]:
    """Return a transformation that lets each record ID pass once per horizon.

    Use it as ``events.transform(dedup_by_id("event_id", ...))``, on a stream or a batch
    DataFrame. The result has the same columns, types and rows, without duplicates.

    Parameters
    ----------
    id : str, Column, `dedup.record_id`, or several
        The record ID: string, binary, integer, decimal, boolean, date, timestamp, day-time
        interval or time. Several columns make a composite ID, in which a null is a value. If
        records have no ID, `dedup.sources.record_id` makes one.
    horizon : str or timedelta
        Two records with the same ID at most this far apart in time are duplicates (inclusive).
        A duplicate does not prolong an ID's life.
    catalog : str, path, or callable, optional
        Where segments live: a path, a URI that `pyarrow.fs` knows, or a picklable function that
        returns ``(pyarrow.fs.FileSystem, path)``. Streams need it; batches ignore it.
    timestamp : str, Column or `time_from_id`, optional
        A record's time in whole milliseconds, floored; zone-less timestamps are read as UTC.
        Default: processing time.
    source_partition : str, Column, or several
        What identifies a clock, for example Kafka's topic and partition. Default: one clock for
        all records, under which records of a slow source are late. A window after the operator
        still has one watermark: give it a delay as long as a source may lag. A timestamp among
        these columns names its clock in the session's time zone: keep the zone between restarts.
    lateness : str or timedelta, optional
        How far behind the low watermark a record is still on time. Default: the horizon, at most
        1 hour; with `stable_timestamps` the horizon.
    late : {"emit", "drop"}
        ``"emit"``: a late record is compared with all live memory under the late watermark's
        time, and passes if its ID is unknown. ``"drop"``: it is always dropped, and counts as a
        duplicate if its ID is known.
    stable_timestamps : bool
        Every copy of a record carries the same timestamp. Then the operator probes only the
        record's own bucket, and the cost does not depend on the horizon.
    max_future : str or timedelta
        Timestamps further ahead of the micro-batch's time count as that time.
    null_ids : {"emit", "drop", "error"}
        What becomes of records without an ID: they pass without de-duplication, are dropped, or
        stop the query. Under ``"emit"`` and ``"drop"`` they need no timestamp either. A broken
        line of JSON is null in every column, so only this option applies to it.
    null_timestamps : {"error", "now", "emit", "drop"}
        What becomes of records with an ID but no timestamp. ``"error"``: they stop the query, at
        every restart, until you fix them or change the option. ``"now"``: they get the
        micro-batch's time. ``"emit"``: they pass without de-duplication. ``"drop"``: they are
        dropped. Under ``"emit"`` and ``"drop"`` they are not remembered and move no clock.
    verdict : str, optional
        Name of a string column to add. Every row then passes, marked ``unique``, ``duplicate``,
        ``late``, ``null_id``, ``untimed`` (no timestamp, under ``null_timestamps="emit"`` or
        ``"drop"``) or ``conflict`` (under `check_payload`).
    idle_timeout : str or timedelta, optional
        Query time after which a silent source partition no longer holds back the watermark; None:
        never.
    order_by : str, Column, or several
        Which of several copies in one micro-batch with equal timestamps comes first.
    guarantee : {"exactly-once", "at-most-once", "at-least-once"}
        ``"exactly-once"``: see Notes. ``"at-most-once"``: the filters alone decide, without the
        catalog: no duplicate passes, but a new record is lost with a probability of up to `fpr`,
        and the horizon ends at the end of a bucket. ``"at-least-once"``: every record passes and
        none is remembered; clocks, metrics and the other options still apply. You may change it
        at every restart (``dedup/spark/README.md`` has the rule).
    check_payload : bool, str, Column, or several
        Compare the copies of a record by these columns, or (True) by all columns except ID,
        timestamp and source partition; a column from which an expression makes one of these is
        compared. A duplicate that differs from the record that passed has the verdict
        ``conflict``. Each ID takes 8 more bytes.
    conflicts : {"drop", "emit"}
        What becomes of conflicts.
    shards : int, optional
        Default: ``spark.sql.shuffle.partitions``; needed if that is not a number. Fixed at the
        query's first start.
    buckets : int
        Buckets per horizon, 1 to 1000.
    bucket_length : str or timedelta, optional
        Use it instead of `buckets`; at most the horizon.
    fpr : float
        False-positive rate of all filters that a lookup probes together, from 1e-6 to below 1. A
        false positive costs a catalog read; under ``guarantee="at-most-once"`` it costs a record.
    state_budget_bytes : int
        Bound of a shard's Spark state, >= 16 KiB.
    keep_expired : str or timedelta
        Expired segments stay at least this long, and until Spark can no longer roll back to them.
        To restore an older checkpoint, you need a copy of the catalog.
    accept_clock_jump : bool
        Processing time: accept that the clock jumped by more than a minute.
    shared_local : bool
        A local `catalog` path is the same mount on all machines of the cluster. Each machine
        checks that it sees the driver's mark there.
    cache_dir : str, optional
        Local directory for copies that can be rebuilt. Default: Spark's local directory.
    cache_bytes : int, optional
        Bound of the local copies on a machine. Default: 16 GiB, or a quarter of the disk's free
        space if that is less.
    max_shard_batch_bytes : int
        Largest share of a micro-batch that one shard may hold in memory.
    metrics : str
        Name under which `DataFrame.observe` reports. It must be unique in a query, and so must
        the name with ``_pack`` appended, which reports the time of the first pass.
    accept_changed_id, accept_changed_timestamp : str, optional
        The operator rejects a query that restarts with another ID or timestamp. If every record
        keeps its ID and timestamp (you renamed a column, or wrote an expression in another way),
        set the word that the error names; it accepts only this change.

    Returns
    -------
    Operator
        A callable from DataFrame to DataFrame.

    Raises
    ------
    ConfigError
        If an option, a column, the session or the query cannot work: here, or when you apply the
        transformation. The tasks stop the query if the catalog belongs to another ID, timestamp
        source or number of shards, or a micro-batch is too large for `max_shard_batch_bytes`.
    CatalogError
        If the driver cannot write the catalog.

    Notes
    -----
    Guarantee, over effective timestamps and per committed micro-batch: no two records that pass
    share an ID within the horizon of each other. For every record dropped as a duplicate,
    a record with the same ID bytes within the horizon passed before. Both hold across task
    retries, executor loss, restarts from the checkpoint and rollback.

    The design follows Google Dataflow's exactly-once shuffle: Akidau, Chernyak, Lax,
    *Streaming Systems*, chapter 5.
    """
    return Operator(Options(**locals()))


def dedup_by_sequence(
    producer: ColumnsOption,
    sequence: ColumnOrName,
    *,
    expire_after: Duration,
    epoch: ColumnOrName | None = None,
    partition: ColumnsOption = (),
    timestamp: ColumnOrName | None = None,
    source_partition: ColumnsOption = (),
    gaps: SequenceHandling = "emit",
    unknown: SequenceHandling = "emit",
    fenced: SequenceHandling = "drop",
    unnumbered: SequenceHandling = "emit",
    null_timestamps: Literal["error", "now", "emit", "drop"] = "error",
    verdict: str | None = None,
    idle_timeout: Duration | None = "10 minutes",
    max_future: Duration = "10 minutes",
    ranges: int = RANGES,
    max_producers: int = 100_000,
    accept_clock_jump: bool = False,
    max_shard_batch_bytes: int = 1 << 30,
    metrics: str = "dedup_sequence",
) -> Operator[SequenceOptions]:
    """Return a transformation that lets each numbered record of a producer pass once.

    Use it as ``events.transform(dedup_by_sequence("device", "n", expire_after="7 days"))``, on a
    stream or a batch DataFrame. The result has the same columns, types and rows, without
    duplicates. It needs no catalog: Spark state holds about 60 bytes per producer, however many
    records it has sent, and 16 for each gap in its numbers, up to `ranges`.

    Parameters
    ----------
    producer : str, Column, or several
        Who numbers the records; the types are as for an ID of `dedup_by_id`.
    sequence : str or Column
        An integer: 0 for a producer's first record, one more for each record after it. After
        2^31 - 1 it may start again at 0 or count on: only its remainder by 2^31 counts.
    expire_after : str or timedelta
        The operator forgets a producer that is silent for longer. Without `timestamp` this is time
        in which the query runs: downtime does not count.
    epoch : str or Column, optional
        An integer >= 0 that a producer raises when it starts again at sequence 0. Records of
        earlier epochs are then fenced. Default: there is one epoch.
    partition : str, Column, or several
        What a producer numbers its records within (Kafka: topic and partition). Default: it numbers
        all of them together.
    timestamp : str or Column, optional
        A record's time, used only for `expire_after`. Default: processing time. Then a query that
        runs in single micro-batches (`availableNow`) never forgets a producer.
    source_partition, idle_timeout, max_future, null_timestamps, accept_clock_jump
        As in `dedup_by_id`; the first four need `timestamp`.
    gaps : {"emit", "drop", "error"}
        What becomes of new records that are out of order: earlier ones are missing, or they were
        missing themselves. ``"emit"``: they pass. ``"drop"``: they are dropped and not remembered,
        so the producer must send them again, in order, as to a broker; a record that is lost
        forever then blocks the rest of its epoch. ``"error"``: they stop the query.
    unknown : {"emit", "drop", "error"}
        What becomes of records that may be new or not: the first record of an unknown producer if
        it is not number 0, and records older than the memory. ``"emit"`` loses nothing. ``"drop"``
        accepts such a producer from its next record 0 on.
    fenced : {"drop", "emit", "error"}
        What becomes of records of an epoch that a newer one has ended, including those that were
        held back and arrive late. They do not keep their producer alive.
    unnumbered : {"emit", "drop", "error"}
        What becomes of records without a producer, epoch or sequence: null, or below 0. They need
        no timestamp.
    verdict : str, optional
        Name of a string column to add. Every row then passes, marked ``accept``, ``duplicate``,
        ``gap``, ``fenced``, ``unknown``, ``unnumbered`` or ``untimed``.
    ranges : int
        Unbroken ranges of numbers, the newest, to remember per producer: 1 to 255, 16 bytes each. A
        producer needs more than one only while some of its numbers are missing. Numbers below them
        are ``unknown``.
    max_producers : int
        Largest number of producers (per partition) that a stream's shard may remember. One more
        stops the query.
    max_shard_batch_bytes : int
        Largest share of a micro-batch that one shard may hold in memory.
    metrics : str
        Name under which `DataFrame.observe` reports. It must be unique in a query, and so must
        the name with ``_pack`` appended.

    Returns
    -------
    Operator
        A callable from DataFrame to DataFrame.

    Raises
    ------
    ConfigError
        If an option, a column, the session or the query cannot work: here, or when you apply the
        transformation. The tasks stop the query if it started with other columns, or if there are
        more producers than `max_producers`.

    Notes
    -----
    Guarantee, per committed micro-batch, across task retries, executor loss, restarts from the
    checkpoint and rollback: of records with the same producer, partition, epoch and sequence at
    most one passes, except those whose verdict is ``unknown``, and ``fenced``, ``unnumbered`` or
    ``untimed`` if you let them pass. For every record dropped as a duplicate, one passed before.
    With the defaults every other record passes, except those of a fenced epoch.

    The operator remembers the newest `ranges` unbroken ranges of sequences per producer and
    partition, within 2^30 of the newest. With nothing missing that is one range, and it covers all.
    With more gaps at a time the oldest range is dropped, and late records below it are
    ``unknown``. The rule follows Kafka's idempotent producer (KIP-98, KIP-360), which remembers
    five batches.
    """
    return Operator(SequenceOptions(**locals()))
