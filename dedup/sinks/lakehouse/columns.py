"""Fit the columns of a stream to the columns of a table, so that no value is lost or changed.

The libraries delta-rs and pyiceberg describe tables by Arrow types. Errors and rules use Spark's
names of types (``simpleString``).
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from pyspark.sql import types as T  # noqa: N812

from dedup.errors import ConfigError, DataError
from dedup.sinks.columns import check_names, decimal_size
from dedup.sinks.foreach_batch import columns_of
from dedup.sources.files.bypass import PLAIN, LeftToSpark, arrow_schema, text_types

#: Spark types, each with the wider types that hold all of its values.
_WIDER = {
    "tinyint": ("smallint", "int", "bigint"),
    "smallint": ("int", "bigint"),
    "int": ("bigint",),
    "float": ("double",),
}
#: Spark types, keyed by the Arrow types that describe a table's columns.
_SPARK = {
    **{arrow: kind().simpleString() for kind, arrow in PLAIN.items()},
    pa.string(): "string",
    pa.large_string(): "string",
    pa.large_binary(): "binary",
    pa.timestamp("us", "UTC"): "timestamp",
}
#: Size in bytes of the rows that a task collects before it writes a file.
CHUNK_BYTES = 128 << 20


def spark_name(arrow: pa.DataType) -> str:
    """Return Spark's name for an Arrow type, or Arrow's name if the sinks do not write the type."""
    if pa.types.is_map(arrow):
        return f"map<{spark_name(arrow.key_type)},{_nested(arrow.item_field)}>"
    if pa.types.is_list(arrow) or pa.types.is_large_list(arrow):
        return f"array<{_nested(arrow.value_field)}>"
    if pa.types.is_struct(arrow):
        return f"struct<{','.join(f'{field.name}:{_nested(field)}' for field in arrow)}>"
    if pa.types.is_decimal128(arrow):
        return f"decimal({arrow.precision},{arrow.scale})"
    return _SPARK.get(arrow, str(arrow))


def _nested(field: pa.Field) -> str:
    # The sinks do not check nested values, so no stream fits a type that requires them.
    return spark_name(field.type) + ("" if field.nullable else " not null")


def new_columns(stream: T.StructType) -> pa.Schema:
    """Return the columns of a new table. They may be null at every depth."""

    def nullable(each: dict[str, Any]) -> dict[str, Any]:
        marks = ("nullable", "containsNull", "valueContainsNull")
        return each | {name: True for name in marks if name in each}

    fields = json.loads(text_types(stream).json(), object_hook=nullable)
    try:
        return arrow_schema(T.StructType.fromJson(fields), "UTC")
    except LeftToSpark as error:
        raise ConfigError(
            f"The table cannot be created: {error}, which this sink does not write. Cast it to "
            "another type."
        ) from None


@dataclass(frozen=True, slots=True)
class TableColumns:
    """The columns of a table, and the names of the stream's columns in the stream's order."""

    shown: str
    columns: pa.Schema
    given: tuple[str, ...]

    def rows(self, batch: pa.RecordBatch) -> pa.Table:
        """Convert rows of the stream to the table's types, and put columns in the table's order."""
        fields = [column for column in self.columns if column.name in self.given]
        for column in fields:
            if not column.nullable and batch.column(column.name).null_count:
                raise DataError(
                    f"Table {self.shown} requires a value in column {column.name!r}, and a record "
                    "has none. Nothing of its micro-batch is in the table. Give it a value in the "
                    "query, or leave such records out."
                )
        rows = pa.Table.from_batches([batch]).select([column.name for column in fields])
        return rows.cast(pa.schema(fields))


def fit_columns(
    shown: str, columns: Sequence[pa.Field], stream: T.StructType, unsuitable: Mapping[str, str]
) -> TableColumns:
    """Match a stream's columns with a table's columns of the same name, and check the types.

    `unsuitable` maps columns of the table to the reasons why the sink cannot write to them. Raises
    ConfigError if a column does not fit.
    """
    by_name = {column.name: column for column in columns}
    names = stream.fieldNames()
    check_names(shown, {column.name: not column.nullable for column in columns}, names)
    for name, kind in columns_of(text_types(stream)):
        if why := unsuitable.get(name) or _misfit(kind, by_name[name].type):
            raise ConfigError(f"Column {name!r} does not go into table {shown}: {why}.")
    return TableColumns(shown, pa.schema(list(by_name.values())), tuple(names))


def _misfit(kind: str, arrow: pa.DataType) -> str:
    target = spark_name(arrow)
    if kind == target or target in _WIDER.get(kind, ()):
        return ""
    mine, theirs = decimal_size(kind), decimal_size(target)
    if mine and theirs and theirs[1] >= mine[1] and theirs[0] - theirs[1] >= mine[0] - mine[1]:
        return ""
    return f"it is {kind}, and there {target}"


def split_rows(
    shown: str, rows: pa.Table, keys: Sequence[pa.Array | pa.ChunkedArray]
) -> Iterator[tuple[tuple[object, ...], pa.Table]]:
    """Divide rows into the table's partitions. Yield each partition's key values and rows.

    Each array in `keys` has one value per row. If `keys` is empty, all rows are in one partition.
    Raises DataError if a key is a time or date outside Python's calendar.
    """
    if not keys:
        yield (), rows
        return
    names = [f"key{number}" for number in range(len(keys))]
    numbered = pa.table([*keys, pa.array(range(len(rows)), pa.int64())], [*names, "row"])
    grouped = numbered.group_by(names).aggregate([("row", "list")])
    try:
        groups = grouped.to_pylist()
    except OverflowError as error:
        raise DataError(
            f"Table {shown} is divided by a time or date, and a record has one beyond the years 1 "
            f"to 9999 ({error}). Nothing of its micro-batch is in the table. Give it another value "
            "in the query, or none."
        ) from None
    for group in groups:
        yield tuple(group[name] for name in names), rows.take(pa.array(group["row_list"]))
