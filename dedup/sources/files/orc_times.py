"""Checks ORC files for times that Spark's reader would shorten, shift or reject."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from functools import reduce
from operator import or_
from pathlib import Path

import pyarrow as pa
import pyarrow.orc as orc
from pyspark.sql import Column, SparkSession
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql import types as T  # noqa: N812

from dedup.errors import DataError
from dedup.sources.files.exact_values import WRITE_AGAIN, has_nanoseconds
from dedup.storage.uri import literal, local_path

#: Length of the text of a time with microseconds, such as 2024-05-01 10:00:00.123456.
_MICROSECONDS_CHARS = 26
#: First day of the Gregorian calendar. Days before it differ in the Julian calendar.
_GREGORIAN = "1582-10-15"
_SHIFTED = (
    f"has times before {_GREGORIAN} from ORC's C++ library (pyarrow), and Spark would shift them. "
    "Write such times as text, or the file with Spark"
)
_NANOSECONDS = r"[.]\d{6}\d*[1-9]"
#: Matches each timestamp in the JSON of a schema, even inside an array, map or struct.
_TIMESTAMP = re.compile(r'("(?:type|elementType|keyType|valueType)":)"timestamp"')


def check_orc_times(spark: SparkSession, paths: Iterable[Path], columns: T.StructType) -> None:
    """Reject ORC files with times that Spark's reader would change.

    Spark keeps nanoseconds if it reads timestamps as text, so the check reads text. ORC's C++
    library writes days before 1582-10-15 in the Gregorian calendar, but Spark reads them as days of
    the Julian calendar. Raises DataError, which names the first time, its file and its column.
    """
    texts = T.StructType.fromJson(json.loads(_TIMESTAMP.sub(r'\1"string"', columns.json())))
    places: dict[bool, list[str]] = {}
    for path in paths:
        places.setdefault(_is_by_cpp(path), []).append(literal(str(path)))
    row = F.struct("*")
    for by_cpp, files in places.items():
        problems = [
            F.when(
                _is_changed(row[column.name], column.dataType, by_cpp),
                F.array(
                    F.lit(column.name),
                    F.regexp_extract(
                        row[column.name].cast("string"), r"[-+\d]+ [:\d]+" + _NANOSECONDS, 0
                    ),
                ),
            )
            for column, text in zip(columns.fields, texts.fields, strict=True)
            if column != text or (by_cpp and '"date"' in column.json())
        ]
        if not problems:
            continue
        rows = spark.read.schema(texts).orc(files)
        rows = rows.select(
            F.input_file_name().alias("file"), F.coalesce(*problems).alias("problem")
        )
        first = rows.where(F.col("problem").isNotNull()).first()
        if first is not None:
            name, value = first["problem"]
            raise DataError(
                f"{local_path(first['file'])}: its column {name!r} "
                f"{has_nanoseconds(value) if value else _SHIFTED}. {WRITE_AGAIN}",
                remedy="bad-records",
            )


def _is_by_cpp(path: Path) -> bool:
    try:
        return bool(orc.ORCFile(str(path)).writer == "ORC_CPP")
    except (OSError, pa.ArrowException):
        return False


def _is_changed(value: Column, kind: T.DataType, by_cpp: bool) -> Column:
    """Return whether Spark would change a time in `value`, whose timestamps are texts."""
    text = value.cast("string")
    # Years after 9999 begin with a plus sign.
    is_old = F.lit(by_cpp) & (text < _GREGORIAN) & ~text.startswith("+")
    if isinstance(kind, T.DateType):
        return is_old
    if isinstance(kind, T.TimestampType):
        # Most times are shorter and need no search.
        return ((F.length(text) > _MICROSECONDS_CHARS) & text.rlike(_NANOSECONDS)) | is_old
    if isinstance(kind, T.ArrayType):
        return F.exists(value, lambda item: _is_changed(item, kind.elementType, by_cpp))
    if isinstance(kind, T.MapType):
        keys = _is_changed(F.map_keys(value), T.ArrayType(kind.keyType), by_cpp)
        return keys | _is_changed(F.map_values(value), T.ArrayType(kind.valueType), by_cpp)
    inner = kind.fields if isinstance(kind, T.StructType) else []
    return reduce(
        or_, [_is_changed(value[f.name], f.dataType, by_cpp) for f in inner], F.lit(False)
    )
