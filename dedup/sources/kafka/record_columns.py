"""Selects the columns of `kafka_records`: fields of the value, Kafka's columns, the record ID."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, TypeAlias

from pyspark.errors import AnalysisException
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812

from dedup.errors import ConfigError
from dedup.sources.kafka.decoder import FIELDS, KEY_FIELDS
from dedup.spark.driver.stream_sources import PLACE_IN_KAFKA

#: The columns of Spark's Kafka source without the value, in the order of the source.
KAFKA = ("key", "topic", "partition", "offset", "timestamp", "timestampType", "headers")
RECORD_ID = "record_id"
_NO_TIMESTAMP = -1


@dataclass(frozen=True, slots=True)
class Header:
    """Use the bytes of a header as record ID. If the name occurs twice, the last header counts."""

    name: str


@dataclass(frozen=True, slots=True)
class Field:
    """Use a field of the value as record ID, such as ``"order.id"``."""

    path: str


#: Values of the parameter ``record_id`` of `kafka_records`.
RecordId: TypeAlias = Literal["offset", "key"] | Header | Field


def column_names(metadata: str | Mapping[str, str]) -> dict[str, str]:
    """Return a dict from Kafka's names of the wanted columns to the user's names."""
    if isinstance(metadata, str):
        return {name: metadata + name for name in (*KAFKA, RECORD_ID)}
    for name in metadata:
        if name not in (*KAFKA, RECORD_ID):
            raise ConfigError(
                f"metadata names {name!r}, but a record of Kafka has: {', '.join(KAFKA)}; and "
                f"{RECORD_ID!r}, under record_id=."
            )
    names = {RECORD_ID: RECORD_ID, **metadata}
    return {name: names[name] for name in (*KAFKA, RECORD_ID) if name in names}


def selected(records: DataFrame, names: Mapping[str, str], record_id: RecordId | None) -> DataFrame:
    """Select the columns that the user gets. Raises ConfigError if two have the same name."""
    parsed = FIELDS in records.columns
    fields = _field_names(records) if parsed else ["value"]
    wanted = {n: name for n, name in names.items() if n != RECORD_ID or record_id is not None}
    counts = Counter(name.lower() for name in (*fields, *wanted.values()))
    name, count = counts.most_common(1)[0]
    if count > 1:
        raise ConfigError(
            f"Two columns would both be named {name!r}. Give Kafka's columns other names than the "
            'value\'s fields, such as metadata="kafka_", or metadata={"topic": "topic", ...} for '
            "those that you need."
        )
    columns = [_column(records, n, name, record_id) for n, name in wanted.items()]
    if parsed:
        return records.select(*(F.col(FIELDS)[name].alias(name) for name in fields), *columns)
    # The value comes after the key, as in Spark's own source.
    at = 1 if "key" in wanted else 0
    return records.select(*columns[:at], F.col("value"), *columns[at:])


def _column(records: DataFrame, kafka: str, name: str, record_id: RecordId | None) -> Column:
    if kafka == RECORD_ID and record_id is not None:
        made = _id_column(records, record_id)
        return _of_place(made, name) if record_id == "offset" else made.alias(name)
    if kafka == "key" and KEY_FIELDS in records.columns:
        return F.col(KEY_FIELDS).alias(name)
    if kafka == "timestamp":
        # Brokers before 0.10 had no timestamps. Spark shows one millisecond before 1970 instead.
        return F.when(F.col("timestampType") != _NO_TIMESTAMP, F.col(kafka)).alias(name)
    renamed = kafka in ("topic", "partition", "offset") and name != kafka
    return _of_place(F.col(kafka), name) if renamed else F.col(kafka).alias(name)


def _id_column(records: DataFrame, record_id: RecordId) -> Column:
    if record_id == "offset":
        return F.concat_ws("-", "topic", F.col("partition"), F.col("offset"))
    if record_id == "key":
        return F.col("key")
    if isinstance(record_id, Header):
        name = record_id.name
        headers = F.filter("headers", lambda header: header["key"] == F.lit(name))
        return F.try_element_at(headers, F.lit(-1))["value"]
    if not isinstance(record_id, Field):
        raise ConfigError(
            f"record_id={record_id!r} is unknown. Give 'offset', 'key', Header(...) or Field(...)."
        )
    column = F.col(f"{FIELDS}.{record_id.path}")
    try:
        _ = records.select(column).schema
    except AnalysisException:
        raise ConfigError(
            f"record_id={record_id!r} names no field of the value, which has "
            f"{', '.join(_field_names(records)) or 'none, because it is raw. Give value='}."
        ) from None
    return column


def _of_place(column: Column, name: str) -> Column:
    """Mark a column as a record's position in Kafka, so that the operator recognises it."""
    return column.alias(name, metadata={PLACE_IN_KAFKA: True})


def _field_names(records: DataFrame) -> list[str]:
    if FIELDS not in records.columns:
        return []
    return list(records.schema[FIELDS].dataType.names)  # type: ignore[attr-defined]
