"""Listens to a running query, to detect topics created again and to commit offsets to Kafka."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from queue import Queue
from typing import Any

from pyspark.sql import SparkSession
from pyspark.sql.streaming.listener import (
    QueryIdleEvent,
    QueryProgressEvent,
    QueryStartedEvent,
    QueryTerminatedEvent,
    StreamingQueryListener,
)

from dedup.errors import DedupError, SourceError
from dedup.sources.kafka.client_options import ClientSettings, client_settings
from dedup.sources.kafka.clients import admin_client, confluent
from dedup.sources.kafka.cluster import Cluster
from dedup.sources.kafka.topic_ids import Checkpoint
from dedup.spark.driver.checkpoint_log import kafka_offsets
from dedup.spark.driver.fail_query import fail_query

logger = logging.getLogger("dedup")


class TopicGuard(StreamingQueryListener):
    """Lets a query fail if a topic that it reads was deleted, or deleted and created again.

    The guard compares the topics' IDs after each micro-batch, and stores the IDs of new topics in
    the checkpoint. It watches only the first run that starts after the guard was added, and removes
    itself when Spark reports the end of that run. The next run may have begun by then.
    """

    def __init__(
        self, spark: SparkSession, checkpoint: Checkpoint, settings: ClientSettings
    ) -> None:
        self._spark = spark
        self._checkpoint = checkpoint
        self._settings = settings
        self._work = NewestJob("dedup: IDs of topics")
        self._cluster: Cluster | None = None
        self._run: tuple[str, str] | None = None
        self._read: frozenset[str] = frozenset()

    def onQueryStarted(self, event: QueryStartedEvent) -> None:  # noqa: N802
        """Remember the run's ID if the run's query owns the checkpoint."""
        if self._run is not None:
            return
        try:
            query_id = self._checkpoint.query_id()
        except (DedupError, ValueError, KeyError) as error:
            logger.warning("%s cannot be read: %s", self._checkpoint.url, error)
            return
        if query_id == str(event.id):
            self._run = query_id, str(event.runId)

    def onQueryProgress(self, event: QueryProgressEvent) -> None:  # noqa: N802
        topics = frozenset(end_offsets(event.progress))
        if topics and self._is_ours(event.progress):
            self._read |= topics
            self._work.submit(self._check)

    def onQueryIdle(self, event: QueryIdleEvent) -> None:  # noqa: N802
        """Compare the topics' IDs even if a trigger finds no new records."""
        if self._is_ours(event):
            self._work.submit(self._check)

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:  # noqa: N802
        if self._is_ours(event):
            self._spark.streams.removeListener(self)

    def _is_ours(self, event: Any) -> bool:
        return self._run == (str(event.id), str(event.runId))

    def _check(self) -> None:
        # An error closes the connection, so that the next check is not rejected for an old error.
        cluster, self._cluster = self._cluster, None
        cluster = cluster or Cluster(self._settings, purpose="Reading from Kafka")
        topics = cluster.topics(sorted(self._read))
        self._cluster = cluster
        try:
            self._checkpoint.compare(topics, self._read)
        except SourceError as error:
            query_id, run_id = self._run or ("", "")
            logger.error("query %s has to end: %s", query_id, error)
            query = self._spark.streams.get(query_id)
            if query is not None and str(query.runId) == run_id:
                fail_query(query, error)


class OffsetsToGroup(StreamingQueryListener):
    """Commits the offsets of finished micro-batches to a consumer group, for monitoring only.

    Add the listener with
    ``spark.streams.addListener(OffsetsToGroup("host:9092", "orders-query"))``. Then
    ``kafka-consumer-groups.sh --describe`` and lag exporters show the query like a consumer. The
    query never reads these offsets, because it keeps its own offsets in its checkpoint.

    Parameters
    ----------
    servers : str or sequence of str
    group : str
        A group without members, to which no other query writes.
    query : str, optional
        Name (``queryName``) or ID of the query. Default: every query of the session that reads
        Kafka.
    options : mapping of str to str, optional
        Options ``kafka.*`` of the connection, as `kafka_records` takes them.

    Raises
    ------
    ConfigError
        If an option cannot be used.
    MissingExtraError
        If confluent-kafka is not installed.

    Notes
    -----
    The listener never stops or delays a query. If a commit fails, the listener logs the failure,
    and the next micro-batch commits newer offsets.
    """

    def __init__(
        self,
        servers: str | Sequence[str],
        group: str,
        *,
        query: str | None = None,
        options: Mapping[str, str] | None = None,
    ) -> None:
        self.group = group
        self._query = query
        joined = servers if isinstance(servers, str) else ",".join(servers)
        settings = client_settings({**(options or {}), "kafka.bootstrap.servers": joined})
        self._wait_s = settings.timeout_s
        self._admin: Any = admin_client(settings, purpose="Committing offsets to Kafka")
        self._work = NewestJob(f"dedup: offsets to group {group}")
        self._ends: dict[tuple[str, int], int] = {}

    def onQueryStarted(self, event: QueryStartedEvent) -> None:  # noqa: N802
        """Do nothing."""

    def onQueryProgress(self, event: QueryProgressEvent) -> None:  # noqa: N802
        """Commit the end offsets of a micro-batch, which Spark has already logged as committed."""
        progress = event.progress
        if self._query is not None and self._query not in (progress.name, str(progress.id)):
            return
        offsets = end_offsets(progress)
        if offsets:
            ends = {(t, n): end for t, numbers in offsets.items() for n, end in numbers.items()}
            # A new job replaces a waiting job, so it commits all known offsets of all queries.
            self._ends = self._ends | ends
            self._work.submit(self._commit)

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:  # noqa: N802
        """Do nothing."""

    def drain(self, timeout_s: float = 30.0) -> bool:
        """Wait until no commit is pending. Return False if `timeout_s` passes first."""
        return self._work.drain(timeout_s)

    def _commit(self) -> None:
        library = confluent("Committing offsets to Kafka")
        partitions = [library.TopicPartition(*place, end) for place, end in self._ends.items()]
        request = library.ConsumerGroupTopicPartitions(self.group, partitions)
        answers = self._admin.alter_consumer_group_offsets([request], request_timeout=self._wait_s)
        for place in answers[self.group].result().topic_partitions:
            if place.error is not None:
                logger.warning(
                    "group %s: the offset of %s-%d was not committed: %s",
                    self.group, place.topic, place.partition, place.error.str(),
                )  # fmt: skip


class NewestJob:
    """A thread that runs jobs for a listener, because a listener must not wait.

    A new job replaces a job that has not begun. An exception in a job is only logged. When Python
    exits, it does not wait for a job, because the job may wait for silent brokers. With a
    `ThreadPoolExecutor`, Python would wait.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._jobs = Queue[Callable[[], None]]()
        threading.Thread(target=self._run, name=name, daemon=True).start()

    def submit(self, job: Callable[[], None]) -> None:
        self._jobs.put(job)

    def drain(self, timeout_s: float) -> bool:
        done = self._jobs.all_tasks_done
        with done:
            return done.wait_for(lambda: not self._jobs.unfinished_tasks, timeout_s)

    def _run(self) -> None:
        while True:
            job = self._jobs.get()
            try:
                if self._jobs.empty():
                    job()
            except Exception as error:
                logger.warning("%s: %s", self._name, error)
            finally:
                self._jobs.task_done()


def end_offsets(progress: Any) -> dict[str, dict[int, int]]:
    """Return the next offset to read after a micro-batch, by topic and partition.

    The progress of a micro-batch may omit sources without new records.
    """
    ends: dict[str, dict[int, int]] = {}
    for source in progress.sources:
        if not str(source.description).startswith("KafkaV2["):
            continue
        for topic, partitions in kafka_offsets(source.endOffset).items():
            known = ends.setdefault(topic, {})
            for number, offset in partitions.items():
                # Two sources may read one partition. An offset is done when both have read it.
                known[number] = min(known.get(number, offset), offset)
    return ends
