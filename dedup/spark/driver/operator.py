"""`dedup_by_id`: the operator as users see it."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Literal

from dedup.catalog.location import FileSystemFactory
from dedup.core.admission import Conflicts
from dedup.core.policy import Guarantee
from dedup.spark.driver.build import Operator
from dedup.spark.driver.derived_id import ColumnOrName, DerivedId
from dedup.spark.idtime import IdTime
from dedup.spark.options import Duration, Options


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
) -> Operator:
    """A transformation that lets each record ID pass once per horizon.

    Use it as ``events.transform(dedup_by_id("event_id", ...))``, on a stream or a batch
    DataFrame. The result has the same columns, types and rows, without duplicates.

    Parameters
    ----------
    id : str, Column, `dedup.record_id`, or several
        The record ID: string, binary, integer, decimal, boolean, date, timestamp, day-time
        interval or time. Several columns make a composite ID, in which a null is a value. Where
        records bring none, `dedup.sources.record_id` makes one.
    horizon : str or timedelta
        Two records with the same ID at most this far apart in time are duplicates (inclusive).
        A duplicate does not prolong an ID's life.
    catalog : str, path, or callable, optional
        Where segments live: a path, a URI that `pyarrow.fs` knows, or a picklable function that
        returns ``(pyarrow.fs.FileSystem, path)``. Needed on streams, unused on batches.
    timestamp : str, Column or `time_from_id`, optional
        A record's time, whole milliseconds, floored; zone-less timestamps are read as UTC.
        Default: processing time.
    source_partition : str, Column, or several
        What identifies a clock, for example Kafka's topic and partition. Default: one clock, the
        newest timestamp of all; then records of a slow source are late. A window after the operator
        still has one watermark for all: give it a delay as long as a source may lag behind. A
        timestamp among them names its clock in the session's time zone: keep that between restarts.
    lateness : str or timedelta, optional
        How far behind the low watermark a record is still on time. Default: the horizon, at most
        1 hour; with `stable_timestamps` the horizon.
    late : {"emit", "drop"}
        ``"emit"``: a late record is de-duplicated under the late watermark's time against all
        live memory and goes on if unknown. ``"drop"``: it goes on never; one that is known is a
        duplicate.
    stable_timestamps : bool
        Every copy of a record carries the same timestamp. Then only the record's own bucket is
        probed, and the cost does not depend on the horizon.
    max_future : str or timedelta
        Timestamps further ahead of the micro-batch's time count as that time.
    null_ids : {"emit", "drop", "error"}
        What becomes of records without an ID: they go on without de-duplication, they are dropped,
        or they stop the query. Under ``"emit"`` and ``"drop"`` they need no timestamp either: a
        broken line of JSON, which is null in every column, falls under this option alone.
    null_timestamps : {"error", "now", "emit", "drop"}
        What becomes of records that have an ID and no timestamp. ``"error"``: they stop the query,
        at every restart, until they are mended or the option is changed. ``"now"``: they are
        de-duplicated under the micro-batch's time. ``"emit"``: they go on without de-duplication.
        ``"drop"``: they do not go on. Under ``"emit"`` and ``"drop"`` they are not remembered, and
        tell the clocks nothing. Records that have no ID fall under `null_ids`.
    verdict : str, optional
        Name of a string column to add; then every row goes on, marked ``unique``, ``duplicate``,
        ``late``, ``null_id``, ``untimed`` (no timestamp, under ``null_timestamps="emit"`` or
        ``"drop"``) or ``conflict`` (under `check_payload`).
    idle_timeout : str or timedelta, optional
        Query time after which a silent source partition no longer holds the watermark; None:
        never.
    order_by : str, Column, or several
        Which of several copies inside one micro-batch with equal timestamps comes first.
    guarantee : {"exactly-once", "at-most-once", "at-least-once"}
        ``"exactly-once"``: what stands under Notes. ``"at-most-once"``: the filters alone decide
        and the catalog is not asked, so that no duplicate goes on, but a new record is lost with a
        probability of up to `fpr`; the horizon ends at the end of a bucket. ``"at-least-once"``:
        every record goes on and none is remembered; clocks, metrics and the other options stay in
        force. It may be changed at every restart (``dedup/spark/README.md`` has the rule).
    check_payload : bool, str, Column, or several
        Compare the copies of a record by these columns, or by all but those that are the ID, the
        timestamp or the source partition (True; a column that an expression makes one of these of
        is compared). A duplicate that differs from the record that went on has the verdict
        ``conflict``. 8 bytes more are remembered per ID.
    conflicts : {"drop", "emit"}
        What becomes of these, under `check_payload`.
    shards : int, optional
        Default: ``spark.sql.shuffle.partitions``; needed if that is no number. Fixed at the
        query's birth.
    buckets : int
        Buckets per horizon, 1 to 1000.
    bucket_length : str or timedelta, optional
        In place of `buckets`; at most the horizon.
    fpr : float
        False-positive rate of all filters that a lookup probes together, from 1e-6 to below 1. A
        false positive costs a catalog read, and a record under ``guarantee="at-most-once"`` alone.
    state_budget_bytes : int
        Bound of a shard's Spark state, >= 16 KiB.
    keep_expired : str or timedelta
        Expired segments are deleted no sooner (and not before Spark can no longer roll back to
        them). Restoring a checkpoint that is older needs a copy of the catalog.
    accept_clock_jump : bool
        Processing time: accept that the clock jumped by more than a minute.
    shared_local : bool
        A local `catalog` path is the same mount on all machines of the cluster. Each makes sure
        that it sees what the driver left there.
    cache_dir : str, optional
        Local directory for rebuildable copies. Default: Spark's local directory.
    cache_bytes : int, optional
        Bound of the local copies' size on a machine. Default: 16 GiB, or a quarter of the disk's
        free space if that is less.
    max_shard_batch_bytes : int
        Largest share of a micro-batch that one shard may hold in memory.
    metrics : str
        Name under which `DataFrame.observe` reports; unique in a query, as is this name with
        ``_pack`` behind it, which reports the first pass's time.
    accept_changed_id, accept_changed_timestamp : str, optional
        A query that is started with another ID or timestamp than it was born with is refused. If
        you know that every record keeps the ID or timestamp that it had (a column was renamed, an
        expression written in another way), set the word that the refusal names; it stands for
        this one change.

    Returns
    -------
    Operator
        A callable from DataFrame to DataFrame.

    Raises
    ------
    ConfigError
        If an option, a column, the session or the query cannot work: here, or when the
        transformation is applied. What only the tasks can see stops the query: a catalog that was
        born with another ID, timestamp source or number of shards, a micro-batch too large for
        `max_shard_batch_bytes`.
    CatalogError
        If the catalog cannot be written from the driver.

    Notes
    -----
    Guarantee, over effective timestamps and per committed micro-batch: no two records that go on
    share an ID and lie within the horizon of each other; every record dropped as a duplicate has
    one with the same ID bytes within the horizon that went on before it. It holds across task
    retries, executor loss, restarts from the checkpoint and rollback.

    The design is that of Google Dataflow's exactly-once shuffle: Akidau, Chernyak, Lax,
    *Streaming Systems*, chapter 5.
    """
    return Operator(Options(**locals()))
