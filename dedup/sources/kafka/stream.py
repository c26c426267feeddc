"""`kafka_records` returns Kafka's records as a DataFrame, read by Spark's own connector."""

from __future__ import annotations

import os
import warnings
from collections.abc import Mapping, Sequence
from typing import Literal, get_args

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from dedup.errors import ConfigError, DedupWarning
from dedup.sources.kafka.client_options import ClientSettings, client_settings
from dedup.sources.kafka.cluster import Cluster
from dedup.sources.kafka.connector import has_connector
from dedup.sources.kafka.decoder import CAUSE
from dedup.sources.kafka.listeners import TopicGuard
from dedup.sources.kafka.poison import OnError, Quarantine, counted, quarantined, refused
from dedup.sources.kafka.record_columns import RecordId, column_names, selected
from dedup.sources.kafka.start import Start, check_start, matching, start_options
from dedup.sources.kafka.topic_ids import Checkpoint
from dedup.sources.kafka.values import ValueFormat, parser, with_key
from dedup.storage.location import FileSystemFactory
from dedup.values.option import choice

#: How long a broker waits for records before it answers a request. Kafka's default is 500. At the
#: end of a partition, Spark's consumer has already asked for more records when Spark asks for
#: offsets. The broker answers in turn, so Spark waits this long.
_FETCH_MAX_WAIT_MS = 10
#: Options of Spark's source that parameters of `kafka_records` replace.
_REPLACED = frozenset({
    "assign", "endingoffsets", "endingoffsetsbytimestamp", "endingtimestamp", "includeheaders",
    "kafka.bootstrap.servers", "startingoffsets", "startingoffsetsbytimestamp",
    "startingoffsetsbytimestampstrategy", "startingtimestamp", "subscribe", "subscribepattern",
})  # fmt: skip


def kafka_records(
    spark: SparkSession,
    servers: str | Sequence[str],
    *,
    topics: str | Sequence[str] | None = None,
    pattern: str | None = None,
    value: ValueFormat = "raw",
    key: ValueFormat = "raw",
    record_id: RecordId | None = None,
    metadata: str | Mapping[str, str] = "",
    tombstones: Literal["keep", "drop"] = "keep",
    start: Start | None = None,
    checkpoint: str | os.PathLike[str] | None = None,
    on_error: OnError = "fail",
    quarantine: str | os.PathLike[str] | FileSystemFactory | None = None,
    metrics: str = "kafka_source",
    options: Mapping[str, str] | None = None,
    client_options: Mapping[str, str] | None = None,
    stream: bool = True,
) -> DataFrame:
    """Return the records of Kafka topics as a DataFrame, read by Spark's own connector.

    Parameters
    ----------
    spark : SparkSession
        A session that was started with the connector's jars.
    servers : str or sequence of str
        Addresses of some brokers, such as ``"host1:9092,host2:9092"``.
    topics : str or sequence of str
        Topics to read. Partitions that are added later are read from their beginning.
    pattern : str
        A regular expression for whole names of topics, instead of `topics`. Topics that appear
        later are read from their beginning.
    value : "raw", `Json`, `Avro`, `ConfluentAvro` or `Decoder`
        The format of the value. ``"raw"`` returns the bytes in a column ``value``. The other
        formats return the value's fields as columns.
    key : "raw", `Json`, `Avro`, `ConfluentAvro` or `Decoder`
        The format of the key. ``"raw"`` returns its bytes. The other formats return the key's
        fields as one struct in the column ``key``, which is null if a record has no key. A record
        whose key does not have the format is a poison record.
    record_id : "offset", "key", `Header` or `Field`, optional
        Add a column ``record_id``, which is the record's position as ``topic-partition-offset``,
        the bytes of its key, a header, or a field of the value.
    metadata : str or mapping of str to str
        Names for Kafka's columns (``key``, ``topic``, ``partition``, ``offset``, ``timestamp``,
        ``timestampType``, ``headers``) and for ``record_id``. Give a prefix for all columns, or a
        mapping with a name for each wanted column.
    tombstones : {"keep", "drop"}
        What happens to tombstones, which are records without a value. ``"keep"`` returns them with
        null in each field. Tombstones are not poison records.
    start : "earliest", "latest", datetime, `FromCheckpoint`, `FromGroup` or `FromOffsets`, optional
        Where a new query begins. Default: ``"earliest"``. A datetime means the first record at or
        after that time, or the end of a partition without later records. If the checkpoint has
        offsets, the query ignores `start`, and warns if you gave `checkpoint`.
    checkpoint : str or path, optional
        The query's ``checkpointLocation``. If you give it, the topics' IDs are kept in the
        checkpoint, and a topic that was deleted and created again is refused.
    on_error : {"fail", "skip", "quarantine"}
        What happens to poison records, whose value or key does not have its format. ``"fail"``:
        the first poison record stops the query with an error that names the record. ``"skip"``:
        they are left out and counted. ``"quarantine"``: each is stored once, left out and counted.
    quarantine : str, path or callable, optional
        Folder for ``on_error="quarantine"``, in any form that `dedup_by_id` takes as `catalog`. A
        path must be the same mount on every machine of the cluster.
    metrics : str
        Name of the observation that `poison_counts` reads. It must be unique in a query.
    options : mapping of str to str, optional
        Further options of Spark's source, such as ``maxOffsetsPerTrigger``, and of its clients
        (``kafka.security.protocol``, ...). Records of aborted transactions are not read unless
        ``kafka.isolation.level`` is set.
    client_options : mapping of str to str, optional
        Options ``kafka.*`` for the driver's own client. Use them if `options` name files that only
        Java can read.
    stream : bool
        Whether to return a stream. False returns a batch of all records that Kafka has now.

    Returns
    -------
    DataFrame
        For raw values, the columns of Spark's source, with headers. For other formats, the value's
        fields and then Kafka's columns.

    Raises
    ------
    ConfigError
        If an option cannot work, no broker answers, a topic does not exist, or two columns would
        have one name.
    SourceError
        If the schema registry does not answer, or a topic was deleted and created again.
    MissingExtraError
        If confluent-kafka or fastavro is not installed.

    Notes
    -----
    ``failOnDataLoss`` stays true. ``kafka.fetch.max.wait.ms`` is 10 unless `options` sets it.
    With Kafka's default, the reader would wait 500 ms at the end of each partition.

    Give `dedup_by_id` the options ``timestamp="timestamp"`` and
    ``source_partition=["topic", "partition"]``, so that each partition has its own clock.
    """
    if (topics is None) == (pattern is None) or pattern == "":
        raise ConfigError("Give topics= or pattern=, one of them: what is read.")
    source_options = dict(options or {})
    names = column_names(metadata)
    _check_options(source_options)
    choice(*get_args(OnError)).check(on_error, "on_error")
    choice("keep", "drop").check(tombstones, "tombstones")
    if (on_error == "quarantine") != (quarantine is not None):
        raise ConfigError(
            'on_error="quarantine" needs quarantine=, its folder, and the reverse. Give both or '
            "neither."
        )
    if start is not None:
        check_start(start)
    joined = servers if isinstance(servers, str) else ",".join(servers)
    texts = [topics] if isinstance(topics, str) else topics or ()
    listed = tuple(name.strip() for text in texts for name in text.split(","))
    own = dict(source_options if client_options is None else client_options)
    settings = client_settings(own | {"kafka.bootstrap.servers": joined})
    # The format is checked before the checkpoint stores anything.
    parse = parser(spark, value, listed)
    if (parse_key := parser(spark, key, listed, "key")) is not None:
        parse = with_key(parse_key, parse)
    folder = None if quarantine is None else Quarantine(quarantine)
    if folder is not None:
        folder.check()
    where = None if checkpoint is None else Checkpoint(os.fspath(checkpoint))
    begin = _begin(spark, settings, listed, pattern, start, where, stream=stream)
    what = {"subscribe": ",".join(listed)} if pattern is None else {"subscribePattern": pattern}
    if not has_connector(spark):
        raise ConfigError(
            "This session lacks Spark's Kafka connector. Start it with the option spark.jars, "
            "kafka_jars() of dedup.sources.kafka, or call its add_kafka_connector(spark)."
        )
    reader = spark.readStream if stream else spark.read
    reader = reader.format("kafka").options(
        **{
            # Skip records of transactions that a producer aborted.
            "kafka.isolation.level": "read_committed",
            "kafka.fetch.max.wait.ms": str(_FETCH_MAX_WAIT_MS),
            **source_options,
            **what,
            **begin,
            "kafka.bootstrap.servers": joined,
            "includeHeaders": "true",
            "failOnDataLoss": "true",
        }
    )
    records = reader.load()
    if tombstones == "drop":
        records = records.where(F.col("value").isNotNull())
    if parse is not None:
        # In the JVM, Arrow takes 20 us for a null list. Spark's source has no empty lists.
        records = parse(records.withColumn("headers", F.coalesce("headers", F.array())))
        headers = F.when(F.size("headers") > 0, F.col("headers"))
        records = counted(records.withColumn("headers", headers), metrics)
        if folder is not None:
            records = quarantined(records, folder)
        elif on_error == "fail":
            records = refused(records)
        else:
            records = records.where(F.col(CAUSE).isNull())
    return selected(records, names, record_id)


def _begin(
    spark: SparkSession,
    settings: ClientSettings,
    topics: tuple[str, ...],
    pattern: str | None,
    start: Start | None,
    checkpoint: Checkpoint | None,
    *,
    stream: bool,
) -> dict[str, str]:
    """Check the topics, and return the options of Spark's source that say where to begin."""
    cluster = Cluster(settings, purpose="Reading from Kafka")
    cluster.broker_ids()  # its error names rejected credentials
    names = topics if pattern is None else matching(pattern, cluster.topic_names())
    read = None if checkpoint is None else checkpoint.topics_read()
    # Other sources may read the remaining topics of a checkpoint.
    ours = {*topics} & (read or set()) if pattern is None else {*matching(pattern, read or ())}
    by_name = cluster.topics(sorted({*names, *ours}))
    if checkpoint is not None:
        checkpoint.compare(by_name, ours, store=stream)
    for name in topics:
        if by_name[name] is None:
            raise ConfigError(
                f"Topic {name} does not exist at {settings.servers}. Create it, or correct "
                "topics=. To read topics that are created later, give pattern=."
            )
    if checkpoint is not None and stream:
        spark.streams.addListener(TopicGuard(spark, checkpoint, settings))
    if checkpoint is not None and read is not None:
        if start is not None:
            warnings.warn(
                f"start={start!r} is ignored: the checkpoint {checkpoint.url} has offsets, and the "
                "query continues from them.",
                DedupWarning,
                stacklevel=3,
            )
        return {"startingOffsets": "earliest"}
    existing = {name: topic for name, topic in by_name.items() if topic is not None}
    return start_options(start or "earliest", existing, cluster)


def _check_options(options: Mapping[str, str]) -> None:
    """Refuse options of Spark's source that a parameter replaces, or that lose records."""
    for name, value in options.items():
        if name.lower() == "failondataloss" and str(value).lower() != "true":
            raise ConfigError(
                "Option failOnDataLoss cannot be false: Spark would silently skip records that "
                "Kafka deleted before they were read. Leave it out."
            )
        if name.lower() in _REPLACED:
            raise ConfigError(
                f"Option {name} cannot be given: kafka_records sets it, from topics=, pattern=, "
                "servers=, start= and stream=. Leave it out."
            )
