"""The running task: its query, run, micro-batch and number."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from dataclasses import dataclass

from pyspark import TaskContext

from dedup.errors import ConfigError
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
        "Connect no foreachBatch function has these properties: write the stream with a format "
        "there (dedup_kafka, dedup_postgres, dedup_mysql, dedup_files, dedup_delta, dedup_iceberg, "
        "or a format of Spark).",
        remedy="foreach-batch-threads",
    )
