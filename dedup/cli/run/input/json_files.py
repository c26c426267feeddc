"""Reads JSON files as text, parses them as strictly as Kafka's records, and lists their fields."""

from __future__ import annotations

import json
import re
from collections.abc import Container, Iterable, Mapping
from pathlib import Path
from typing import Any, TypeAlias

import pyarrow as pa
import pyarrow.json
from pyspark.sql import DataFrame, DataFrameReader
from pyspark.sql import functions as fn
from pyspark.sql import types as T  # noqa: N812
from pyspark.sql.streaming.readwriter import DataStreamReader

from dedup.cli.run.input.files import folded, is_true, open_text
from dedup.sources.strict_json import CAUSE, FIELDS, TAGGED, elements, with_fields, with_tagged
from dedup.spark.driver.columns import named_column
from dedup.spark.plan import HELPER_PREFIX

#: Names of helper columns with the text of a record and the path of its file.
TEXT, FILE = f"{HELPER_PREFIX}text", f"{HELPER_PREFIX}file"
#: Options of Spark's readers that affect how the text of a time is read.
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
_EMPTY_OBJECT = re.compile(rb"\{\s*\}")
#: Largest number of blanks in an empty object. Two blocks of a file overlap by this many bytes.
_LONGEST_BLANKS = 64
_BLOCK_BYTES = 8 << 20

#: Names of fields, each with the names of the fields inside it. An array has the names of its
#: elements.
Names: TypeAlias = dict[str, "Names"]


def read_json(
    reader: DataFrameReader | DataStreamReader,
    place: Any,
    by_folder: Container[str],
    columns: T.StructType,
    settings: Mapping[str, str],
) -> DataFrame:
    """Return the rows of JSON files, with the given columns and `CAUSE`, `TEXT` and `FILE`.

    `place` is a path or a list of paths. `settings` are options of Spark's JSON reader. `by_folder`
    holds the names of the columns that folders name. `columns` includes these columns.
    """
    given = folded(settings)
    is_whole = is_true(given, "multiline")
    own = [field for field in columns.fields if field.name.lower() not in by_folder]
    folders = [field for field in columns.fields if field.name.lower() in by_folder]
    text_only = T.StructType([T.StructField(TEXT, T.StringType()), *folders])
    reader = reader.format("text").schema(text_only)
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
    rows = with_fields(rows, T.StructType(own), formats)
    selected = [
        named_column(field.name)
        if field in folders
        else fn.col(FIELDS).getField(field.name).alias(field.name)
        for field in columns.fields
    ]
    return rows.select(*selected, CAUSE, TEXT, FILE)


def with_file(rows: DataFrame) -> DataFrame:
    """Add the path of the file to every row, even if the user has a column `_metadata`."""
    uri = rows.metadataColumn("_metadata")["file_path"]
    path = fn.regexp_replace(fn.regexp_replace(uri, "^file:/+", "/"), r"\+", "%2B")
    return rows.withColumn(FILE, fn.url_decode(path))


def with_empty_objects(
    columns: T.StructType, paths: Iterable[Path], *, is_whole: bool
) -> T.StructType:
    """Add columns that hold only ``{}``, as text, because Spark's inference omits such columns.

    With `is_whole` every file is one JSON value. Without it, every line is a JSON value.
    """
    for path in paths:
        if _has_empty_object(path) and (names := json_names(path, is_whole=is_whole)):
            completed = _completed(columns, names)
            assert isinstance(completed, T.StructType)
            columns = completed
    return columns


def _has_empty_object(path: Path) -> bool:
    tail = b""
    try:
        with open_text(path) as stream:
            while chunk := stream.read(_BLOCK_BYTES):
                if _EMPTY_OBJECT.search(tail + chunk):
                    return True
                tail = chunk[-_LONGEST_BLANKS:]
    except (OSError, pa.ArrowException):
        pass
    return False


def _completed(kind: T.DataType, names: Names) -> T.DataType:
    if isinstance(kind, T.ArrayType):
        return T.ArrayType(_completed(kind.elementType, names))
    if not isinstance(kind, T.StructType):
        return kind
    fields = [
        T.StructField(f.name, _completed(f.dataType, names.get(f.name, {}))) for f in kind.fields
    ]
    missing = sorted(set(names) - set(kind.names))
    return T.StructType([*fields, *(T.StructField(name, T.StringType()) for name in missing)])


def json_names(path: Path, *, is_whole: bool = False) -> Names | None:
    """Return the names of all fields in a JSON file, or None if only Spark can read the file.

    Lines that are not JSON are skipped, because they fail later, when Spark reads them.
    """
    names: Names = {}
    rest = b""
    try:
        with open_text(path) as stream:
            if is_whole:
                return _names_of_value(json.loads(stream.read()))
            while chunk := stream.read(_BLOCK_BYTES):
                block, _, rest = (rest + chunk).rpartition(b"\n")
                _add(names, _names_of_lines(block))
        _add(names, _names_of_lines(rest))
    except (OSError, pa.ArrowException, ValueError, RecursionError):
        return None
    return names


def _names_of_lines(block: bytes) -> Names:
    if not block.strip():
        return {}
    options = pyarrow.json.ReadOptions(use_threads=False, block_size=len(block) + 1)
    try:
        schema = pyarrow.json.read_json(pa.BufferReader(block), read_options=options).schema
    except pa.ArrowException:
        # pyarrow fails if a column has values of several types, or a line is not JSON.
        names: Names = {}
        for line in block.split(b"\n"):
            try:
                _add(names, _names_of_value(json.loads(line)))
            except ValueError:
                continue
        return names
    return {field.name: _names_of_type(field.type) for field in schema}


def _names_of_type(kind: pa.DataType) -> Names:
    if pa.types.is_list(kind):
        return _names_of_type(kind.value_type)
    if pa.types.is_struct(kind):
        return {field.name: _names_of_type(field.type) for field in kind}
    return {}


def _names_of_value(value: Any) -> Names:
    names: Names = {}
    if isinstance(value, dict):
        for name, inner in value.items():
            _add(names, {name: _names_of_value(inner)})
    elif isinstance(value, list):
        for inner in value:
            _add(names, _names_of_value(inner))
    return names


def _add(names: Names, more: Names) -> None:
    for name, inner in more.items():
        _add(names.setdefault(name, {}), inner)


def are_known(names: Names, known: T.DataType) -> bool:
    """Return whether a type has a field for every name. Upper and lower case differ in names."""
    if isinstance(known, T.ArrayType):
        return are_known(names, known.elementType)
    if not isinstance(known, T.StructType):
        # A string can hold any JSON value, and the keys of a map are data.
        return True
    fields = {field.name: field.dataType for field in known.fields}
    return all(name in fields and are_known(inner, fields[name]) for name, inner in names.items())
