"""`dedup_by_id` and `dedup_by_sequence`: the operators as users see them."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Literal

from dedup.core.admission import Conflicts
from dedup.core.policy import Guarantee
from dedup.core.sequence import RANGES, SequenceHandling
from dedup.spark.driver.build import Operator
from dedup.spark.driver.columns import ColumnOrName, ColumnsOption, DerivedId
from dedup.spark.idtime import IdTime
from dedup.spark.options import Duration, Options, SequenceOptions
from dedup.storage.location import FileSystemFactory


def dedup_by_id(
    id: ColumnOrName | DerivedId | Sequence[ColumnOrName | DerivedId],  # noqa: A002
    *,
    horizon: Duration,
    catalog: str | os.PathLike[str] | FileSystemFactory | None = None,
    timestamp: ColumnOrName | IdTime | None = None,
    source_partition: ColumnOrName | Sequence[ColumnOrName] = (),
    heartbeat: ColumnOrName | None = None,
    lateness: Duration | None = None,
    late: Literal["emit", "drop"] = "emit",
    window_delay: Duration | None = None,
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
    bucket_length: Duration | None = None,
    fpr: float = 0.01,
    state_budget_bytes: int | str = "1 MiB",
    filter_state_bytes: int | str | None = None,
    max_live_ids: int | None = None,
    keep_expired: Duration = "24 hours",
    shared_local: bool = False,
    cache_dir: str | None = None,
    cache_bytes: int | str | None = None,
    max_shard_batch_bytes: int | str = "1 GiB",
    metrics: str = "dedup",
    accept: str | Sequence[str] = (),
) -> Operator[Options]:
    """Return a transformation that lets each record ID pass once per horizon.

    Use it as ``events.transform(dedup_by_id("event_id", ...))``, on a stream or a batch
    DataFrame. The result has the same columns, types and rows, without duplicates.

    Parameters
    ----------
    id : str, Column, `dedup.record_id`, or several
        The record ID: string, binary, integer, decimal, boolean, date, timestamp, day-time
        interval or time. Several columns make a composite ID, in which a null is a value. If
        records have no ID, `dedup.record_id` makes one.
    horizon : str or timedelta
        Two records with the same ID at most this far apart in time are duplicates (inclusive).
        A duplicate does not prolong an ID's life.
    catalog : str, path, or callable, optional
        Where segments live: a path, a URI that `pyarrow.fs` knows, or a picklable function that
        returns ``(pyarrow.fs.FileSystem, path)``. Streams need it; batches ignore it.
    timestamp : str, Column or `time_from_id`, optional
        A record's time, rounded down to milliseconds. Timestamps without a zone are read as UTC.
        Default: processing time.
    source_partition : str, Column, or several
        Columns that identify a clock, for example Kafka's topic and partition. Default: one clock
        for all records. Then records of a slow source are late. A window after the operator still
        has one watermark: see `window_delay`. If one of these columns is a timestamp, do not change
        the session's time zone between restarts.
    heartbeat : str or Column, optional
        Boolean column. A row in which it is true advances the clock of its source partition, and
        does nothing else: it is not emitted, also with `verdict`, and needs no ID. Without a
        timestamp it does nothing. Null counts as false.
    lateness : str or timedelta, optional
        How far behind the low watermark a record is still on time. Default: the horizon, at most
        1 hour; with `stable_timestamps` the horizon.
    late : {"emit", "drop"}
        ``"emit"``: a late record gets the late watermark as its time, and passes if its ID is not
        remembered. ``"drop"``: a late record is always dropped, and counts as a duplicate if its ID
        is remembered.
    window_delay : str or timedelta, optional
        The delay in ``withWatermark(timestamp, DELAY)``, if a window follows the operator. Records
        that the window would drop are then late, with or without an ID, and so are those beyond
        `max_future`, which would close all windows. Needs ``late="drop"``. Then the window counts
        every record that passes, if it has a timestamp (``dedup/spark/README.md`` has the rule).
    stable_timestamps : bool
        Set this if every copy of a record carries the same timestamp. Then the operator probes only
        the record's own bucket, and the cost does not depend on the horizon.
    max_future : str or timedelta
        A timestamp further ahead of the micro-batch's time is replaced by the micro-batch's time.
    null_ids : {"emit", "drop", "error"}
        What becomes of records without an ID: they pass without de-duplication, are dropped, or
        stop the query. Under ``"emit"`` and ``"drop"`` they need no timestamp either. So this
        option alone decides about a broken line of JSON, which is null in every column.
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
        Query time after which a silent source partition no longer holds back the watermark. With
        None, a silent partition always holds back the watermark.
    order_by : str, Column, or several
        Columns that decide which of several copies passes, if the copies arrive in one micro-batch
        with equal timestamps. The smallest value passes.
    guarantee : {"exactly-once", "at-most-once", "at-least-once"}
        ``"exactly-once"``: see Notes. ``"at-most-once"``: the filters decide without the catalog.
        No duplicate passes, but a new record is lost with a probability of up to `fpr`, and the
        horizon ends at the end of a bucket. ``"at-least-once"``: every record passes and none is
        remembered. Clocks, metrics and the other options still apply. You may change the guarantee
        at every restart (``dedup/spark/README.md`` has the rule).
    check_payload : bool, str, Column, or several
        Columns in which the copies of a record must agree. True: all columns except those that
        `id`, `timestamp` and `source_partition` name. A column that only an expression in these
        options reads is compared. A duplicate that differs from the record that passed has the
        verdict ``conflict``. Each ID takes 8 more bytes.
    conflicts : {"drop", "emit"}
        What becomes of conflicts.
    shards : int, optional
        Number of shards, fixed at the query's first start. Default:
        ``spark.sql.shuffle.partitions``. Required if that setting is not a number.
    bucket_length : str or timedelta, optional
        Length of a bucket: at most the horizon, and at least a thousandth of it. Default: an eighth
        of the horizon, which is usually best.
    fpr : float
        False-positive rate of all filters that a lookup probes together, from 1e-6 to below 1. A
        false positive costs a catalog read; under ``guarantee="at-most-once"`` it costs a record.
    state_budget_bytes : int or str
        Bound of a shard's Spark state without filters, >= 16 KiB: a number of bytes, or text such
        as ``"64 KiB"``. The newest IDs take half of it.
    filter_state_bytes : int or str, optional
        Bound of the filters in a shard's Spark state, >= 0. Filters beyond it are read from local
        copies of their sidecars. Default: 768 KiB and 16 bytes for each record of the micro-batch,
        at most 1.5 MiB. If you give it, as many filters are in the state as fit. Every micro-batch
        then writes them to the checkpoint, however few records it has.
    max_live_ids : int, optional
        Number of IDs, over all shards, beyond which the query forgets its oldest buckets early, so
        that a spike shortens the horizon for a while. Copies further back than the horizon that
        `BatchMetrics.horizon_kept_ms` reports may then pass again. IDs that are not behind the late
        watermark always stay, however many they are. Files of forgotten IDs stay for
        `keep_expired`.
    keep_expired : str or timedelta
        Expired segments stay at least this long, and until Spark can no longer roll back to them.
        To restore an older checkpoint, you need a copy of the catalog.
    shared_local : bool
        Set this if a local `catalog` path is the same mount on all machines of the cluster. Each
        machine checks that it sees the mark that the driver left in the catalog.
    cache_dir : str, optional
        Local directory for copies that can be rebuilt. Default: Spark's local directory.
    cache_bytes : int or str, optional
        Bound of the local copies on a machine. Default: 16 GiB, or a quarter of the disk's free
        space if that is less.
    max_shard_batch_bytes : int or str
        Largest share of a micro-batch that one shard may hold in memory.
    metrics : str
        Name under which `DataFrame.observe` reports. It must be unique in a query, and so must
        the name with ``_pack`` appended, which reports the time of the first pass.
    accept : str, or several
        Words of errors that you accept. The operator rejects a query that restarts with another ID
        or timestamp. If every record keeps its ID and timestamp, for example because you only
        renamed a column, set the word that the error names. It accepts only this change.
        ``"clock-jump"`` accepts that the clock jumped by more than a minute, in a query on
        processing time.

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
    The guarantee has two parts. No two records that pass share an ID within the horizon of each
    other. For every record dropped as a duplicate, a record with the same ID bytes within the
    horizon passed before. Both parts refer to effective timestamps and committed micro-batches, and
    hold across task retries, executor loss, restarts from the checkpoint and rollback.

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
    heartbeat: ColumnOrName | None = None,
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
    shards: int | None = None,
    max_shard_batch_bytes: int | str = "1 GiB",
    metrics: str = "dedup_sequence",
    accept: str | Sequence[str] = (),
) -> Operator[SequenceOptions]:
    """Return a transformation that lets each numbered record of a producer pass once.

    Use it as ``events.transform(dedup_by_sequence("device", "n", expire_after="7 days"))``, on a
    stream or a batch DataFrame. The result has the same columns, types and rows, without
    duplicates. The operator needs no catalog. Spark state holds about 60 bytes per producer,
    however many records the producer has sent. Each gap in the producer's numbers takes 16 more
    bytes, up to `ranges`.

    Parameters
    ----------
    producer : str, Column, or several
        Columns that identify who numbers the records, of the types that `dedup_by_id` takes as ID.
    sequence : str or Column
        An integer: 0 for a producer's first record, one more for each record after it. After
        2^31 - 1 the producer may start again at 0 or count on, because only the remainder by 2^31
        counts.
    expire_after : str or timedelta
        The operator forgets a producer that is silent for longer. Without `timestamp`, the time
        counts only while the query runs.
    epoch : str or Column, optional
        An integer >= 0 that a producer raises when it starts again at sequence 0. Records of
        earlier epochs are then fenced. Default: there is one epoch.
    partition : str, Column, or several
        Columns within whose values a producer numbers its records, such as Kafka's topic and
        partition. Default: the producer numbers all its records together.
    timestamp : str or Column, optional
        A record's time, used only for `expire_after`. Default: processing time. On processing time
        a query that runs in single micro-batches (`availableNow`) never forgets a producer.
    source_partition, heartbeat, idle_timeout, max_future, null_timestamps
        As in `dedup_by_id`. They need `timestamp`.
    gaps : {"emit", "drop", "error"}
        What becomes of new records that are out of order. A record is out of order if records
        before it are missing, or if it was missing itself. ``"emit"``: such records pass.
        ``"drop"``: they are dropped and not remembered, so the producer must send them again, in
        order, and a record that is lost forever blocks the rest of its epoch. ``"error"``: they
        stop the query.
    unknown : {"emit", "drop", "error"}
        What becomes of records that may be duplicates or new. These are records older than the
        memory, and the first record of an unknown producer if its number is not 0. ``"emit"`` loses
        no record. ``"drop"`` accepts an unknown producer from its next record 0 on.
    fenced : {"drop", "emit", "error"}
        What becomes of a record whose producer has already sent a newer epoch, even if the record
        was only held back. Fenced records do not keep their producer alive.
    unnumbered : {"emit", "drop", "error"}
        What becomes of records whose producer, epoch or sequence is null or below 0. They need no
        timestamp.
    verdict : str, optional
        Name of a string column to add. Every row then passes, marked ``accept``, ``duplicate``,
        ``gap``, ``fenced``, ``unknown``, ``unnumbered`` or ``untimed``.
    ranges : int
        How many unbroken ranges of numbers to remember per producer: 1 to 255, 16 bytes each. A
        producer needs more than one range only while some of its numbers are missing. Numbers below
        the remembered ranges are ``unknown``.
    max_producers : int
        Largest number of producers that a stream's shard may remember. A producer counts once per
        partition. One more producer stops the query.
    shards : int, optional
        As in `dedup_by_id`. Give it once the state has another number of partitions than at the
        first start.
    max_shard_batch_bytes : int or str
        Largest share of a micro-batch that one shard may hold in memory.
    metrics : str
        Name under which `DataFrame.observe` reports. It must be unique in a query, and so must
        the name with ``_pack`` appended.
    accept : {"clock-jump"}
        Without `timestamp`: accept that the clock jumped by more than a minute.

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
    Of records with the same producer, partition, epoch and sequence at most one passes. Exceptions
    are records with the verdict ``unknown``, and records with the verdicts ``fenced``,
    ``unnumbered`` or ``untimed`` if you let them pass. For every record dropped as a duplicate, a
    record with the same numbers passed before. With the defaults every other record passes, except
    records of a fenced epoch. All this holds per committed micro-batch, across task retries,
    executor loss, restarts from the checkpoint and rollback.

    The operator remembers the newest `ranges` unbroken ranges of sequences per producer and
    partition, within 2^30 of the newest. If no number is missing, one range covers all numbers. If
    there are too many gaps at a time, the operator forgets the oldest range, and late records below
    the remembered ranges are ``unknown``. The rule follows Kafka's idempotent producer (KIP-98,
    KIP-360), which remembers five batches.
    """
    return Operator(SequenceOptions(**locals()))
