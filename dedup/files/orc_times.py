"""Times of ORC files that Spark's reader would cut, or does not read."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from functools import reduce
from operator import or_

import pyarrow as pa
import pyarrow.orc as orc
from pyspark.sql import Column, SparkSession
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql import types as T  # noqa: N812

from dedup.catalog.uri import local_path
from dedup.errors import DataError
from dedup.files.exact_values import has_nanoseconds, leaves
from dedup.files.unreadable import WRITE_AGAIN

#: Length of a time that ends at microseconds, such as 2024-05-01 10:00:00.123456.
_MICROSECONDS_CHARS = 26
_NANOSECONDS = r"[.]\d{6}\d*[1-9]"
#: A timestamp, also inside another column, in the JSON of a schema.
_TIMESTAMP = re.compile(r'("(?:type|elementType|keyType|valueType)":)"timestamp"')


def check_nanoseconds(spark: SparkSession, places: Sequence[str], columns: T.StructType) -> None:
    """Read the timestamps of ORC files as text, from which Spark cuts no nanoseconds.

    Parameters
    ----------
    spark : SparkSession
    places : sequence of str
        The files, as Spark's reader takes them.
    columns : StructType
        As Spark reads them.

    Raises
    ------
    DataError
        If a timestamp has nanoseconds. The error names the file and the column.
    """
    texts = T.StructType.fromJson(json.loads(_TIMESTAMP.sub(r'\1"string"', columns.json())))
    row = F.struct("*")
    found = [
        F.when(
            _are_finer(row[column.name], column.dataType),
            F.array(
                F.lit(column.name),
                F.regexp_extract(
                    row[column.name].cast("string"), r"[-+\d]+ [:\d]+" + _NANOSECONDS, 0
                ),
            ),
        )
        for column, text in zip(columns.fields, texts.fields, strict=True)
        if column != text
    ]
    if not found or not places:
        return
    rows = spark.read.schema(texts).orc(list(places))
    rows = rows.select(F.input_file_name().alias("file"), F.coalesce(*found).alias("found"))
    first = rows.where(F.col("found").isNotNull()).first()
    if first is not None:
        name, value = first["found"]
        raise DataError(
            f"{local_path(first['file'])}: its column {name!r} {has_nanoseconds(value)}. "
            f"{WRITE_AGAIN}",
            remedy="bad-records",
        )


def _are_finer(value: Column, kind: T.DataType) -> Column:
    """Whether a timestamp in a value, which is read as text, has nanoseconds."""
    if isinstance(kind, T.TimestampType):
        # Most times are shorter, and need no search.
        return (F.length(value) > _MICROSECONDS_CHARS) & value.rlike(_NANOSECONDS)
    if isinstance(kind, T.ArrayType):
        return F.exists(value, lambda one: _are_finer(one, kind.elementType))
    if isinstance(kind, T.MapType):
        keys = _are_finer(F.map_keys(value), T.ArrayType(kind.keyType))
        return keys | _are_finer(F.map_values(value), T.ArrayType(kind.valueType))
    inner = kind.fields if isinstance(kind, T.StructType) else []
    return reduce(or_, [_are_finer(value[f.name], f.dataType) for f in inner], F.lit(False))


def columns_before_1970(path: str) -> Iterator[str]:
    """Yield the columns with fractions of seconds before 1970, as only ORC's C++ writer has them.

    Raises
    ------
    OSError, pyarrow.ArrowException
        If the file cannot be read.
    """
    with pa.OSFile(path) as source:
        file = orc.ORCFile(source)
        for name in file.schema.names if file.writer == "ORC_CPP" else ():
            for chunk in file.read([name]).column(0).chunks:
                for values in leaves(chunk):
                    if pa.types.is_timestamp(values.type):
                        nanos = values.cast(pa.int64()).drop_null().to_numpy()
                        if ((nanos < 0) & (nanos % 1_000_000_000 != 0)).any():
                            yield name
