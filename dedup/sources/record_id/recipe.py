"""Makes record IDs as Spark expressions over columns, so that no row passes through Python.

`read_lines` numbers the lines of text files, so that an ID can use the numbers.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import reduce
from operator import and_, or_
from typing import TypeAlias

from pyspark.sql import Column, DataFrame, DataFrameReader
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql import types as T  # noqa: N812
from pyspark.sql.streaming.readwriter import DataStreamReader

from dedup.errors import ConfigError
from dedup.sources.record_id.canonical import ID_BYTES, VERSION
from dedup.spark.driver.columns import DerivedId, not_a_column

ColumnOrName: TypeAlias = str | Column

#: Default name of the ID's column.
NAME = "record_id"

_EXACT = (T.ByteType, T.ShortType, T.IntegerType, T.LongType)
_FLOATING = (T.FloatType, T.DoubleType)
_AS_TEXT = {T.DateType: "d", T.TimestampNTZType: "l"}
#: Format with all significant digits of a decimal. A cast would depend on the session's settings.
_DIGITS = "0." + "#" * 38
_BYTE_ORDER_FREE = ("UTF8_BINARY", None)
#: Pattern of the line ends that Hadoop and Spark recognise.
_LINE_END = "\r\n|\r|\n"
_BYTE_ORDER_MARK = "\ufeff"


@dataclass(frozen=True, slots=True, eq=False)
class IdRecipe(DerivedId):
    """A recipe for a record ID, which is computed from a record's columns.

    `dedup_by_id` takes a recipe as its option `id`. ``recipe.of(events)`` returns the ID as a
    column.
    """

    columns: tuple[ColumnOrName, ...]
    #: Whether the ID is the texts of the columns, joined by ``-``, instead of a hash.
    is_text: bool = False
    #: Whether the columns name a place in Kafka or a file. Then the ID is null if any column is
    #: null, because half of a place would identify many records.
    is_place: bool = False

    def of(self, df: DataFrame) -> Column:
        """Return the ID as a column ``record_id``, which is null if all columns of the ID are null.

        Raises
        ------
        ConfigError
            If a column does not exist, or its type has no canonical text.
        """
        columns = self.chosen(df)
        try:
            fields = df.select(*columns).schema.fields
        except Exception as error:
            first = str(error).strip().partition("\n")[0]
            raise ConfigError(
                f"The record ID cannot be derived from the columns {df.columns}: {first}"
            ) from error
        if len(fields) != len(columns):
            raise ConfigError(
                f"The record ID names {len(columns)} columns, but they match {len(fields)}. Name "
                "each column."
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
        """Return the columns of the ID. A name with a dot may be a column or a struct's field."""
        return [
            column
            if isinstance(column, Column)
            else F.col("`" + column.replace("`", "``") + "`" if column in df.columns else column)
            for column in self.columns
        ]

    @property
    def name(self) -> str:
        return f"{NAME} text" if self.is_text else f"{NAME} {VERSION}"


def from_columns(*columns: ColumnOrName) -> IdRecipe:
    """Return a record ID that is the hash of columns, so that equal records have equal IDs.

    Parameters
    ----------
    *columns : str or Column
        Columns, fields of columns (``"order.id"``) or expressions, except maps, intervals,
        times of day, variant and strings with a collation. The order of the columns changes the
        ID, but their names do not.

    Returns
    -------
    IdRecipe
        The ID has 16 bytes, the first half of the SHA-256 of the values' canonical text. The ID is
        null if every column is null.

    Raises
    ------
    ConfigError
        If no column is given, or an argument is not a column.

    Notes
    -----
    If two different records are equal in these columns, the operator drops one of them. Choose
    columns that distinguish records, such as a time, a device and its counter.

    The bytes do not depend on Spark's release and settings, the time zone or the partitioning.
    `of_values` computes the same bytes without Spark. Equal numbers of type int, bigint and decimal
    have equal IDs, but a double differs from all of them. NaN equals NaN, and 0.0 equals -0.0. If a
    reader parses texts as float or double, it rounds them, so two texts may get one ID. Read such
    columns as decimal or string.

    Among n live records, two have the same ID with a probability of n² / 2**129: 1.5e-15 for
    10**12 records.
    """
    if not columns:
        raise ConfigError("from_columns() needs at least one column.")
    return _recipe(columns)


def from_kafka(
    topic: ColumnOrName = "topic",
    partition: ColumnOrName = "partition",
    offset: ColumnOrName = "offset",
) -> IdRecipe:
    """Return a record ID that is the record's position in Kafka, such as ``orders-3-1234567``.

    Parameters
    ----------
    topic, partition, offset : str or Column
        Columns of the position. Default: the columns of Spark's Kafka source.

    Notes
    -----
    This ID catches records that are *read* twice, because a checkpoint was lost or restored, or two
    streams read one topic. It does not catch records that are *written* twice, because a producer's
    retry has another offset. If a topic is deleted and created again, its new records get old
    positions, and the operator drops them within the horizon. `dedup.kafka_records` refuses a topic
    that was created again, if you give `checkpoint`. The ID does not name the cluster. For a union
    of two clusters, add a column that names the cluster.
    """
    return _recipe((topic, partition, offset), is_text=True, is_place=True)


def from_file(
    path: ColumnOrName = "_metadata.file_path", position: ColumnOrName = "_metadata.row_index"
) -> IdRecipe:
    """Return a record ID that is the hash of a record's place: its file, and its row or line.

    The defaults are for Parquet. After `read_lines`, use ``from_file("file", "line")``.

    Parameters
    ----------
    path : str or Column
        The file's path. ``file:/`` equals ``file:///``, and ``s3:``, ``s3a:`` and ``s3n:`` are
        equal.
    position : str or Column
        Number of the row or line in the file.

    Notes
    -----
    This ID catches files that are *read* twice. It does not catch equal records in two files. If a
    file is overwritten, its new records get old places, and the operator drops them within the
    horizon. To prevent that, add the time of writing to the ID: ``id=[from_file(),
    "_metadata.file_modification_time"]``.

    If the data has a column `_metadata` of its own, reach Spark's column by
    ``df.metadataColumn("_metadata")["file_path"]``.
    """
    uri = F.regexp_replace(path, "^file:/+", "file:///")
    return _recipe((F.regexp_replace(uri, "^s3[an]:", "s3:"), position), is_place=True)


def read_lines(reader: DataFrameReader | DataStreamReader, path: str) -> DataFrame:
    """Return the lines of text files with file names and line numbers.

    ``read_lines(spark.readStream, "events/")`` replaces ``spark.readStream.text("events/")``.
    Spark's own reader splits large files, so it does not know the numbers of lines. `read_lines`
    reads each file as a whole, in one task.

    Parameters
    ----------
    reader : DataFrameReader or DataStreamReader
        ``spark.read`` or ``spark.readStream``, with options such as ``maxFilesPerTrigger``.
    path : str
        Folder, file or pattern. Spark recognises compressed files by the ends of their names.
        Partition folders must not be named ``value=``, ``file=`` or ``line=``.

    Returns
    -------
    DataFrame
        The columns of partition folders, then ``file`` (URI), ``line`` (from 1) and ``value`` (the
        line without its end).

    Notes
    -----
    A task holds several uncompressed copies of its largest file in memory. A file may have up to
    2 GiB. Bytes that are not UTF-8 become U+FFFD. LF, CR LF and CR end a line, even in a quoted
    field of CSV.
    """
    files = reader.format("text").option("wholetext", True).load(path)
    folders = [name for name in files.columns if name != "value"]
    text = F.col("value")
    unmarked = F.when(text.startswith(_BYTE_ORDER_MARK), F.expr("substring(value, 2)"))
    lines = files.select(
        *folders,
        F.col("_metadata.file_path").alias("file"),
        F.split(unmarked.otherwise(text), _LINE_END, -1).alias("lines"),
    )
    # A text after the last line end is a line only if it is not empty.
    count = F.size("lines") - F.when(F.element_at("lines", -1) == "", 1).otherwise(0)
    numbered = lines.select(
        *folders, "file", F.posexplode(F.slice("lines", 1, count)).alias("line", "value")
    )
    return numbered.select(*folders, "file", (F.col("line") + 1).alias("line"), "value")


def _recipe(
    columns: tuple[ColumnOrName, ...], *, is_text: bool = False, is_place: bool = False
) -> IdRecipe:
    for column in columns:
        if not isinstance(column, (str, Column)):
            raise not_a_column(column)
    return IdRecipe(columns, is_text, is_place)


def _text(value: Column, kind: T.DataType, name: str) -> Column:
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
        # Adding zero turns -0.0 into 0.0.
        return F.format_string("f%a", value.cast("double") + F.lit(0.0))
    if isinstance(kind, T.BinaryType):
        return F.concat(F.lit("b"), F.hex(value))
    if isinstance(kind, T.TimestampType):
        return F.concat(F.lit("t"), F.unix_micros(value).cast("string"))
    for as_text, tag in _AS_TEXT.items():
        if isinstance(kind, as_text):
            return F.concat(F.lit(tag), value.cast("string"))
    way_out = (
        f"F.array_sort(F.map_entries({name!r})) has an order"
        if isinstance(kind, T.MapType)
        else "cast it to string, or leave it out"
    )
    raise ConfigError(
        f"Column {name!r} is {kind.simpleString()}, which a record ID cannot include: {way_out}."
    )


def _check_collation(kind: T.StringType, name: str) -> None:
    collation = getattr(kind, "collation", None)
    if collation not in _BYTE_ORDER_FREE:
        raise ConfigError(
            f"Column {name!r} has collation {collation}, in which different bytes can be equal. "
            f"Give F.col({name!r}).cast('string') to compare bytes, or F.lower(...) of that to "
            "ignore case."
        )
