"""Which columns of a stream go into which columns of a table without loss, and how.

Both table formats name their types in a way of their own; here they have the names that Spark's
``simpleString`` gives them.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa

from dedup.errors import ConfigError, DataError
from dedup.sinks.lakehouse.spark_types import spark_type

#: What goes into a wider type without loss, as the columns themselves.
_WIDER = {
    "tinyint": ("smallint", "int", "bigint"),
    "smallint": ("int", "bigint"),
    "int": ("bigint",),
    "float": ("double",),
}
_DECIMAL = re.compile(r"decimal\((\d+),(\d+)\)")
#: Bytes of rows that wait in a task for their file.
CHUNK_BYTES = 128 << 20


class NotWritten(Exception):
    """A type that these sinks do not write."""


@dataclass(frozen=True, slots=True)
class TableColumn:
    """A column of a table.

    Parameters
    ----------
    name : str
    kind : str
        Spark's name of its type.
    arrow : pyarrow.DataType
        As which it is written.
    is_required : bool
        It has a value in every row.
    unsuitable : str
        Why nothing is written to it; empty where something is.
    """

    name: str
    kind: str
    arrow: pa.DataType
    is_required: bool = False
    unsuitable: str = ""


@dataclass(frozen=True, slots=True)
class TableColumns:
    """The columns of a table, and which of them a stream has.

    Parameters
    ----------
    shown : str
        The table, for errors.
    columns : tuple of TableColumn
    given : tuple of str
        Names of the stream's columns, in its order.
    """

    shown: str
    columns: tuple[TableColumn, ...]
    given: tuple[str, ...]

    def rows(self, batch: pa.RecordBatch) -> pa.Table:
        """Return rows of the stream as the table has them, without columns that the stream lacks.

        Raises
        ------
        DataError
            Where a value is missing that the table requires.
        """
        arrays, fields = [], []
        for column in self.columns:
            if column.name not in self.given:
                continue
            values = batch.column(self.given.index(column.name))
            if column.is_required and values.null_count:
                raise DataError(
                    f"Table {self.shown} requires a value in column {column.name!r}, and a record "
                    "has none. Nothing of its micro-batch is in the table. Let the query give it "
                    "one, or leave such records out."
                )
            if pa.types.is_timestamp(values.type) and values.type.tz is not None:
                values = values.cast(pa.timestamp("us", "UTC"))  # the same instants
            arrays.append(values if values.type == column.arrow else values.cast(column.arrow))
            fields.append(pa.field(column.name, column.arrow, not column.is_required))
        return pa.Table.from_arrays(arrays, schema=pa.schema(fields))


def check_names(stream: Sequence[tuple[str, str]]) -> None:
    """Refuse a stream with two columns of one name, for which case does not count.

    Raises
    ------
    ConfigError
        Naming it.
    """
    names = [name.lower() for name, _ in stream]
    for name in names:
        if names.count(name) > 1:
            raise ConfigError(f"The stream has two columns of the name {name!r}: rename one.")


def fitting(
    shown: str, columns: Sequence[TableColumn], stream: Sequence[tuple[str, str]]
) -> TableColumns:
    """Return how a stream's columns go into those of a table, by their names.

    Parameters
    ----------
    shown : str
        The table, for errors.
    columns : sequence of TableColumn
        Of the table.
    stream : sequence of (str, str)
        Of the stream: names and Spark's types.

    Raises
    ------
    ConfigError
        Naming the column that does not fit.
    """
    names = [name for name, _ in stream]
    there = {column.name: column for column in columns}
    for name, kind in stream:
        if name not in there:
            near = [other for other in there if other.lower() == name.lower()]
            hint = f"it has {near[0]!r}" if near else f"it has {', '.join(list(there)[:20])}"
            raise ConfigError(
                f"Table {shown} has no column {name!r}; {hint}. Rename or drop the column of the "
                "stream, or add it to the table."
            )
        why = there[name].unsuitable or _misfit(kind, there[name].kind)
        if why:
            raise ConfigError(f"Column {name!r} does not go into table {shown}: {why}.")
    for column in columns:
        if column.is_required and column.name not in names:
            raise ConfigError(
                f"Column {column.name!r} of table {shown} must have a value, and the stream has no "
                "such column. Add it to the stream."
            )
    return TableColumns(shown, tuple(columns), tuple(names))


def _misfit(kind: str, there: str) -> str:
    """Return why values could be lost or changed, empty where they are not."""
    kind = spark_type(kind).name if spark_type(kind).name == "string" else kind
    if kind == there or there in _WIDER.get(kind, ()):
        return ""
    mine, theirs = _DECIMAL.fullmatch(kind), _DECIMAL.fullmatch(there)
    if mine and theirs:
        digits, scale = int(mine[1]), int(mine[2])
        if int(theirs[2]) >= scale and int(theirs[1]) - int(theirs[2]) >= digits - scale:
            return ""
    return f"it is {kind}, and there {there}"


def parts(
    shown: str, rows: pa.Table, keys: Sequence[pa.Array | pa.ChunkedArray]
) -> Iterator[tuple[tuple[object, ...], pa.Table]]:
    """Yield the rows of each combination of keys, with the combination.

    Parameters
    ----------
    shown : str
        The table, for the error.
    rows : pyarrow.Table
    keys : sequence of array
        A value for each row; without keys there is one part.

    Raises
    ------
    DataError
        Where a key is a time or date that Python has not.
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
            f"to 9999 ({error}). Nothing of its micro-batch is in the table. Let the query give it "
            "another value, or none."
        ) from None
    for group in groups:
        yield tuple(group[name] for name in names), rows.take(pa.array(group["row_list"]))
