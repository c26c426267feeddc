"""Spark's own Kafka source, set up: what is read, from where on, and that nothing is passed by."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, SparkSession

from dedup.errors import ConfigError, DedupWarning
from dedup.sources.kafka.client_options import ClientSettings
from dedup.sources.kafka.clients import admin_client
from dedup.sources.kafka.cluster import Cluster, timeout_s
from dedup.sources.kafka.start import Start, matching, start_options
from dedup.sources.kafka.topic_guard import TopicGuard
from dedup.sources.kafka.topic_ids import Checkpoint, merged, refuse_other_topics
from dedup.sources.kafka.topics import ReadTopic, all_topics, describe

logger = logging.getLogger("dedup")

_PURPOSE = "Reading from Kafka"
#: How long a broker holds a question for records that are not there yet; Kafka's default is 500.
#: Spark's reader asks for offsets after each answer. Behind the last records its consumer has asked
#: for more by then, and the broker answers in turn.
_FETCH_MAX_WAIT_MS = 10
#: Options of Spark's source that others here stand for.
_OURS = {
    "assign": "topics= or pattern= says what is read",
    "endingoffsets": "a batch reads to the newest record",
    "endingoffsetsbytimestamp": "a batch reads to the newest record",
    "endingtimestamp": "a batch reads to the newest record",
    "includeheaders": "headers are always there",
    "kafka.bootstrap.servers": "servers= names them",
    "startingoffsets": "start= says where to begin",
    "startingoffsetsbytimestamp": "start= says where to begin",
    "startingoffsetsbytimestampstrategy": "start= says where to begin",
    "startingtimestamp": "start= says where to begin",
    "subscribe": "topics= or pattern= says what is read",
    "subscribepattern": "topics= or pattern= says what is read",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """What is read, and how.

    Parameters
    ----------
    servers : str
    topics : tuple of str
        Empty where there is a pattern.
    pattern : str or None
    start : Start or None
        None: from the earliest.
    checkpoint : str or None
    options : mapping of str to str
        Of Spark's source.
    settings : ClientSettings
        Of the driver's own client.
    stream : bool
    """

    servers: str
    topics: tuple[str, ...]
    pattern: str | None
    start: Start | None
    checkpoint: str | None
    options: Mapping[str, str]
    settings: ClientSettings
    stream: bool

    def load(self, spark: SparkSession) -> DataFrame:
        """Return Kafka's records as Spark's source gives them, headers among them.

        Raises
        ------
        ConfigError, SourceError
            If something is not as it must be for a start.
        """
        begin = self._begin(spark)
        what = (
            {"subscribe": ",".join(self.topics)}
            if self.pattern is None
            else {"subscribePattern": self.pattern}
        )
        reader = spark.readStream if self.stream else spark.read
        given = {
            # What a producer aborted was never sent.
            "kafka.isolation.level": "read_committed",
            "kafka.fetch.max.wait.ms": str(_FETCH_MAX_WAIT_MS),
            **self.options,
            **what,
            **begin,
            "kafka.bootstrap.servers": self.servers,
            "includeHeaders": "true",
            "failOnDataLoss": "true",
        }
        try:
            return reader.format("kafka").options(**given).load()
        except AnalysisException as error:
            if "Kafka Integration Guide" not in str(error):
                raise
            raise ConfigError(
                "This session lacks Spark's Kafka connector. Start it with the option spark.jars, "
                "dedup.kafka_jars(); or call dedup.add_kafka_connector(spark)."
            ) from None

    def _begin(self, spark: SparkSession) -> dict[str, str]:
        # Tells a silent broker from credentials that it refuses.
        Cluster(self.settings, purpose=_PURPOSE).broker_ids()
        admin, wait_s = admin_client(self.settings, purpose=_PURPOSE), timeout_s(self.settings)
        names = self.topics
        if self.pattern is not None:
            names = matching(self.pattern, all_topics(admin, wait_s))
        checkpoint = None if self.checkpoint is None else Checkpoint(self.checkpoint)
        read = None if checkpoint is None else checkpoint.topics_read()
        noted = {} if checkpoint is None else checkpoint.topic_ids()
        ours = self._ours(read or ())
        now = describe(admin, sorted({*names, *ours}), wait_s)
        if checkpoint is not None:
            refuse_other_topics(noted, now, ours)
        self._refuse_missing(now)
        if checkpoint is not None and self.stream:
            found = merged(noted, now, ours)
            if found != noted:
                checkpoint.note(found)
            spark.streams.addListener(TopicGuard(spark, checkpoint, self.settings))
        if read is not None:
            if self.start is not None:
                warnings.warn(
                    f"start={self.start!r} is ignored: the checkpoint {self.checkpoint} has "
                    "offsets, and the query goes on from them.",
                    DedupWarning,
                    stacklevel=4,
                )
            return {"startingOffsets": "earliest"}
        partitions = {name: one.partitions for name, one in now.items() if one is not None}
        return start_options(self.start or "earliest", partitions, self.settings)

    def _ours(self, read: Sequence[str] | frozenset[str]) -> frozenset[str]:
        """Return the topics of a checkpoint that this source reads; others may read the rest."""
        if self.pattern is None:
            return frozenset(read) & frozenset(self.topics)
        return frozenset(matching(self.pattern, sorted(read)))

    def _refuse_missing(self, now: Mapping[str, ReadTopic | None]) -> None:
        missing = sorted(name for name in self.topics if now[name] is None)
        if missing:
            raise ConfigError(
                f"Topic {missing[0]} does not exist at {self.servers}: create it, or correct "
                "topics=. To read topics that are made later, give pattern=."
            )


def check_options(options: Mapping[str, str]) -> None:
    """Refuse options of Spark's source that others here stand for, or that pass records by.

    Raises
    ------
    ConfigError
        Naming the option.
    """
    for name, value in options.items():
        if name.lower() == "failondataloss" and str(value).lower() != "true":
            raise ConfigError(
                "Option failOnDataLoss cannot be false: records that Kafka deleted before they "
                "were read would be passed by without a word. Leave it out."
            )
        if name.lower() in _OURS:
            raise ConfigError(f"Option {name} cannot be given: {_OURS[name.lower()]}.")
