"""`kafka_records`: the source as users see it."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql import types as T  # noqa: N812
from pyspark.sql.pandas.types import from_arrow_type

from dedup.catalog.location import FileSystemFactory
from dedup.errors import ConfigError
from dedup.errors.cause import spark_cause
from dedup.sources.kafka import json_rows
from dedup.sources.kafka.client_options import client_settings
from dedup.sources.kafka.parsed import CAUSE, FIELDS
from dedup.sources.kafka.poison import ON_ERROR, OnError, counted, quarantined, refused
from dedup.sources.kafka.quarantine import Quarantine
from dedup.sources.kafka.reader import Reading, check_options
from dedup.sources.kafka.record_columns import RecordId, chosen, column_names
from dedup.sources.kafka.start import Start, check_start
from dedup.sources.kafka.value_formats import Avro, ConfluentAvro, Json, ValueFormat
from dedup.spark.driver import strict_json
from dedup.spark.driver.shipping import shipped


def kafka_records(
    spark: SparkSession,
    servers: str | Sequence[str],
    *,
    topics: str | Sequence[str] | None = None,
    pattern: str | None = None,
    value: ValueFormat = "raw",
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
        Started with the connector's jars.
    servers : str or sequence of str
        Addresses of some brokers, such as ``"host1:9092,host2:9092"``.
    topics : str or sequence of str
        What to read. Partitions that are added later are read from their beginning.
    pattern : str
        In place of `topics`, a regular expression for whole names. Topics that appear later are
        read from their beginning.
    value : "raw", `Json`, `Avro` or `ConfluentAvro`
        What the value holds. ``"raw"``: bytes, as a column ``value``. Else its fields become
        columns.
    record_id : "offset", "key", `Header` or `Field`, optional
        Add a column ``record_id``: the record's place as ``topic-partition-offset``, its key, a
        header, or a field of the value.
    metadata : str or mapping of str to str
        Names of Kafka's columns (``key``, ``topic``, ``partition``, ``offset``, ``timestamp``,
        ``timestampType``, ``headers``) and of ``record_id``: a prefix for all of them, or the name
        of each that is wanted; those that a mapping leaves out are left out.
    tombstones : {"keep", "drop"}
        What becomes of records without a value. They are no poison records: ``"keep"`` gives them
        with null in each field.
    start : "earliest", "latest", datetime, `FromGroup` or `FromOffsets`, optional
        Where a query without offsets begins. Default: ``"earliest"``. A datetime: at the first
        record that is not older, in partitions that have none at the next that comes. A checkpoint
        with offsets makes it void, which a DedupWarning says where `checkpoint` is given.
    checkpoint : str or path, optional
        The query's ``checkpointLocation``. With it, the IDs of the topics are kept there, and a
        topic that was deleted and made again is refused.
    on_error : {"fail", "skip", "quarantine"}
        What becomes of poison records, whose value cannot be read as `value` says. ``"fail"``: the
        first stops the query, and is named with its place. ``"skip"``: they are left out and
        counted. ``"quarantine"``: they are set aside, each once, then left out and counted.
    quarantine : str, path or callable, optional
        Folder for ``on_error="quarantine"``: whatever `dedup_by_id` takes as its catalog. A path is
        the same mount on every machine of the cluster.
    metrics : str
        Name under which the records are observed; `poison_counts` reads it. Unique in a query.
    options : mapping of str to str, optional
        Further options of Spark's source, such as ``maxOffsetsPerTrigger``, and of its clients
        (``kafka.security.protocol``, ...). Records of aborted transactions are not read, unless
        ``kafka.isolation.level`` says so.
    client_options : mapping of str to str, optional
        Options ``kafka.*`` for the driver's own client, in place of those in `options`, where these
        name what only Java can read.
    stream : bool
        False: a batch of all that is there now.

    Returns
    -------
    DataFrame
        Raw: the columns of Spark's source, with headers. Else the value's fields, then Kafka's
        columns.

    Raises
    ------
    ConfigError
        If an option cannot work, a topic does not exist, or a name is taken twice.
    SourceError
        If Kafka or the schema registry does not answer, or a topic was made anew.
    MissingExtraError
        If confluent-kafka or fastavro is not installed.

    Notes
    -----
    ``failOnDataLoss`` stays true. ``kafka.fetch.max.wait.ms`` is 10 unless `options` says
    otherwise: Kafka's 500 would be waited out at the end of each partition.

    For `dedup_by_id`: ``timestamp="timestamp"`` and
    ``source_partition=["topic", "partition"]``, so that each partition has a clock of its own.
    """
    if (topics is None) == (pattern is None) or pattern == "":
        raise ConfigError("Give topics= or pattern=, one of them: what is read.")
    given = dict(options or {})
    check_options(given)
    names = column_names(metadata)
    _check_errors(value, on_error, quarantine)
    if tombstones not in ("keep", "drop"):
        raise ConfigError(f"tombstones={tombstones!r} is unknown: give 'keep' or 'drop'.")
    if start is not None:
        check_start(start)
    joined = servers if isinstance(servers, str) else ",".join(servers)
    named = _several(topics)
    own = {**(given if client_options is None else client_options)}
    own["kafka.bootstrap.servers"] = joined
    # What a format needs is asked before anything is noted in the checkpoint.
    decode = _decoder(spark, value, named)
    kept = None if quarantine is None else Quarantine(quarantine)
    if kept is not None:
        kept.check()
    records = Reading(
        servers=joined,
        topics=named,
        pattern=pattern,
        start=start,
        checkpoint=None if checkpoint is None else os.fspath(checkpoint),
        options=given,
        settings=client_settings(own),
        stream=stream,
    ).load(spark)
    if tombstones == "drop":
        records = records.where(F.col("value").isNotNull())
    if decode is not None:
        records = _without_poison(counted(decode(records), metrics), on_error, kept)
    return chosen(records, names, record_id)


def _several(topics: str | Sequence[str] | None) -> tuple[str, ...]:
    given = [topics] if isinstance(topics, str) else list(topics or ())
    names = tuple(name.strip() for text in given for name in text.split(","))
    if topics is not None and not (names and all(names)):
        raise ConfigError("topics= holds an empty name: give the topics' names.")
    return names


def _check_errors(value: ValueFormat, on_error: str, quarantine: object) -> None:
    if on_error not in ON_ERROR:
        raise ConfigError(
            f"on_error={on_error!r} is unknown: give one of {', '.join(map(repr, ON_ERROR))}."
        )
    if (on_error == "quarantine") != (quarantine is not None):
        raise ConfigError(
            'on_error="quarantine" and quarantine=, the folder, go together: give both or neither.'
        )
    if value == "raw" and on_error != "fail":
        raise ConfigError("Raw values are never poison: leave on_error= out, or give value=.")


def _decoder(spark: SparkSession, value: ValueFormat, topics: tuple[str, ...]) -> Any:
    """Return what adds `FIELDS` and `CAUSE` to records, None for raw values."""
    if isinstance(value, Json):
        strict_json.check_options(value.options, json_rows.FIXED, "Option {}")
        schema, settings = _schema(spark, value.schema), value.options
        return lambda records: json_rows.parse_json(records, schema, settings)
    if isinstance(value, (Avro, ConfluentAvro)):
        decoder = value.decoder(topics)
        fields = from_arrow_type(decoder.schema.type, prefer_timestamp_ntz=True)
        load = shipped(decoder)

        def decode(batches: Any) -> Any:
            return load().batches(batches)

        def parse_avro(records: DataFrame) -> DataFrame:
            added = [T.StructField(FIELDS, fields), T.StructField(CAUSE, T.StringType())]
            schema = T.StructType([*records.schema.fields, *added])
            return records.mapInArrow(decode, schema)

        return parse_avro
    if value != "raw":
        raise ConfigError(
            f"value={value!r} is unknown: give 'raw', Json(...), Avro(...) or ConfluentAvro(...)."
        )
    return None


def _schema(spark: SparkSession, schema: str | T.StructType) -> T.StructType:
    if isinstance(schema, T.StructType):
        return schema
    try:
        return spark.createDataFrame([], schema).schema
    except Exception as error:  # Spark has many for a text that it cannot parse
        raise ConfigError(
            f"The schema {schema!r} of Json cannot be used: {spark_cause(str(error))}"
        ) from None


def _without_poison(
    records: DataFrame, on_error: OnError, quarantine: Quarantine | None
) -> DataFrame:
    if quarantine is not None:
        return quarantined(records, quarantine)
    return refused(records) if on_error == "fail" else records.where(F.col(CAUSE).isNull())
