"""Record IDs as Spark expressions, made of a DataFrame's columns without a pass through Python."""

from __future__ import annotations

from dataclasses import dataclass
from functools import reduce
from operator import and_, or_
from typing import TypeAlias

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql import types as T  # noqa: N812

from dedup.errors import ConfigError
from dedup.sources.record_id.canonical import ID_BYTES, VERSION
from dedup.spark.driver.derived_id import DerivedId

ColumnOrName: TypeAlias = str | Column

#: Of the ID's column, where nobody gives it another.
NAME = "record_id"

_EXACT = (T.ByteType, T.ShortType, T.IntegerType, T.LongType)
_FLOATING = (T.FloatType, T.DoubleType)
_AS_TEXT = {T.DateType: "d", T.TimestampNTZType: "l"}
#: Decimal digits as they are, none too many; a cast depends on the session's settings.
_DIGITS = "0." + "#" * 38
_BYTE_ORDER_FREE = ("UTF8_BINARY", None)


@dataclass(frozen=True, slots=True, eq=False)
class IdRecipe(DerivedId):
    """How a record ID is made of a record's columns.

    `dedup_by_id` takes it as `id`. Alone: ``events.withColumn("id", recipe.of(events))``.

    Parameters
    ----------
    columns : tuple of str or Column
    is_text : bool
        The columns' own texts with ``-`` between, not a hash.
    is_place : bool
        Null where any column is: half of a place would be one ID for many records.
    """

    columns: tuple[ColumnOrName, ...]
    is_text: bool = False
    is_place: bool = False

    def of(self, df: DataFrame) -> Column:
        """Return the ID as a column of the DataFrame; null where all of its columns are.

        Under the name ``record_id``, where it is given no other.

        Raises
        ------
        ConfigError
            If there is no such column, or it has a type whose values have no canonical form.
        """
        columns = self.chosen(df)
        try:
            fields = df.select(*columns).schema.fields
        except Exception as error:
            first = str(error).strip().partition("\n")[0]
            raise ConfigError(
                f"The record ID cannot be made of the columns {df.columns}: {first}"
            ) from error
        if len(fields) != len(columns):
            raise ConfigError(
                f"The record ID names {len(columns)} columns, which are {len(fields)}; name each."
            )
        if self.is_text:
            start, *others = columns
            dashed = F.concat(start, *(part for c in others for part in (F.lit("-"), c)))
            return dashed.alias(NAME)
        texts = [_text(c, f.dataType, f.name) for c, f in zip(columns, fields, strict=True)]
        hashed = F.unhex(F.sha2(F.concat(*texts), 256))
        known = reduce(and_ if self.is_place else or_, (c.isNotNull() for c in columns))
        return F.when(known, F.substring(hashed, 1, ID_BYTES)).alias(NAME)

    def chosen(self, df: DataFrame) -> list[Column]:
        """Return the columns as Spark takes them: a name with a dot may be that of a column."""
        return [
            given
            if isinstance(given, Column)
            else F.col("`" + given.replace("`", "``") + "`" if given in df.columns else given)
            for given in self.columns
        ]

    @property
    def name(self) -> str:
        """What the birth certificate calls it."""
        return f"{NAME} text" if self.is_text else f"{NAME} {VERSION}"


def from_columns(*columns: ColumnOrName) -> IdRecipe:
    """A record ID that is the hash of what columns hold: equal content is one record.

    Parameters
    ----------
    *columns : str or Column
        Columns, fields of columns (``"order.id"``) or expressions; their order counts, their
        names do not. Boolean, integer, decimal, float, double, string, binary, date, timestamp
        with and without a zone, arrays and structs of these.

    Returns
    -------
    IdRecipe
        Of 16 bytes: the first half of the SHA-256 of the values' canonical text. Null where every
        column is null.

    Raises
    ------
    ConfigError
        If no column is given, or something else than a column.

    Notes
    -----
    Two records that are meant to be two, and are equal in these columns, are one to the operator:
    choose columns that tell apart what shall go on, such as a time, a device and its counter.

    The bytes depend on neither Spark's release, its settings, the time zone nor the division
    of rows, and `of_values` makes them without Spark. Numbers count by value: 1 as int, bigint
    and decimal(10,2) is one value, as a double it is another. NaN equals NaN, and 0.0 equals -0.0.
    A reader that makes a float or double of a text rounds it, so two texts may have one ID: read
    such columns as decimal or string.

    With n live records, two have the same ID by chance with a probability of n² / 2**129: for
    10**12 records 1.5e-15.
    """
    if not columns:
        raise ConfigError("from_columns() names no column.")
    return _recipe(columns)


def from_kafka(
    topic: ColumnOrName = "topic",
    partition: ColumnOrName = "partition",
    offset: ColumnOrName = "offset",
) -> IdRecipe:
    """A record ID that is the record's place in Kafka, as text: ``orders-3-1234567``.

    Parameters
    ----------
    topic, partition, offset : str or Column
        Where they are; by default as Spark's Kafka source names them.

    Notes
    -----
    It catches records that are *read* twice: a checkpoint that was lost or put back, two streams
    over one topic. It does not catch what is *written* twice: a producer's retry has an offset of
    its own. A topic that was deleted and made again gives old places to new records, which are then
    dropped within the horizon (`dedup.kafka_records` with `checkpoint` refuses such a topic).
    It does not name the cluster: over a union of two, add a column that does to the ID.
    """
    return _recipe((topic, partition, offset), is_text=True, is_place=True)


def from_file(
    path: ColumnOrName = "_metadata.file_path", position: ColumnOrName = "_metadata.row_index"
) -> IdRecipe:
    """A record ID that is the hash of a record's file and its row or line there.

    By default for Parquet. For lines: ``from_file("file", "line")`` of `read_lines`.

    Parameters
    ----------
    path : str or Column
        The file. ``file:/`` and ``file:///`` are one, so are ``s3:``, ``s3a:`` and ``s3n:``.
    position : str or Column
        Row or line in it.

    Notes
    -----
    It catches files that are *read* twice. It does not catch the same records in a file of another
    name or folder. A file that is written again under its old name gives old places to
    new records, which are then dropped within the horizon; where that happens, make the time of
    writing a part: ``id=[from_file(), "_metadata.file_modification_time"]``.

    If the data has a column `_metadata` of its own, Spark's has that name only here:
    ``df.metadataColumn("_metadata")["file_path"]``.
    """
    uri = F.regexp_replace(path, "^file:/+", "file:///")
    return _recipe((F.regexp_replace(uri, "^s3[an]:", "s3:"), position), is_place=True)


def _recipe(
    columns: tuple[ColumnOrName, ...], *, is_text: bool = False, is_place: bool = False
) -> IdRecipe:
    for given in columns:
        if not isinstance(given, (str, Column)):
            raise ConfigError(
                f"{given!r} is neither a column name nor a Column (it is a {type(given).__name__})."
            )
    return IdRecipe(columns, is_text, is_place)


def _text(value: Column, kind: T.DataType, name: str) -> Column:
    """The canonical text of a value, as `dedup.sources.record_id.canonical` says; never null."""
    if isinstance(kind, T.BooleanType):
        text = F.when(value, "T").otherwise("F")
    elif isinstance(kind, T.StringType):
        _check_collation(kind, name)
        text = F.concat(F.lit("s"), F.octet_length(value).cast("string"), F.lit(":"), value)
    elif isinstance(kind, T.ArrayType):
        inner = kind.elementType
        texts = F.transform(value, lambda element: _text(element, inner, f"{name}[]"))
        count = F.size(value).cast("string")
        text = F.concat(F.lit("a"), count, F.lit(":"), F.array_join(texts, ""))
    elif isinstance(kind, T.StructType):
        fields = [_text(value[f.name], f.dataType, f"{name}.{f.name}") for f in kind.fields]
        text = F.concat(F.lit("("), *fields, F.lit(")"))
    else:
        text = F.concat(_ended(value, kind, name), F.lit(";"))
    return F.when(value.isNull(), "N").otherwise(text)


def _ended(value: Column, kind: T.DataType, name: str) -> Column:
    if isinstance(kind, _EXACT):
        return F.concat(F.lit("n"), value.cast("string"))
    if isinstance(kind, T.DecimalType):
        return F.concat(F.lit("n"), F.call_function("format_number", value, F.lit(_DIGITS)))
    if isinstance(kind, _FLOATING):
        # The sum has no negative zero.
        return F.format_string("f%a", value.cast("double") + F.lit(0.0))
    if isinstance(kind, T.BinaryType):
        return F.concat(F.lit("b"), F.hex(value))
    if isinstance(kind, T.TimestampType):
        return F.concat(F.lit("t"), F.unix_micros(value).cast("string"))
    for as_text, tag in _AS_TEXT.items():
        if isinstance(kind, as_text):
            return F.concat(F.lit(tag), value.cast("string"))
    way = (
        f"F.array_sort(F.map_entries({name!r})) has an order"
        if isinstance(kind, T.MapType)
        else "cast it to string, or leave it out"
    )
    raise ConfigError(
        f"Column {name!r} is {kind.simpleString()}, of which no record ID is made: {way}."
    )


def _check_collation(kind: T.StringType, name: str) -> None:
    collation = getattr(kind, "collation", None)
    if collation not in _BYTE_ORDER_FREE:
        raise ConfigError(
            f"Column {name!r} has collation {collation}, in which different bytes can be equal. "
            f"Say which: F.col({name!r}).cast('string') compares bytes, F.lower(...) of that "
            "ignores case."
        )
