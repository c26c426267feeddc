"""`OffsetsToGroup`: shows Kafka's own tools how far a query has read."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any

from pyspark.sql.streaming.listener import (
    QueryIdleEvent,
    QueryProgressEvent,
    QueryStartedEvent,
    QueryTerminatedEvent,
    StreamingQueryListener,
)

from dedup.errors import ConfigError
from dedup.sources.kafka.background import Newest
from dedup.sources.kafka.client_options import client_settings
from dedup.sources.kafka.clients import admin_client, confluent
from dedup.sources.kafka.cluster import timeout_s
from dedup.sources.kafka.read_offsets import end_offsets

logger = logging.getLogger("dedup")


class OffsetsToGroup(StreamingQueryListener):
    """Commits the offsets of finished micro-batches to a consumer group, for monitoring alone.

    Add it with ``spark.streams.addListener(OffsetsToGroup("host:9092", "orders-query"))``; then
    ``kafka-consumer-groups.sh --describe`` and lag exporters show the query as if it were a
    consumer. Nothing reads the offsets back: the query's own are in its checkpoint.

    Parameters
    ----------
    servers : str or sequence of str
    group : str
        A group that no consumer is a member of, and no other query writes to.
    query : str, optional
        Name (``queryName``) or ID of the one query. Default: every query of the session that reads
        these topics.
    options : mapping of str to str, optional
        Options ``kafka.*`` of the connection, as `kafka_records` takes them.

    Raises
    ------
    ConfigError
        If there is no group, or an option is none that librdkafka knows.
    MissingExtraError
        If confluent-kafka is not installed.

    Notes
    -----
    It never stops a query and never makes it wait: what fails is logged, and the next micro-batch
    commits its own offsets.
    """

    def __init__(
        self,
        servers: str | Sequence[str],
        group: str,
        *,
        query: str | None = None,
        options: Mapping[str, str] | None = None,
    ) -> None:
        if not (group or "").strip():
            raise ConfigError("The group has no name: give one, such as 'orders-query'.")
        self.group = group
        self._query = query
        joined = servers if isinstance(servers, str) else ",".join(servers)
        settings = client_settings({**(options or {}), "kafka.bootstrap.servers": joined})
        self._wait_s = timeout_s(settings)
        self._admin: Any = admin_client(settings, purpose="Committing offsets to Kafka")
        self._work = Newest(f"dedup: offsets to group {group}")
        self._ends: dict[tuple[str, int], int] = {}

    def onQueryStarted(self, event: QueryStartedEvent) -> None:  # noqa: N802
        """Wait for the first micro-batch."""

    def onQueryProgress(self, event: QueryProgressEvent) -> None:  # noqa: N802
        """Commit where the micro-batch ended; Spark calls this when it is in the commit log."""
        progress = event.progress
        if self._query is not None and self._query not in (progress.name, str(progress.id)):
            return
        offsets = end_offsets(progress)
        if offsets:
            ends = {(t, n): end for t, numbers in offsets.items() for n, end in numbers.items()}
            # All that is known: a newer commit, of another query too, takes this one's place.
            self._ends = self._ends | ends
            self._work.submit(self._commit)

    def onQueryIdle(self, event: QueryIdleEvent) -> None:  # noqa: N802
        """Nothing is new."""

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:  # noqa: N802
        """Nothing is left to do."""

    def drain(self, timeout_s: float = 30.0) -> bool:
        """Wait until all that was seen is committed, or has failed; return whether it is."""
        return self._work.drain(timeout_s)

    def _commit(self) -> None:
        library = confluent("Committing offsets to Kafka")
        partitions = [library.TopicPartition(*place, end) for place, end in self._ends.items()]
        request = library.ConsumerGroupTopicPartitions(self.group, partitions)
        answers = self._admin.alter_consumer_group_offsets([request], request_timeout=self._wait_s)
        for one in answers[self.group].result().topic_partitions:
            if one.error is not None:
                logger.warning(
                    "group %s: the offset of %s-%d was not committed: %s",
                    self.group, one.topic, one.partition, one.error.str(),
                )  # fmt: skip
