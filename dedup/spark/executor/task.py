"""The running task: its identity, the check of its query's birth certificate, and its memory.

The birth certificate is an object at the catalog root that holds what a query fixed at its first
start: ID, timestamp, number of shards, hash keys.
"""

from __future__ import annotations

import ctypes
import gc
import logging
import os
import sys
import uuid
import warnings
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
from pyspark import TaskContext

from dedup.catalog.certificate import Certificate, load_certificate
from dedup.catalog.compatibility import create_or_check
from dedup.catalog.gc.runs import list_runs
from dedup.catalog.root import Root
from dedup.catalog.similar_queries import similar_queries, similar_query_warning
from dedup.core.filter import hash_key_id
from dedup.core.sharding import derive_keys, filter_key_id, payload_key, slot_keys
from dedup.errors import CatalogError, ConfigError, StateError
from dedup.spark.id_encoding import ENCODING
from dedup.spark.machine import shuffle_partitions
from dedup.spark.mount_probe import check_start
from dedup.spark.plan import Plan

logger = logging.getLogger("dedup")

#: Query ID for batch DataFrames.
_BATCH_QUERY = "batch"
#: Bytes that a worker may keep between tasks, besides its modules. A task of half a million rows
#: uses as much. A page that the worker returned costs 2 us when it is used again.
KEPT_BYTES = 160 << 20
#: Arrays below this size come from memory that the process keeps, not from separate mappings.
_MMAP_BYTES = 1 << 30
#: The same limit for older releases of glibc.
_MMAP_BYTES_BEFORE = 32 << 20

_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
#: Number of modules, and resident bytes, when the collector was last frozen.
_modules_frozen = 0
_settled_bytes = 0


@dataclass(frozen=True, slots=True)
class Task:
    """Identity of the running task."""

    query_id: str
    run_id: str
    #: Micro-batch ID.
    epoch: int
    #: Number that differs between all attempts of all tasks of the run.
    attempt_id: int
    #: Number of the operator's partitions, and the task's partition in its stage.
    partitions: int
    partition: int = 0
    #: Number of the task's earlier attempts, which failed.
    retries: int = 0

    @staticmethod
    def current(plan: Plan) -> Task:
        """Return this worker's task."""
        context = TaskContext.get()
        if context is None:
            raise RuntimeError("this runs only inside a Spark task")
        query_id = context.getLocalProperty("sql.streaming.queryId")
        batch_id = context.getLocalProperty("streaming.sql.batchId")
        if not plan.streaming:
            query_id, batch_id = _BATCH_QUERY, "0"
        if query_id is None or batch_id is None:
            raise misplaced("does not know its query and micro-batch")
        # Spark's run ID is the job group, which a sink may change. So our run ID consists of the
        # plan's ID, which differs between starts, and the job group, which differs between queries.
        job_group = context.getLocalProperty("spark.jobGroup.id") or ""
        return Task(
            query_id=query_id,
            run_id=str(uuid.uuid5(uuid.UUID(plan.start_id), job_group)),
            epoch=int(batch_id),
            attempt_id=context.taskAttemptId(),
            partitions=partitions_of(context.getLocalProperty, plan.shards),
            partition=context.partitionId(),
            retries=context.attemptNumber(),
        )

    def check_follows(self, base_epoch: int) -> None:
        """Raise ConfigError if the task's micro-batch is not newer than that of the state.

        Then the thread that started the job kept the properties of an earlier micro-batch.
        """
        if base_epoch >= self.epoch:
            raise misplaced(
                f"belongs to micro-batch {self.epoch} by its thread, but micro-batch {base_epoch} "
                "is already in the query's state"
            )


def partitions_of(setting: Callable[[str], str | None], shards: int | None) -> int:
    """Return the number of the operator's partitions. A wrong number spreads shards unevenly."""
    pinned = setting("spark.sql.streaming.internal.stateStore.partitions")
    asked = setting("spark.sql.shuffle.partitions")
    return shuffle_partitions(pinned) or shuffle_partitions(asked) or shards or 200


@dataclass(frozen=True, slots=True)
class Layout:
    """The query's shards and hash keys, from the birth certificate. All three passes need them."""

    #: Numbers by which Spark groups the rows of each shard. They spread shards evenly.
    slot_keys: tuple[int, ...]
    #: Three independent 16-byte hash keys.
    shard_key: bytes = field(repr=False)
    filter_key: bytes = field(repr=False)
    payload_key: bytes = field(repr=False)
    #: The query's secret, which is empty if there is no certificate.
    secret: bytes = field(default=b"", repr=False)

    @property
    def key_id(self) -> int:
        return hash_key_id(self.filter_key)

    @staticmethod
    def of(query_id: str, slot_keys: tuple[int, ...], secret: bytes = b"") -> Layout:
        """Return a layout, with hash keys that are derived from the query's ID and secret."""
        keys = *derive_keys(query_id, secret), payload_key(query_id, secret)
        return Layout(slot_keys, *keys, secret)


#: Certificates that this process has checked, by root, query, run and fixed options.
_checked: dict[tuple[object, ...], Certificate] = {}


def misplaced(what: str) -> ConfigError:
    """Return the error for a job whose starting thread lacks the micro-batch's properties."""
    return ConfigError(
        f"A job of this streaming query {what}. The job judged and wrote nothing. Spark keeps "
        "query and micro-batch in properties of the thread that calls the foreachBatch function; "
        "other threads have no properties, or old ones. In each micro-batch, start new threads "
        "with pyspark.InheritableThread, or give a thread pool "
        "pyspark.inheritable_thread_target(function). Then start the query again. Under Spark "
        "Connect no foreachBatch function has these properties: write the stream with a format "
        "there (dedup_kafka, dedup_postgres, dedup_mysql, dedup_files, dedup_delta, dedup_iceberg, "
        "or a format of Spark).",
        remedy="foreach-batch-threads",
    )


def layout(plan: Plan, task: Task, *, has_state: bool | None = None) -> Layout:
    """Check the birth certificate, and return the layout of the query.

    `has_state` says whether Spark has a state for this shard. Only the group function gives
    `has_state`, so only the group function creates a certificate. Raises ConfigError if the
    certificate is for another ID, timestamp or number of shards.
    """
    if plan.root is None:
        shards = plan.shards or task.partitions
        # A stream without a catalog cannot store a secret.
        secret = b"" if plan.streaming else plan.secret
        return Layout.of(task.query_id, slot_keys(shards, task.partitions), secret)
    certificate = _certificate(plan, task, has_state)
    born = task.epoch <= certificate.birth_batch
    if has_state is False and not born and not _just_adopted(plan.root, task):
        raise StateError(
            f"Micro-batch {task.epoch} found no Spark state although catalog "
            f"{plan.root.url()} was born in micro-batch {certificate.birth_batch}: the state in "
            "the checkpoint is lost. Restore the checkpoint with its state, or adopt the catalog "
            "with a new checkpoint.",
            remedy="damaged-state",
        )
    return Layout.of(task.query_id, certificate.slot_keys, certificate.secret)


def _just_adopted(root: Root, task: Task) -> bool:
    """Return whether the query adopted a catalog and has committed no rows since."""
    adopted = any(found.parsed.kind == "adopted" for found in root.list(task.query_id))
    return adopted and all(
        run.began_epoch >= task.epoch and run.through_epoch is None
        for run in list_runs(root, task.query_id)
    )


def warn_of_others(root: Root, query_id: str) -> int:
    """Warn of other queries that use the same ID columns, and return the number of such queries.

    The driver cannot warn, because it does not know the checkpoint before the query starts. With a
    local master the user sees the worker's log on the screen, on a cluster in the executor's log.
    The number reaches the driver in the metrics.
    """
    with suppress(CatalogError):  # the query continues without the warning
        own = load_certificate(root, query_id)
        others = [] if own is None else similar_queries(root, own.id_columns, query_id)
        if own is not None and others:
            logger.warning("%s", similar_query_warning(root, own.id_columns, others))
        return len(others)
    return 0


def _certificate(plan: Plan, task: Task, has_state: bool | None) -> Certificate:
    assert plan.root is not None
    cache_key = (
        plan.root.url(), task.query_id, task.run_id,
        plan.id_definitions, plan.time.definition, plan.policy.stable_timestamps, plan.shards,
        plan.accepted,
    )  # fmt: skip
    checked = _checked.get(cache_key)
    if checked is not None:
        return checked
    if plan.marked:
        # Check this before the machine writes to a folder that no other machine sees.
        check_start(plan.root, plan.start_id)
    found = load_certificate(plan.root, task.query_id)
    if found is None and has_state:
        raise missing_catalog(plan.root, task.query_id)
    shards = plan.shards or (found.shards if found else task.partitions)
    secret = found.secret if found else plan.secret
    same_spread = found is not None and found.shards == shards
    wanted = Certificate(
        query_id=task.query_id,
        shards=shards,
        slot_keys=found.slot_keys if found and same_spread else slot_keys(shards, task.partitions),
        hash_key_id=filter_key_id(task.query_id, secret),
        birth_batch=task.epoch,
        secret=secret,
        **of_plan(plan),
    )
    if has_state is None and found is None:
        # Pack only reads the certificate. The group function knows whether there is state, and
        # creates a missing certificate.
        return wanted
    certificate = create_or_check(plan.root, wanted, plan.accepted)
    _checked.clear()
    _checked[cache_key] = certificate
    return certificate


def of_plan(plan: Plan) -> dict[str, Any]:
    """Return the fields of the certificate that follow from the plan."""
    return {
        "id_columns": tuple((name, kind) for _, name, kind in plan.id_columns),
        "id_definitions": plan.id_definitions,
        "encoding": ENCODING,
        "timestamp_source": plan.time.text,
        "timestamp_definition": plan.time.definition,
        "stable_timestamps": plan.policy.stable_timestamps,
    }


def missing_catalog(root: Root, query_id: str) -> CatalogError:
    """Return the error for a checkpoint whose catalog is not at the root."""
    return CatalogError(
        f"The catalog of this query is missing: {root.url()} has no birth certificate for query "
        f"{query_id}, but the checkpoint refers to one. Point `catalog` to its place, or restore "
        "it together with the checkpoint.",
        remedy="missing-catalog",
    )


def freeze_gc() -> None:
    """Exclude the objects of loaded modules from garbage collection.

    Spark's worker collects garbage after every task, six times in a micro-batch of two shards. With
    pandas, pyarrow and PySpark loaded, this takes 20 to 40 ms of CPU each time. Objects of modules
    stay alive anyway.
    """
    global _modules_frozen, _settled_bytes
    if not _modules_frozen:
        _keep_freed()
        # Spark's code causes this warning in each task if a column of counters is empty.
        warnings.filterwarnings(
            "ignore", "The behavior of DataFrame concatenation", FutureWarning, r"pyspark\.worker"
        )
    if len(sys.modules) != _modules_frozen:
        _modules_frozen = len(sys.modules)
        gc.collect()
        gc.freeze()
        _release()
        _settled_bytes = _resident_bytes()


def release_memory() -> None:
    """Return freed memory to the system if the process holds more than `KEPT_BYTES`.

    Otherwise the C library would keep 150 MB in each idle worker after micro-batches of 1 M
    records. To return the memory takes 5 to 10 ms.
    """
    if _resident_bytes() > _settled_bytes + KEPT_BYTES:
        _release()


def _release() -> None:
    pa.default_memory_pool().release_unused()
    _trim(0)


def _resident_bytes() -> int:
    with suppress(OSError), open("/proc/self/statm", "rb") as file:
        return int(file.read().split()[1]) * _PAGE_BYTES
    return 0


def _libc(name: str) -> Callable[..., int]:
    """Return a function of glibc, or a function that does nothing if there is no glibc."""
    try:
        function: Callable[..., int] = getattr(ctypes.CDLL(None), name)
    except (AttributeError, OSError, TypeError):
        return lambda *_: 0
    return function


_trim = _libc("malloc_trim")
_set = _libc("mallopt")


def _keep_freed() -> None:
    """Let the C library reuse the memory of freed arrays, even in later tasks."""
    trim_threshold, mmap_threshold = -1, -3  # malloc.h
    if _set(mmap_threshold, _MMAP_BYTES) or _set(mmap_threshold, _MMAP_BYTES_BEFORE):
        _set(trim_threshold, KEPT_BYTES)
