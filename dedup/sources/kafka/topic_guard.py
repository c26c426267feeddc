"""Watches, while a query runs, that its topics are still the ones that it began to read."""

from __future__ import annotations

import logging
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
from dedup.sources.kafka.background import Newest
from dedup.sources.kafka.client_options import ClientSettings
from dedup.sources.kafka.clients import admin_client
from dedup.sources.kafka.cluster import timeout_s
from dedup.sources.kafka.read_offsets import end_offsets
from dedup.sources.kafka.topic_ids import Checkpoint, merged, refuse_other_topics
from dedup.sources.kafka.topics import describe

logger = logging.getLogger("dedup")


class TopicGuard(StreamingQueryListener):
    """Stops one query when a topic that it reads was deleted and made again.

    It asks the brokers after each micro-batch. Topics that appear while the query runs are noted in
    its checkpoint. It takes up the first run of the query that begins after it was added, and goes
    with that: Spark tells the end of a run when the next may have begun.

    Parameters
    ----------
    spark : SparkSession
    checkpoint : Checkpoint
        Of the query.
    settings : ClientSettings
    """

    def __init__(
        self, spark: SparkSession, checkpoint: Checkpoint, settings: ClientSettings
    ) -> None:
        self._spark = spark
        self._checkpoint = checkpoint
        self._settings = settings
        self._work = Newest("dedup: IDs of topics")
        self._admin: Any = None
        self._run: tuple[str, str] | None = None
        self._read: frozenset[str] = frozenset()

    def onQueryStarted(self, event: QueryStartedEvent) -> None:  # noqa: N802
        """Take the run up, if it is of this checkpoint, which knows its query by now."""
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
        """Compare the IDs of what was read."""
        topics = frozenset(end_offsets(event.progress))
        if topics and self._is_ours(event.progress):
            self._read |= topics
            self._work.submit(self._check)

    def onQueryIdle(self, event: QueryIdleEvent) -> None:  # noqa: N802
        """Compare them again."""
        if self._is_ours(event):
            self._work.submit(self._check)

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:  # noqa: N802
        """Go with the run."""
        if self._is_ours(event):
            self._spark.streams.removeListener(self)

    def drain(self, timeout_s: float = 30.0) -> bool:
        """Wait until all that was seen is compared; return whether it is."""
        return self._work.drain(timeout_s)

    def _is_ours(self, told: Any) -> bool:
        return self._run == (str(told.id), str(told.runId))

    def _check(self) -> None:
        if self._admin is None:
            self._admin = admin_client(self._settings, purpose="Reading from Kafka")
        now = describe(self._admin, sorted(self._read), timeout_s(self._settings))
        noted = self._checkpoint.topic_ids()
        try:
            refuse_other_topics(noted, now, self._read)
        except SourceError as error:
            self._stop(error)
            return
        found = merged(noted, now, self._read)
        if found != noted:
            self._checkpoint.note(found)

    def _stop(self, why: SourceError) -> None:
        query_id, run_id = self._run or ("", "")
        query = self._spark.streams.get(query_id)
        if query is not None and str(query.runId) == run_id:
            logger.error("query %s is stopped: %s", query_id, why)
            query.stop()
