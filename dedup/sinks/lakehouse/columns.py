"""Which columns of a stream go into which columns of a table without loss, and how.

Both table formats have their own names for types. Here all types have Spark's names
(``simpleString``).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa

from dedup.errors import ConfigError, DataError

#: Types that go into a wider one without loss.
_WIDER = {
    "tinyint": ("smallint", "int", "bigint"),
    "smallint": ("int", "bigint"),
    "int": ("bigint",),
    "float": ("double",),
}
_ARROW: dict[str, pa.DataType] = {
    "boolean": pa.bool_(),
    "tinyint": pa.int8(),
    "smallint": pa.int16(),
    "int": pa.int32(),
    "bigint": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "string": pa.string(),
    "binary": pa.binary(),
    "date": pa.date32(),
    "timestamp": pa.timestamp("us", "UTC"),
    "timestamp_ntz": pa.timestamp("us"),
}
_LARGE = {"string": pa.large_string(), "binary": pa.large_binary()}
DECIMAL = re.compile(r"decimal\((\d+),(\d+)\)")
_TEXT = re.compile(r"string collate \w+|(?:var)?char\(\d+\)")
#: Bytes of rows that a task collects for one file.
CHUNK_BYTES = 128 << 20


class NotWritten(Exception):
    """A type that these sinks do not write."""


@dataclass(frozen=True, slots=True)
class SparkType:
    """A type of Spark.

    `name` is ``array``, ``map``, ``struct``, or a scalar such as ``bigint`` or ``decimal(9,2)``.
    `inner` holds the fields of a structure, the element of an array, or key and value of a map.
    """

    name: str
    inner: tuple[tuple[str, SparkType], ...] = ()

    def __str__(self) -> str:
        """Return Spark's ``simpleString``."""
        if self.name not in ("array", "map", "struct"):
            return self.name
        is_struct = self.name == "struct"
        inner = (f"{name}:{kind}" if is_struct else str(kind) for name, kind in self.inner)
        return f"{self.name}<{','.join(inner)}>"

    def arrow(self, *, large: bool = False) -> pa.DataType:
        """Return the Arrow type, with 64-bit offsets if `large`, or raise NotWritten."""
        if found := DECIMAL.fullmatch(self.name):
            return pa.decimal128(int(found[1]), int(found[2]))
        kinds = [kind.arrow(large=large) for _, kind in self.inner]
        if self.name == "array":
            return (pa.large_list if large else pa.list_)(pa.field("element", kinds[0]))
        if self.name == "map":
            return pa.map_(*kinds)
        if self.name == "struct":
            return pa.struct([(n, kind) for (n, _), kind in zip(self.inner, kinds, strict=True)])
        known = _ARROW | _LARGE if large else _ARROW
        if self.name not in known:
            raise NotWritten(self.name)
        return known[self.name]


def spark_type(text: str) -> SparkType:
    """Return the type of a ``simpleString``, or a scalar of this name if it is not understood."""
    if text.endswith(">"):
        name, _, rest = text[:-1].partition("<")
        parts = _split(rest)
        if name == "array" and len(parts) == 1:
            return SparkType(name, (("element", spark_type(parts[0])),))
        if name == "map" and len(parts) == 2:
            return SparkType(name, (("key", spark_type(parts[0])), ("value", spark_type(parts[1]))))
        if name == "struct":
            fields = [part.partition(":")[::2] for part in parts]
            return SparkType(name, tuple((field, spark_type(kind)) for field, kind in fields))
    return SparkType("string" if _TEXT.fullmatch(text) else text)


def _split(text: str) -> list[str]:
    """Split a text at commas outside brackets."""
    parts, depth, begin = [], 0, 0
    for place, letter in enumerate(text):
        if letter in "<(":
            depth += 1
        elif letter in ">)":
            depth -= 1
        elif letter == "," and not depth:
            parts.append(text[begin:place])
            begin = place + 1
    return [*parts, text[begin:]] if text else []


@dataclass(frozen=True, slots=True)
class TableColumn:
    """A column of a table; `unsuitable` is the reason why the sink cannot write to it, or empty."""

    name: str
    kind: str
    arrow: pa.DataType
    is_required: bool
    unsuitable: str = ""


def table_column(
    name: str, kind_of: Callable[[], SparkType], is_required: bool, *, large: bool = False
) -> TableColumn:
    """Return a column of a type that `kind_of` determines, unless it raises NotWritten."""
    try:
        kind = kind_of()
        return TableColumn(name, str(kind), kind.arrow(large=large), is_required)
    except NotWritten as error:
        return TableColumn(name, str(error), pa.null(), is_required, f"its type there is {error}")


@dataclass(frozen=True, slots=True)
class TableColumns:
    """The columns of a table, and the names of the stream's columns in their order."""

    shown: str
    columns: tuple[TableColumn, ...]
    given: tuple[str, ...]

    def rows(self, batch: pa.RecordBatch) -> pa.Table:
        """Return rows of the stream in the table's types, without columns that the stream lacks.

        Raises DataError if a value is missing that the table requires.
        """
        arrays, fields = [], []
        for column in self.columns:
            if column.name not in self.given:
                continue
            values = batch.column(self.given.index(column.name))
            if column.is_required and values.null_count:
                raise DataError(
                    f"Table {self.shown} requires a value in column {column.name!r}, and a record "
                    "has none. Nothing of its micro-batch is in the table. Give it a value in the "
                    "query, or leave such records out."
                )
            if pa.types.is_timestamp(values.type) and values.type.tz is not None:
                values = values.cast(pa.timestamp("us", "UTC"))  # the same instants
            arrays.append(values.cast(column.arrow))
            fields.append(pa.field(column.name, column.arrow, not column.is_required))
        return pa.Table.from_arrays(arrays, schema=pa.schema(fields))


def check_names(stream: Sequence[tuple[str, str]]) -> None:
    """Reject a stream with two columns of one name, regardless of case."""
    names = [name.lower() for name, _ in stream]
    for name in names:
        if names.count(name) > 1:
            raise ConfigError(f"The stream has two columns of the name {name!r}: rename one.")


def fit_columns(
    shown: str, columns: Sequence[TableColumn], stream: Sequence[tuple[str, str]]
) -> TableColumns:
    """Return how a stream's columns, as names and Spark types, go into a table, by their names.

    Raises ConfigError if a column does not fit.
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
    """Return why values could be lost or changed, or an empty text."""
    kind = "string" if spark_type(kind).name == "string" else kind
    if kind == there or there in _WIDER.get(kind, ()):
        return ""
    mine, theirs = DECIMAL.fullmatch(kind), DECIMAL.fullmatch(there)
    if mine and theirs:
        digits, scale = int(mine[1]), int(mine[2])
        if int(theirs[2]) >= scale and int(theirs[1]) - int(theirs[2]) >= digits - scale:
            return ""
    return f"it is {kind}, and there {there}"


def split_rows(
    shown: str, rows: pa.Table, keys: Sequence[pa.Array | pa.ChunkedArray]
) -> Iterator[tuple[tuple[object, ...], pa.Table]]:
    """Yield the rows of each partition, after the partition's values.

    Each of `keys` has a value for each row; without keys there is one partition. Raises DataError
    if a key is a time or date outside Python's calendar.
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
