"""The columns that `kafka_records` returns: the value's own, Kafka's, and the record ID."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

from pyspark.errors import AnalysisException
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812

from dedup.errors import ConfigError
from dedup.sources.kafka.parsed import FIELDS
from dedup.spark.driver.stream_sources import PLACE_IN_KAFKA

#: What Spark's source gives besides the value, in its order.
KAFKA = ("key", "topic", "partition", "offset", "timestamp", "timestampType", "headers")
RECORD_ID = "record_id"
_NO_TIMESTAMP = -1


@dataclass(frozen=True, slots=True)
class Header:
    """The record ID is the value of a header, as bytes: of several of this name, the last's."""

    name: str


@dataclass(frozen=True, slots=True)
class Field:
    """The record ID is a field of the value, such as ``"order.id"``."""

    path: str


#: What `kafka_records` takes as ``record_id``.
RecordId: TypeAlias = Literal["offset", "key"] | Header | Field


def column_names(metadata: str | Mapping[str, str]) -> dict[str, str]:
    """Return the names of Kafka's columns that are wanted, by Kafka's.

    Raises
    ------
    ConfigError
        If there is no such column, or two have the same name.
    """
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


def id_column(records: DataFrame, record_id: RecordId) -> Column:
    """Return the record ID.

    Raises
    ------
    ConfigError
        If there is no such field, or it is no ID of a kind that is known.
    """
    if record_id == "offset":
        return F.concat_ws("-", "topic", F.col("partition"), F.col("offset"))
    if record_id == "key":
        return F.col("key")
    if isinstance(record_id, Header):
        name = record_id.name
        found = F.filter("headers", lambda header: header["key"] == F.lit(name))
        return F.try_element_at(found, F.lit(-1))["value"]
    if not isinstance(record_id, Field):
        raise ConfigError(
            f"record_id={record_id!r} is unknown: give 'offset', 'key', Header(...) or Field(...)."
        )
    if FIELDS not in records.columns:
        raise ConfigError(
            f"record_id={record_id!r} asks for a field, but raw values have none: give value=."
        )
    column = F.col(f"{FIELDS}.{record_id.path}")
    try:
        _ = records.select(column).schema
    except AnalysisException:
        raise ConfigError(
            f"record_id={record_id!r} names no field of the value: it has "
            f"{', '.join(_field_names(records))}."
        ) from None
    return column


def _of_place(made: Column, name: str) -> Column:
    """Return a column that is known, by whatever name, to hold a record's place in Kafka."""
    return made.alias(name, metadata={PLACE_IN_KAFKA: True})


def chosen(records: DataFrame, names: Mapping[str, str], record_id: RecordId | None) -> DataFrame:
    """Return the columns that the user gets.

    Raises
    ------
    ConfigError
        If a field of the value has the name of a column of Kafka's.
    """
    parsed = FIELDS in records.columns
    fields = _field_names(records) if parsed else ["value"]
    wanted = dict(names)
    if record_id is None:
        wanted.pop(RECORD_ID, None)
    _refuse_same([*fields, *wanted.values()], parsed)
    values = [F.col(FIELDS)[name].alias(name) for name in fields] if parsed else []
    columns: list[Column] = []
    for name, given in wanted.items():
        if name == RECORD_ID and record_id is not None:
            made = id_column(records, record_id)
            columns.append(_of_place(made, given) if record_id == "offset" else made.alias(given))
        elif name == "timestamp":
            # Brokers before 0.10 had none, and Spark shows the millisecond before 1970.
            known = F.col("timestampType") != _NO_TIMESTAMP
            columns.append(F.when(known, F.col(name)).alias(given))
        else:
            renamed = name in ("topic", "partition", "offset") and given != name
            columns.append(_of_place(F.col(name), given) if renamed else F.col(name).alias(given))
    if not parsed:
        # As Spark's own source has it.
        values = [F.col("value")]
        return records.select(
            *columns[: _before_value(wanted)], *values, *columns[_before_value(wanted) :]
        )
    return records.select(*values, *columns)


def _before_value(wanted: Mapping[str, str]) -> int:
    return 1 if "key" in wanted else 0


def _field_names(records: DataFrame) -> list[str]:
    return list(records.schema[FIELDS].dataType.names)  # type: ignore[attr-defined]


def _refuse_same(names: Sequence[str], parsed: bool) -> None:
    seen: set[str] = set()
    for name in names:
        if name.lower() in seen:
            whose = "A field of the value and a column of Kafka's" if parsed else "Two columns"
            raise ConfigError(
                f"{whose} would both be named {name!r}: give Kafka's columns other names, such as "
                'metadata="kafka_", or metadata={"topic": "topic", ...} for those that you need.'
            )
        seen.add(name.lower())
