"""JSON files as rows: read as text, and judged like the values of Kafka's records."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from dedup.cli.run.input.input_files import InputFiles, folded, is_true
from dedup.spark.plan import HELPER_PREFIX

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, DataFrameReader
    from pyspark.sql.streaming.readwriter import DataStreamReader
    from pyspark.sql.types import StructType

#: Columns of bad rows: the whole record, and its file.
TEXT, FILE = f"{HELPER_PREFIX}text", f"{HELPER_PREFIX}file"
#: Options of Spark's readers that give the text of a time its meaning.
OF_TIMES = (
    "dateformat",
    "timestampformat",
    "timestampntzformat",
    "timezone",
    "locale",
    "enabledatetimeparsingfallback",
)
_BLANK = "^[ \t\r\n]*$"
_BYTE_ORDER_MARK = "\ufeff"


def read_json(
    reader: DataFrameReader | DataStreamReader,
    place: Any,
    files: InputFiles,
    columns: StructType,
    settings: Mapping[str, str],
) -> DataFrame:
    """Return the columns, and behind them `CAUSE`, `TEXT` and `FILE`.

    Parameters
    ----------
    reader : DataFrameReader or DataStreamReader
    place : str or list of str
        What to load.
    files : InputFiles
    columns : StructType
        Folder columns among them.
    settings : mapping of str to str
        Options of Spark's JSON reader.
    """
    from pyspark.sql import functions as fn
    from pyspark.sql.types import StringType, StructField, StructType

    from dedup.spark.driver.columns import named_column
    from dedup.spark.driver.strict_json import (
        CAUSE,
        FIELDS,
        TAGGED,
        elements,
        with_fields,
        with_tagged,
    )

    given = folded(settings)
    is_whole = is_true(given, "multiline")
    by_folder = files.folder_columns if files.partitioned else frozenset()
    own = [field for field in columns.fields if field.name.lower() not in by_folder]
    folders = [field for field in columns.fields if field.name.lower() in by_folder]
    reader = reader.format("text").schema(StructType([StructField(TEXT, StringType()), *folders]))
    reader = reader.options(**settings, wholetext=str(is_whole).lower())
    rows = with_file(reader.load(place))
    encoding = given.get("encoding", given.get("charset", "UTF-8"))
    if encoding.upper() not in ("UTF-8", "UTF8"):
        rows = rows.withColumn(TEXT, fn.decode(fn.col(TEXT).cast("binary"), encoding))
    text = fn.col(TEXT)
    if is_whole:
        without_mark = fn.when(text.startswith(_BYTE_ORDER_MARK), fn.substr(text, fn.lit(2)))
        rows = rows.withColumn(TEXT, without_mark.otherwise(text))
    rows = with_tagged(rows.where(~text.rlike(_BLANK)), text)
    rows = rows.withColumn(TAGGED, fn.explode(elements(fn.col(TAGGED))))
    formats = {name: value for name, value in settings.items() if name.lower() in OF_TIMES}
    rows = with_fields(rows, StructType(own), formats)
    selected = [
        named_column(field.name)
        if field in folders
        else fn.col(FIELDS).getField(field.name).alias(field.name)
        for field in columns.fields
    ]
    return rows.select(*selected, CAUSE, TEXT, FILE)


def with_file(rows: DataFrame) -> DataFrame:
    """Add the path of its file to each row, also if `_metadata` is a column of the user."""
    from pyspark.sql import functions as fn

    uri = rows.metadataColumn("_metadata")["file_path"]
    path = fn.regexp_replace(fn.regexp_replace(uri, "^file:/+", "/"), r"\+", "%2B")
    return rows.withColumn(FILE, fn.url_decode(path))
