"""The running task: its query, run, micro-batch and number."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from dataclasses import dataclass

from pyspark import TaskContext

from dedup.errors import ConfigError
from dedup.spark.job_tag import job_tags
from dedup.spark.machine import shuffle_partitions
from dedup.spark.plan import Plan

#: Query ID for batch DataFrames.
_BATCH_QUERY = "batch"


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
        context = TaskContext.get()
        if context is None:
            raise RuntimeError("this runs only inside a Spark task")
        query_id, epoch, start = _running_batch(context, plan.streaming)
        return Task(
            query_id=query_id,
            run_id=str(uuid.uuid5(uuid.UUID(plan.start_id), start)),
            epoch=epoch,
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


def _running_batch(context: TaskContext, streaming: bool) -> tuple[str, int, str]:
    """Return the ID of the task's query, its micro-batch, and a text that differs between queries.

    Spark's run ID is the job group, which a sink may change. So the operator's run ID consists of
    the plan's ID, which differs between starts, and this text.
    """
    job_group = context.getLocalProperty("spark.jobGroup.id") or ""
    if not streaming:
        return _BATCH_QUERY, 0, job_group
    query_id = context.getLocalProperty("sql.streaming.queryId")
    batch_id = context.getLocalProperty("streaming.sql.batchId")
    if query_id is not None and batch_id is not None:
        return query_id, int(batch_id), job_group
    tags = job_tags(context.getLocalProperty("spark.job.tags"))
    if len(tags) != 1:
        what = "names several micro-batches" if tags else "does not know its query and micro-batch"
        raise misplaced(what)
    (tag,) = tags
    return tag.query_id, tag.batch_id, tag.start_id


def partitions_of(setting: Callable[[str], str | None], shards: int | None) -> int:
    """Return the number of the operator's partitions. A wrong number spreads shards unevenly."""
    pinned = setting("spark.sql.streaming.internal.stateStore.partitions")
    configured = setting("spark.sql.shuffle.partitions")
    return shuffle_partitions(pinned) or shuffle_partitions(configured) or shards or 200


def misplaced(what: str) -> ConfigError:
    """Return the error for a job whose starting thread lacks the micro-batch's properties."""
    return ConfigError(
        f"A job of this streaming query {what}. The job judged and wrote nothing. Spark keeps "
        "query and micro-batch in properties of the thread that calls the foreachBatch function; "
        "other threads have no properties, or old ones. In each micro-batch, start new threads "
        "with pyspark.InheritableThread, or give a thread pool "
        "pyspark.inheritable_thread_target(function). Then start the query again. Under Spark "
        "Connect only the sinks of this package, and split, name them: give such a sink to "
        "foreachBatch, or write the stream with a format (dedup_kafka, dedup_postgres, "
        "dedup_mysql, dedup_files, dedup_delta, dedup_iceberg, or a format of Spark).",
        remedy="foreach-batch-threads",
    )
